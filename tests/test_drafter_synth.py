"""Synthesis against small real servers: what is kept is what was generated, once, whatever is killed."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from byte_model import CHATML, END, byte_model, encode
from conftest import Shakedown
from probe_servers import serving
from stand_ins import eventually

from shakedown.core import Launch
from shakedown.drafter.conversation import Wishes
from shakedown.drafter.samples import Sample, read_samples
from shakedown.drafter.server import Sampling
from shakedown.drafter.transport import ServerLost
from shakedown.errors import DataProblem, HostProblem, UsageError
from shakedown.host import reach
from shakedown.jobs.draft_synth import synth_job
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import JobResult, Progress
from shakedown.jobs.synth_request import SynthRequest

SERVER = "chat_tokens.py"
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and m['reasoning_content'] and loop.last %}"
    "<think>\n{{ m['reasoning_content'] }}\n</think>\n\n{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Heard:
    """A talk that keeps what is said."""

    def __init__(self) -> None:
        self.text = ""

    def say(self, text: str) -> None:
        self.text += text + "\n"

    def progress(self, progress: Progress) -> None:
        pass


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_model(tmp_path_factory.mktemp("target"))


def synth(
    target: Path,
    url: str,
    out: Path,
    talk: Heard | None = None,
    wishes: Wishes | None = None,
    dry_run: bool = False,
    **changes: Any,
) -> JobResult:
    request = SynthRequest(
        target=str(target), server=url, out=out, wishes=wishes or Wishes(), **{"concurrency": 4, **changes}
    )
    nothing = LaunchRequest(launch=Launch(argv=(), env={}, cwd=out.parent), dry_run=dry_run)
    return synth_job(request, nothing, talk or Heard())


def write_lines(path: Path, *lines: Mapping[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def questions(path: Path, number: int = 12) -> Path:
    return write_lines(path, *({"text": f"Question {n}, please?"} for n in range(number)))


def samples_in(folder: Path) -> list[Sample]:
    return sorted(read_samples(folder / "samples.jsonl"), key=lambda sample: sample.id)


def left_out_of(folder: Path) -> list[str]:
    return [json.loads(line)["reason"] for line in (folder / "left-out.jsonl").read_text().splitlines()]


def generated(sample: Sample) -> list[str]:
    return [bytes(t for t in sample.token_ids[a:b] if t < 256).decode() for a, b in sample.mask]


@pytest.mark.parametrize("way", ["vllm", "sglang", "chat"])
def test_every_kind_of_server_gives_the_same_tokens_and_mask(target: Path, tmp_path: Path, way: str):
    talk = Heard()
    with serving(SERVER, way) as server:
        said = synth(target, server.base_url, tmp_path / "out", talk, prompts=questions(tmp_path / "p.jsonl"))
    found = samples_in(tmp_path / "out")
    assert len(found) == 12 == said.document["samples"]
    for number, sample in enumerate(found):
        asked = f"<|im_start|>user\nQuestion {number}, please?<|im_end|>\n<|im_start|>assistant\n"
        answer = f"You ask: Question {number}, please? Café.<|im_end|>"
        assert sample.token_ids == encode(asked + answer)
        assert sample.mask == [(len(encode(asked)), len(sample.token_ids))]
        assert sample.token_ids[-1] == END
        assert sample.sampling["temperature"] == 0.0
        assert sample.model == str(target)
    assert "⟦You ask: Question" in talk.text


def test_several_turns_of_a_plain_template_are_one_sample(target: Path, tmp_path: Path):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "not ours"},
        {"role": "user", "content": "Two?"},
    ]
    with serving(SERVER, "vllm") as server:
        prompts = write_lines(tmp_path / "p.jsonl", {"messages": messages})
        synth(target, server.base_url, tmp_path / "out", prompts=prompts)
    (sample,) = samples_in(tmp_path / "out")
    assert generated(sample) == ["You ask: One? Café.", "You ask: Two? Café."]
    assert [message["role"] for message in sample.messages] == ["system", *["user", "assistant"] * 2]


@pytest.mark.parametrize("way", ["vllm", "chat"])
def test_reasoning_that_the_template_forgets_makes_a_sample_per_turn(tmp_path: Path, way: str):
    target = byte_model(tmp_path / "target", THINKING)
    with serving(SERVER, way, "--thinks") as server:
        prompts = write_lines(tmp_path / "p.jsonl", {"turns": ["One?", "Two?"]})
        synth(target, server.base_url, tmp_path / "out", prompts=prompts)
    found = samples_in(tmp_path / "out")
    assert [sample.id for sample in found] == ["0000000-1of2", "0000000-2of2"]
    assert generated(found[1]) == ["<think>\nHm, Two?\n</think>\n\nYou ask: Two? Café."]
    assert b"Hm, One?" not in bytes(t for t in found[1].token_ids if t < 256)


@pytest.mark.parametrize("way", ["vllm", "chat"])
def test_reasoning_can_be_dropped(tmp_path: Path, way: str):
    target = byte_model(tmp_path / "target", THINKING)
    with serving(SERVER, way, "--thinks") as server:
        prompts = questions(tmp_path / "p.jsonl", 1)
        wishes = Wishes(keep_reasoning=False)
        synth(target, server.base_url, tmp_path / "out", wishes=wishes, prompts=prompts)
    (sample,) = samples_in(tmp_path / "out")
    assert generated(sample) == ["You ask: Question 0, please? Café."]


@pytest.mark.parametrize("way", ["vllm", "sglang", "chat"])
def test_the_target_writes_its_own_user_turns(target: Path, tmp_path: Path, way: str):
    with serving(SERVER, way) as server:
        synth(target, server.base_url, tmp_path / "out", wishes=Wishes(turns=2), wanted=9)
    found = samples_in(tmp_path / "out")
    assert len(found) == 9
    for sample in found:
        users = [m["content"] for m in sample.messages if m["role"] == "user"]
        assert len(users) == 2
        assert users[0].endswith("times 17?")
        assert generated(sample) == [f"You ask: {user} Café." for user in users]


def test_what_is_left_out_of_the_targets_own_is_made_up_for_and_no_more(target: Path, tmp_path: Path):
    with serving(SERVER, "vllm", "--repeats", "3") as server:
        synth(target, server.base_url, tmp_path / "out", wanted=30, concurrency=7)
        assert len(samples_in(tmp_path / "out")) == 30
        left_out = left_out_of(tmp_path / "out")
        assert len(left_out) >= 10
        assert set(left_out) == {"the target wrote this user turn before"}
        again = synth(target, server.base_url, tmp_path / "out", wanted=30)
        assert again.document["seconds"] == 0  # nothing was asked
        synth(target, server.base_url, tmp_path / "out", wanted=40)
    assert len(samples_in(tmp_path / "out")) == 40


def test_a_target_that_repeats_itself_is_given_up(target: Path, tmp_path: Path):
    with serving(SERVER, "vllm", "--repeats", "1") as server:
        synth(target, server.base_url, tmp_path / "out", wanted=3)
        found = synth(target, server.base_url, tmp_path / "out", wanted=5)
    assert len(samples_in(tmp_path / "out")) == 1
    assert left_out_of(tmp_path / "out") == ["the target wrote this user turn before"] * 9
    assert "  short     4 of 5 conversations: the target writes too little that is kept" in found.lines


def test_what_is_left_is_gone_through_although_none_of_it_can_be_kept(target: Path, tmp_path: Path):
    """As after a kill: a run that was not cut goes through the same prompts and ends well."""
    lines = [{"text": f"Question {n}?" + " long" * (40 if n >= 6 else 0)} for n in range(30)]
    prompts, short = write_lines(tmp_path / "p.jsonl", *lines), Wishes(sampling=Sampling(max_tokens=60))
    with serving(SERVER, "vllm") as server:
        for wanted in (6, 30):
            asked = {"wishes": short, "prompts": prompts, "wanted": wanted}
            synth(target, server.base_url, tmp_path / "out", **asked)
    assert len(samples_in(tmp_path / "out")) == 6
    assert len(left_out_of(tmp_path / "out")) == 24


def test_a_full_disk_leaves_whole_samples_to_go_on_from(target: Path, tmp_path: Path):
    """A limit on the size of a file stands in for a full disk: the kernel refuses the write alike."""
    prompts, out = questions(tmp_path / "p.jsonl", 40), tmp_path / "out"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with serving(SERVER, "vllm") as server:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, limits[1]))
            with pytest.raises(HostProblem, match=r"samples\.jsonl cannot be written: File too large"):
                synth(target, server.base_url, out, prompts=prompts)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert 0 < len(samples_in(out)) < 40
        synth(target, server.base_url, out, prompts=prompts)
    assert [sample.id for sample in samples_in(out)] == [f"{n:07d}" for n in range(40)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_kill_loses_nothing_and_doubles_nothing(target: Path, tmp_path: Path):
    log, path = tmp_path / "asked", tmp_path / "out" / "samples.jsonl"

    def written(enough: int) -> bool:
        return path.exists() and path.read_bytes().count(b"\n") >= enough

    with serving(SERVER, "vllm", "--delay", "0.03", "--log", str(log)) as server:
        argv = [
            *(sys.executable, "-m", "shakedown", "draft", "synth", "--target", str(target)),
            *("--server", server.base_url, "--prompts", str(questions(tmp_path / "p.jsonl", 60))),
            *("--out", str(tmp_path / "out"), "--concurrency", "3", "--json"),
        ]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            assert eventually(lambda: written(20), within_s=90)
            process.send_signal(signal.SIGKILL)
        before = path.read_bytes().count(b"\n")
        with open(path, "ab") as file:  # what a kill in the middle of a write leaves
            file.write(path.read_bytes()[:40])
        done = subprocess.run(argv, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Counter(sample.id for sample in read_samples(path)) == {f"{n:07d}": 1 for n in range(60)}
    assert (found["samples"], found["new_samples"]) == (60, 60 - before)
    asked = Counter(log.read_text().splitlines())
    assert sum(asked.values()) <= 60 + 3 + 2  # only what was under way is asked again, and one hello a start


def test_half_a_conversation_is_cut_and_held_again(tmp_path: Path):
    target = byte_model(tmp_path / "target", THINKING)
    path = tmp_path / "out" / "samples.jsonl"
    with serving(SERVER, "vllm", "--thinks") as server:
        prompts = write_lines(tmp_path / "p.jsonl", *[{"turns": [f"{n}?", "Why?"]} for n in range(3)])
        synth(target, server.base_url, tmp_path / "out", prompts=prompts)
        whole = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(whole[:3]) + whole[3][:50])
        synth(target, server.base_url, tmp_path / "out", prompts=prompts)
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(whole)


def test_a_finished_folder_is_not_asked_again_and_other_settings_are_refused(target: Path, tmp_path: Path):
    prompts, out = questions(tmp_path / "p.jsonl"), tmp_path / "out"
    with serving(SERVER, "vllm") as server:
        synth(target, server.base_url, out, prompts=prompts, wanted=4)
        synth(target, server.base_url, out, prompts=prompts, wanted=7)
    again = synth(target, server.base_url, out, prompts=prompts, wanted=7)
    assert again.document["samples"] == 7
    other = Wishes(sampling=Sampling(max_tokens=5))
    with pytest.raises(UsageError, match="begun with other settings: sampling was"):
        synth(target, server.base_url, out, prompts=prompts, wanted=7, wishes=other)


def test_a_dry_run_makes_nothing_and_cuts_nothing(target: Path, tmp_path: Path):
    out, nobody = tmp_path / "new" / "out", "http://127.0.0.1:9"
    asked: dict[str, Any] = {"prompts": questions(tmp_path / "p.jsonl")}
    said = synth(target, nobody, out, dry_run=True, **asked)
    assert said.lines[0].startswith("would hold 12 conversations")
    assert not (tmp_path / "new").exists()
    with serving(SERVER, "vllm") as server:  # and so other settings than those of the dry run are welcome
        synth(
            target, server.base_url, out, wanted=4, wishes=Wishes(sampling=Sampling(max_tokens=64)), **asked
        )
    for name in ("samples.jsonl", "left-out.jsonl"):
        with open(out / name, "ab") as file:  # what a kill in the middle of a write leaves
            file.write(b'{"id": "00')
    before = {path: path.read_bytes() for path in out.iterdir()}
    same = Wishes(sampling=Sampling(max_tokens=64))
    said = synth(target, nobody, out, dry_run=True, wishes=same, **asked)
    assert said.lines[0].startswith("would hold 8 conversations")
    with pytest.raises(UsageError, match="begun with other settings: sampling was"):
        synth(target, nobody, out, dry_run=True, **asked)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_truncated_answers_are_left_out_unless_asked_for(target: Path, tmp_path: Path):
    talk = Heard()
    prompts = write_lines(tmp_path / "p.jsonl", {"text": "Hi?"}, {"text": "long " * 20 + "?"})
    short = Sampling(max_tokens=40)
    with serving(SERVER, "vllm") as server:
        url = server.base_url
        synth(target, url, tmp_path / "a", talk, Wishes(sampling=short), prompts=prompts)
        keeping = Wishes(sampling=short, keep_truncated=True)
        synth(target, url, tmp_path / "b", wishes=keeping, prompts=prompts)
    assert len(samples_in(tmp_path / "a")) == 1
    assert left_out_of(tmp_path / "a") == ["cut by the limit of tokens"]
    assert "long long" in talk.text
    _, cut = samples_in(tmp_path / "b")
    assert (cut.finish, cut.generated) == ("length", 40)
    assert cut.token_ids[-1] != END


def test_an_answer_that_is_cut_inside_a_character_is_kept_to_the_byte(target: Path, tmp_path: Path):
    inside = len(b"You ask: Hi? Caf") + 1  # the first of two bytes of é
    wishes = Wishes(sampling=Sampling(max_tokens=inside), keep_truncated=True)
    prompts = write_lines(tmp_path / "p.jsonl", {"text": "Hi?"})
    with serving(SERVER, "vllm") as server:
        synth(target, server.base_url, tmp_path / "out", wishes=wishes, prompts=prompts)
    (sample,) = samples_in(tmp_path / "out")
    assert bytes(sample.token_ids[-inside:]) == b"You ask: Hi? Caf" + b"\xc3"


@pytest.mark.parametrize(
    ("fault", "most", "reason", "hint"),
    [
        (["vllm"], 3, "cut by the limit of tokens", "--keep-truncated"),
        (["vllm", "--empty"], 99, "empty answer", "left-out.jsonl"),
        (["chat", "--empty"], 99, "empty answer", "left-out.jsonl"),
        (["vllm", "--refuse", "please"], 99, "refused by the server", "left-out.jsonl"),
        (["chat", "--thinks"], 99, "the template does not give it back", "--reasoning drop"),
    ],
)
def test_where_nothing_can_be_kept_it_stops_early_and_says_why(
    target: Path, tmp_path: Path, fault: list[str], most: int, reason: str, hint: str
):
    wishes = Wishes(sampling=Sampling(max_tokens=most))
    prompts = questions(tmp_path / "p.jsonl", 100)
    with serving(SERVER, *fault) as server, pytest.raises(DataProblem) as caught:
        synth(target, server.base_url, tmp_path / "out", wishes=wishes, prompts=prompts)
    assert reason in caught.value.message
    assert hint in " ".join(caught.value.hints)
    assert samples_in(tmp_path / "out") == []
    assert 8 <= len(left_out_of(tmp_path / "out")) < 20


@pytest.mark.parametrize(
    ("way", "mixed_up"),
    [("vllm", {"shift": 1}), ("chat", {"template": "<|im_start|>system\nHi.<|im_end|>\n" + CHATML})],
)
def test_the_tokenizer_of_another_model_is_found_out(tmp_path: Path, way: str, mixed_up: dict[str, Any]):
    other = byte_model(tmp_path / "t", **mixed_up)
    prompts = questions(tmp_path / "p.jsonl", 20)
    with serving(SERVER, way) as server, pytest.raises(DataProblem, match="another tokenizer or template"):
        synth(other, server.base_url, tmp_path / "out", prompts=prompts)
    assert samples_in(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (CHATML[:-10], "the template fails"),
        (CHATML.replace("m['content']", "m['content'] | upper"), "does not repeat the answer as it is"),
        (CHATML.replace("<|im_end|>", "</s>"), "no token that ends generation follows the answer"),
        (CHATML.replace("<|im_start|>{{ m['role'] }}", "{{ loop.length }}"), "does not begin an answered"),
    ],
)
def test_a_template_that_does_not_round_trip_is_refused_and_shown(tmp_path: Path, template: str, why: str):
    target = byte_model(tmp_path / "t", template)
    prompts = questions(tmp_path / "p.jsonl", 20)
    with serving(SERVER, "chat") as server, pytest.raises(UsageError, match=why) as caught:
        synth(target, server.base_url, tmp_path / "out", prompts=prompts)
    assert re.search("france|paris|hello", "".join(caught.value.hints), re.IGNORECASE)
    assert samples_in(tmp_path / "out") == []


def test_a_server_that_dies_costs_what_was_under_way_and_no_more(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("shakedown.drafter.transport.PATIENCE_S", 0.5)
    prompts, out = questions(tmp_path / "p.jsonl", 40), tmp_path / "out"
    with serving(SERVER, "vllm", "--die-after", "20") as server, pytest.raises(ServerLost) as caught:
        synth(target, server.base_url, out, prompts=prompts)
    kept = len(samples_in(out))
    assert f"{kept} samples are kept; the same command goes on" in caught.value.hints[0]
    assert 14 <= kept <= 19
    with serving(SERVER, "vllm") as server:
        synth(target, server.base_url, out, prompts=prompts)
    assert [sample.id for sample in samples_in(out)] == [f"{n:07d}" for n in range(40)]


def test_a_busy_server_is_waited_for(target: Path, tmp_path: Path):
    with serving(SERVER, "vllm", "--busy", "3") as server:
        prompts = questions(tmp_path / "p.jsonl", 4)
        said = synth(target, server.base_url, tmp_path / "out", prompts=prompts)
    assert said.document["samples"] == 4


def test_a_folder_in_use_is_refused(target: Path, tmp_path: Path):
    out = tmp_path / "out"
    with serving(SERVER, "vllm", "--delay", "0.5") as server:
        url, prompts = server.base_url, questions(tmp_path / "p.jsonl", 4)
        with ThreadPoolExecutor() as pool:
            first = pool.submit(synth, target, url, out, prompts=prompts, concurrency=1)
            assert eventually(lambda: (out / "synth.json").exists(), within_s=10)
            with pytest.raises(UsageError, match="another process writes to"):
                synth(target, url, out, prompts=prompts)
            assert first.result().document["samples"] == 4


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_server_of_our_own_is_started_and_ended(
    shakedown: Shakedown, target: Path, tmp_path: Path, port: int
):
    server = Path(__file__).parent / "bad_servers" / SERVER
    said = shakedown(
        *("draft", "synth", "--target", str(target), "--prompts", str(questions(tmp_path / "p.jsonl"))),
        *("--out", str(tmp_path / "out"), "--port", str(port)),
        launch=[sys.executable, str(server), "chat", "--port", str(port)],
    )
    assert said.code == 0, said.stderr
    assert said.document["samples"] == 12
    assert not reach.is_listening(port)
