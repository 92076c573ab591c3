"""`shakedown accept` on a small server that speculates for real and misbehaves on purpose: prompt lookup."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from byte_model import byte_model
from eagle3_directories import (
    drafted_tokens,
    flags,
    floats,
    head_rows,
    healthy_shapes,
    integers,
    marks,
    write_drafter,
    write_target,
    write_tensors,
)

pytestmark = pytest.mark.slow  # three launches each

SERVER = Path(__file__).parent / "bad_servers" / "drafting.py"
LOOKUP = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
ACCEPT = ("accept", "--engine", "vllm", "--requests", "16", "--tokens", "40")


def launch(port: int, config: dict | None = None) -> list[str]:
    argv = [sys.executable, str(SERVER), "--port", str(port), "--model", "tiny"]
    return [*argv, "--speculative-config", json.dumps(config or LOOKUP)]


def test_a_healthy_server_drafts_as_expected_and_says_the_same(shakedown, port):
    asks = ["--per-request-spec-decode-metrics", "detailed"]  # with which the plain server would not start
    said = shakedown(*ACCEPT, launch=[*launch(port), *asks])
    found = said.document
    assert (said.code, found["verdict"], found["blame"]) == (0, "serves as trained", "none"), said.stderr
    contract = {"tokens_per_round", "expected", "per_position", "break_even", "speed_up", "blame", "schema"}
    assert set(found) >= contract
    entry = found["drafters"][0]
    assert entry["source"] == "every round of each request"
    assert entry["comparison"]["standing"] == "equal"
    assert entry["comparison"]["rounds_alike"] == 1.0
    assert found["tokens_per_round"]["low"] <= found["tokens_per_round"]["value"]
    assert len(found["per_position"]) == 3
    assert entry["text"]["same"] == entry["text"]["compared"] >= 16
    assert found["break_even"] > 0  # a loaded machine may make it anything
    assert found["plain"][0]["before"]["requests"] >= 16
    assert entry["at"][0]["drift"] is not None
    assert len({each["kind"] for each in entry["by_kind"]}) == 8


def test_a_server_that_drops_drafts_is_below_what_the_text_gives(shakedown, port):
    said = shakedown(*ACCEPT, launch=launch(port), env={"DRAFTING": "blind"})
    assert (said.code, said.document["verdict"]) == (1, "accepts less than it should"), said.stderr
    assert said.document["blame"] == "drafter_path"  # prompt lookup is handed no states
    assert said.document["drafters"][0]["comparison"]["difference"]["high"] < -0.1
    assert "accept_length >= " in said.document["next"][0]
    assert "spec-decode-metrics" not in said.document["next"][0]  # isolate takes speculation away, too


def test_a_server_that_lets_wrong_drafts_pass_alters_the_text(shakedown, port):
    said = shakedown(*ACCEPT, launch=launch(port), env={"DRAFTING": "alters"})
    assert (said.code, said.document["verdict"]) == (1, "alters the text"), said.stderr
    assert said.document["blame"] == "drafter_path"


def test_a_server_that_dies_in_the_middle_is_an_error_with_the_number_of_answers(shakedown, port):
    said = shakedown(*ACCEPT, launch=launch(port), env={"DRAFTING": "dies"})
    assert said.code == 125
    assert "was lost after" in said.document["error"], said.document
    assert said.document["verdict"] == "undecided"
    assert said.document["plain"][0]["before"]["requests"] >= 16  # what was measured until then is told
    assert said.document["drafters"][0]["requests"] == 8


def test_a_server_that_does_not_serve_is_an_error_with_its_first_cause(shakedown, port):
    said = shakedown(*ACCEPT, launch=launch(port), env={"DRAFTING_STEP_S": "none"})
    assert said.code == 125
    assert "nothing was asked: crashed in " in said.document["error"]
    assert "could not convert string to float" in said.document["error"]


def cut(folder: Path, options: tuple[str, ...], argv: list[str], line: str, **env: str) -> tuple[int, str]:
    """`accept`, ended by a TERM as soon as it has said `line`: its exit code and what it printed."""
    words = [sys.executable, "-m", "shakedown", *options, "--ledger", str(folder / "ledger.db"), "--", *argv]
    with subprocess.Popen(
        words, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said: list[str] = []
        while line not in "".join(said):
            said.append(process.stderr.readline())
            assert said[-1], "".join(said)
        process.terminate()
        threading.Thread(target=process.stderr.read, daemon=True).start()
        answer = process.stdout.read()
    return process.returncode, answer


@pytest.mark.parametrize(
    ("more", "line", "env", "requests"),
    [
        ((), "tokens a round", {}, 8),  # in the middle of the speculating server
        (("--concurrency", "4"), "tokens a round", {"DRAFTING": "stalls"}, 8),  # nobody waits for its answers
        ((), "once more", {}, 16),
    ],
)
def test_what_was_measured_before_it_is_interrupted_is_told(tmp_path, port, more, line, env, requests):
    code, answer = cut(tmp_path, (*ACCEPT, *more, "--json"), launch(port), line, **env)
    document = json.loads(answer)
    assert (code, document["verdict"], document["blame"]) == (130, "undecided", "undecided"), document
    assert document["why"][0].startswith("cut while ")
    assert document["error"].startswith("interrupted")
    assert document["plain"][0]["before"]["requests"] == 16
    (entry,) = document["drafters"]
    assert entry["requests"] >= requests
    assert entry["tokens_per_round"]["value"] == document["tokens_per_round"]["value"] > 1
    assert entry["speed_up"]["value"] > 0
    assert entry["at"][0]["drift"] is None
    socket.create_server(("127.0.0.1", port)).close()  # nobody listens any more


def test_a_cut_comparison_is_told_on_a_screen_and_a_page_too(tmp_path, port):
    page = tmp_path / "page.html"
    code, answer = cut(tmp_path, (*ACCEPT, "--html", str(page)), launch(port), "tokens a round")
    assert code == 130
    assert "undecided" in page.read_text()
    assert "cut while" in answer
    assert "tokens a round, bonus included" in answer
    assert "in 16 answers" in answer


def test_an_interrupt_before_anything_is_measured_is_only_that(tmp_path, port):
    code, answer = cut(tmp_path, (*ACCEPT, "--json"), launch(port), "accept: ")
    assert (code, json.loads(answer)["verdict"]) == (130, None)


def test_too_few_answers_say_how_many_rounds_are_missing(shakedown, port, tmp_path):
    prompts = tmp_path / "few.jsonl"
    prompts.write_text("".join(json.dumps({"text": f"Count to {n % 3}."}) + "\n" for n in range(40)))
    said = shakedown(*ACCEPT, "--prompts", str(prompts), launch=launch(port))
    assert (said.code, said.document["blame"]) == (125, "undecided"), said.stderr
    assert "37 of 40 prompts" in said.stderr  # asked again they would have been observations of their own
    assert said.document["drafters"][0]["requests"] == 3
    assert said.document["more_rounds"] > 0
    assert f"about {said.document['more_rounds']} more rounds would" in said.document["why"][0]


def as_sglang(port: int, target: Path) -> tuple[list[str], list[str]]:
    """The options and the launch. Its target and drafter are no checkpoints: nothing is expected of them."""
    argv = [sys.executable, str(SERVER), "--port", str(port), "--model-path", str(target)]
    argv += ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "nowhere"]
    argv += ["--speculative-num-steps", "3", "--served-model-name", "tiny"]
    options = ["accept", "--engine", "sglang", "--requests", "16", "--tokens", "40", "--target", str(target)]
    return options, argv


def test_sglang_is_asked_in_tokens_and_told_by_its_histograms(shakedown, port, tmp_path):
    options, argv = as_sglang(port, byte_model(tmp_path / "target"))
    said = shakedown(*options, launch=argv)
    entry = said.document["drafters"][0]
    assert (said.code, entry["blame"]) == (125, "undecided"), said.stderr
    assert entry["source"] == "a histogram for each request"
    assert entry["tokens_per_round"]["value"] > 1.2
    assert entry["text"]["compared"] == 16
    assert "config.json cannot be read" in entry["why_no_expectation"]


def test_a_text_that_sglang_alters_is_known_by_how_likely_it_was(shakedown, port, tmp_path):
    options, argv = as_sglang(port, byte_model(tmp_path / "target"))
    said = shakedown(*options, launch=argv, env={"DRAFTING": "alters"})
    text = said.document["drafters"][0]["text"]
    assert text["altered"] > 0, (text, said.stderr)
    assert text["unknown"] == 0


def test_text_that_a_drafter_was_trained_on_is_read_before_anything_starts(shakedown, port, tmp_path):
    (tmp_path / "samples.jsonl").write_text("\n")
    said = shakedown(*ACCEPT, "--trained-on", str(tmp_path / "samples.jsonl"), launch=launch(port))
    assert said.code == 2
    assert "holds no sample" in said.document["error"]


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        ((), ["--model", "tiny"], "does not speculate, and no --drafter is given"),
        ((), ["--speculative-config", '{"method": "ngram"}'], "does not say how many tokens are drafted"),
    ],
)
def test_what_cannot_be_compared_is_refused(shakedown, port, words, given, said):
    argv = [sys.executable, str(SERVER), "--port", str(port), *given]
    refused = shakedown(*ACCEPT, *words, launch=argv)
    assert refused.code == 2
    assert said in refused.document["error"]


def test_a_dry_run_shows_the_three_launches(shakedown, port):
    lines = shakedown(*ACCEPT, "--dry-run", launch=launch(port)).document["dry_run"]
    assert len(lines) == 3
    assert "--speculative-config" not in lines[0]
    assert "--speculative-config" in lines[1]


def test_a_drafter_that_the_lint_rejects_is_not_launched(shakedown, port, tmp_path):
    target, drafter = write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter")
    tokens = drafted_tokens()
    tensors = {name: floats(shape, 3) for name, shape in healthy_shapes().items()}
    tensors |= {"lm_head.weight": head_rows(tokens), "d2t": integers(tokens), "t2d": flags(marks(tokens))}
    write_tensors(drafter / "model.safetensors", tensors)  # token ids, where both engines expect offsets
    argv = [sys.executable, str(SERVER), "--port", str(port), "--model", "tiny"]
    said = shakedown(*ACCEPT, "--drafter", str(drafter), "--target", str(target), launch=argv)
    assert (said.code, said.document["verdict"]) == (1, "does not fit the engine"), said.stderr
    assert (said.document["blame"], said.document["launches"]) == ("drafter", 0)
    assert "d2t" in said.document["why"][0]
