"""One server measured: rounds told one by one, rounds only summed, rounds not told at all."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shakedown.acceptance.lookup import Lookup
from shakedown.acceptance.replay import Standing
from shakedown.acceptance.rounds import Source, acceptance_of
from shakedown.acceptance.verdict import Blame, Outcome, Shown, judge
from shakedown.core import Launch, LogprobStyle
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError
from shakedown.host.reach import free_port, is_listening
from shakedown.jobs import accept_measure
from shakedown.jobs.accept_answers import Answered
from shakedown.jobs.accept_enough import too_few_blocks
from shakedown.jobs.accept_entries import by_place
from shakedown.jobs.accept_expect import expect_lookup
from shakedown.jobs.accept_launches import Contender
from shakedown.jobs.accept_measure import Measurement, Plan, measure_server
from shakedown.jobs.accept_questions import Question, read_questions
from shakedown.jobs.accept_states import see_states
from shakedown.jobs.request import LaunchRequest
from shakedown.probe import Target
from shakedown.probe.generation import Generated

SERVER = Path(__file__).parent / "bad_servers" / "drafting.py"
LOOKUP = {"method": "ngram", "num_speculative_tokens": 3}


class Quiet:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, progress: object) -> None:
        pass


@contextlib.contextmanager
def serving(
    fault: str = "", *, plain: bool = False, engine: str = "vllm", metrics_s: float = 0.0
) -> Iterator[Target]:
    port = free_port()
    flags = {
        "vllm": ["--speculative-config", json.dumps(LOOKUP)],
        "sglang": ["--speculative-num-steps", "3"],
    }[engine] * (not plain)
    env = {**os.environ, "DRAFTING": fault, "DRAFTING_STEP_S": "0.0005"}
    env["DRAFTING_METRICS_S"] = str(metrics_s)
    command = [sys.executable, str(SERVER), "--port", str(port), *flags]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as server:
        try:
            until_s = time.monotonic() + 30
            while not is_listening(port) and time.monotonic() < until_s:
                time.sleep(0.05)
            yield Target(
                base_url=f"http://127.0.0.1:{port}",
                model="tiny",
                api_key=None,
                logprobs=LogprobStyle.PROMPT_LOGPROBS,
                health_path="/health",
                engine=engine,
            )
        finally:
            server.kill()


def measured(
    fault: str = "",
    *,
    concurrency: int = 1,
    plain: bool = False,
    number: int | None = 8,
    tokens: int = 24,
    ends: frozenset[int] = frozenset(),
    most: int = 24,
    engine: str = "vllm",
    metrics_s: float = 0.0,
    talk: Quiet | None = None,
) -> Measurement:
    drafts = 0 if plain else 3
    questions = read_questions(None)
    if engine == "sglang":
        questions = tuple(replace(each, prompt=tuple(each.text.encode())) for each in questions)
    plan = Plan(questions=questions, tokens=tokens, most=most, margin=0.5, drafts=drafts, ends=ends)
    with serving(fault, plain=plain, engine=engine, metrics_s=metrics_s) as target:
        return measure_server(target, plan, concurrency=concurrency, number=number, talk=talk or Quiet())


def judged(found: Measurement) -> tuple[Outcome, Blame]:
    finding = judge(
        Shown(
            measured=found.acceptance.tokens_per_round if found.acceptance else None,
            idle=found.idle,
            why_unmeasured=found.why_none,
        )
    )
    return finding.outcome, finding.blame


def test_rounds_are_told_one_by_one_and_the_last_one_is_dropped():
    found = measured()
    assert found.source is Source.ROUNDS
    assert found.acceptance is not None
    told = sum(len(each.generated.rounds or ()) for each in found.answers)
    assert 0 < found.acceptance.rounds < told
    assert all(each.effort.steps < each.effort.tokens for each in found.answers)


def test_an_interval_that_is_narrow_enough_ends_the_questions():
    found = measured(number=None)
    assert 16 <= len(found.answers) <= 24


@pytest.mark.parametrize("concurrency", [1, 4])
def test_sums_are_read_around_each_request_or_block(concurrency):
    found = measured("sums", concurrency=concurrency)
    assert found.source is Source.COUNTERS
    assert found.acceptance is not None
    assert found.acceptance.requests == (8 if concurrency == 1 else 1)
    assert found.acceptance.tokens_per_round.value > 1.2


def test_sums_of_a_block_are_held_against_all_its_answers():
    """A healthy server. Kinds of questions come in turn: a block's first is always of the same kind."""
    lookup = Lookup(shortest=1, longest=3, drafts=3)
    found = measured("sums", concurrency=4, number=72, tokens=48)
    shown = expect_lookup(lookup, found.answers, Shown(measured=None, margin=0.2))
    assert shown.reference is not None
    assert shown.reference.requests == 9  # blocks
    assert shown.reference.standing is Standing.EQUAL, shown.reference
    incomplete = expect_lookup(lookup, found.answers[1:], Shown(measured=None, margin=0.2)).reference
    assert incomplete is not None
    assert incomplete.requests == 8  # of one block an answer is missing: it is held against nothing


def test_text_past_the_models_end_is_generated_and_not_counted():
    ends = frozenset({3, 4})
    found = measured(plain=True, tokens=48, ends=ends)
    texts = [each.generated.tokens for each in found.answers]
    assert {each.came for each in found.answers} == {48}
    assert all(not ends & {*text[:-1]} and (len(text) == 48 or text[-1] in ends) for text in texts)
    assert any(len(text) < 48 for text in texts)
    assert found.past_end == 0


def test_sums_count_text_past_the_end_and_say_so():
    found = measured("sums", tokens=48, ends=frozenset({3, 4}))
    assert found.past_end is not None
    assert found.past_end > 0
    assert measured("sums").past_end is None  # the mark is not known


def test_the_states_are_seen_with_as_many_requests_at_once_as_are_judged(tmp_path):
    launched = Launch(argv=("server",), env={}, cwd=tmp_path)
    contender = Contender(name="d", launch=launched, speculation=None)
    plan = Plan(questions=read_questions(None), tokens=4, most=24, margin=0.5, drafts=3)
    measured = []

    def serve(launch, talk, work):
        with serving() as target:
            measured.append(work(target))
        return measured[0]

    with pytest.raises(EnvironmentProblem, match="wrote no states"):
        see_states(LaunchRequest(launch=launched), contender, None, plan, Quiet(), concurrency=3, serve=serve)
    assert measured[0].concurrency == 3
    assert len(measured[0].answers) == 64  # eight blocks, should only their sums be told


def test_blocks_are_asked_until_there_are_enough_to_compare():
    found = measured("sums", concurrency=4, number=None, most=80)
    assert found.acceptance is not None
    assert found.acceptance.requests == 8


def test_each_part_of_an_answer_shows_what_a_round_that_begins_there_gives():
    """Rounds of 3 drafts, each accepted in eight of ten: near the end the short ones alone would be whole."""
    chance, answers = random.Random(3), []
    for _ in range(1500):
        rounds, text = [], 1
        while text < 64:
            rounds.append(next((a for a in range(3) if chance.random() > 0.8), 3))
            text += rounds[-1] + 1
        generated = Generated(tokens=tuple(range(64)), arrivals=((0.0, 64),), rounds=tuple(rounds))
        answers.append(Answered(question=Question(kind="", text=""), generated=generated))
    found = by_place(Measurement(concurrency=1, answers=tuple(answers), seconds=1.0), 3)
    assert [(each["from"], each["to"]) for each in found][-1] == (55, 65)
    assert sum(each["rounds"] for each in found) > 20_000
    for each in found:
        assert each["tokens_per_round"] == pytest.approx(1 + 0.8 + 0.64 + 0.512, abs=0.06)


@pytest.mark.parametrize(("concurrency", "reads"), [(1, 32), (4, 4)])
def test_a_servers_seconds_are_those_of_its_answers_not_of_what_is_read_and_reckoned_beside(
    concurrency, reads
):
    wait_s = 4 / reads
    found = measured("sums", concurrency=concurrency, number=16, metrics_s=wait_s)
    assert found.acceptance is not None
    answering = sum(each.generated.arrivals[-1][0] for each in found.answers)
    assert found.seconds < answering + 2  # all reads of the counters take 4
    assert found.seconds >= answering / concurrency
    assert found.tokens_per_s == pytest.approx(16 * 24 / found.seconds)


def test_acceptance_is_reckoned_once_a_block_and_once_in_the_end(monkeypatch):
    """Each time draws thousands of resamples, while the server waits."""
    times = []
    monkeypatch.setattr(accept_measure, "acceptance_of", lambda of: times.append(1) or acceptance_of(of))
    found = measured(number=24)
    assert found.acceptance is not None
    assert len(times) == 3 + 1


def test_sums_of_too_few_blocks_are_said_before_they_are_asked_for_and_counted_as_blocks():
    talk = Quiet()
    found = measured("sums", concurrency=8, number=None, most=40, tokens=40, talk=talk)
    assert "at 8 at once the server tells the rounds of blocks of 16 requests alone" in talk.said[0]
    assert "40 requests make 3 blocks, and fewer than 8 decide nothing (--requests 128, or" in talk.said[0]
    assert "tokens a round" in talk.said[1]
    lookup = Lookup(shortest=1, longest=3, drafts=3)
    shown = expect_lookup(lookup, found.answers, Shown(measured=found.acceptance.tokens_per_round))
    why = judge(shown).why[0]
    assert "in 3 blocks of 16 answers, which are counted together, do not decide" in why
    needed = shown.reference.needed
    assert f"{needed} blocks would, {16 * needed:,} requests" in why


@pytest.mark.parametrize(("fault", "most"), [("", 40), ("sums", 64)])
def test_nothing_is_said_of_blocks_where_answers_tell_their_rounds_or_blocks_are_enough(fault, most):
    talk = Quiet()
    measured(fault, concurrency=4, number=None, most=most, talk=talk)
    assert not any("blocks" in line for line in talk.said)


def test_questions_that_there_are_not_are_asked_for():
    assert "(--requests 512 and as many --prompts, of which there are 160, or" in too_few_blocks(32, 160, 160)
    assert too_few_blocks(8, 160, 160) == ""


def test_answers_that_are_too_short_for_a_round_say_so():
    found = measured("guesses", tokens=4)
    assert (found.source, found.acceptance, found.idle) == (Source.ROUNDS, None, False)
    assert found.why_none == (
        "none of 8 answers is long enough: the longest has 4 tokens, and a round of 3 drafts that its end"
        " cannot cut needs 5 (ask for more --tokens)"
    )
    assert judged(found) == (Outcome.UNDECIDED, Blame.UNDECIDED)


def test_answers_that_end_at_once_say_so():
    found = measured("guesses", ends=frozenset(range(23)))
    assert (found.source, found.acceptance, found.idle) == (Source.ROUNDS, None, False)
    assert "the longest has 1 tokens" in found.why_none
    assert "the model ends them itself: give other --prompts" in found.why_none


def test_rounds_that_sglang_does_not_tell_are_not_taken_for_none():
    """Its metrics hold means alone, which say nothing of the answers asked for."""
    found = measured("sums", engine="sglang")
    assert (found.source, found.idle) == (Source.NONE, False)
    assert found.why_none == "its answers tell no histogram of accepted drafts"
    assert judged(found) == (Outcome.UNDECIDED, Blame.UNDECIDED)
    assert measured(engine="sglang").source is Source.HISTOGRAM


def test_speculation_that_is_silently_off_is_said():
    found = measured("idle")
    assert found.idle
    assert judged(found) == (Outcome.NOT_SPECULATING, Blame.DRAFTER_PATH)


def test_a_server_without_counters_is_undecided_and_says_why():
    found = measured("uncounted")
    assert (found.source, found.idle) == (Source.NONE, False)
    assert "/metrics tells nothing (404)" in found.why_none
    assert judged(found) == (Outcome.UNDECIDED, Blame.UNDECIDED)


def test_a_plain_server_has_a_pace_and_no_rounds():
    found = measured(plain=True)
    assert (found.source, found.acceptance, found.idle) == (Source.NONE, None, False)
    assert all(each.effort.steps == each.effort.tokens == 23 for each in found.answers)
    assert found.first_token_s is not None
    assert found.tokens_per_s > 0


def test_a_server_that_dies_is_lost_with_the_number_of_its_answers():
    with pytest.raises(EnvironmentProblem, match="was lost after 10 answers"):
        measured("dies", number=24)


def test_our_questions_are_160_of_8_kinds_in_turn():
    found = read_questions(None)
    assert len(found) == len({each.text for each in found}) == 160
    assert len({each.kind for each in found[:8]}) == 8


def test_a_question_that_is_there_twice_is_asked_once_and_the_others_are_counted(tmp_path):
    file = tmp_path / "q.jsonl"
    texts = ["a", "b", "a", "c", "b", "a"]
    file.write_text(
        "".join(json.dumps({"text": text, "kind": str(at)}) + "\n" for at, text in enumerate(texts))
    )
    said = []
    found = read_questions(file, said.append)
    assert [(each.text, each.kind) for each in found] == [("a", "0"), ("b", "1"), ("c", "3")]
    assert said == [f"3 of 6 prompts in {file} ask what another one asks: left out"]
    read_questions(None, said.append)
    assert len(said) == 1


def test_any_json_lines_are_questions_and_broken_ones_are_named(tmp_path):
    file = tmp_path / "q.jsonl"
    lines = [
        {"text": "a", "kind": "x"},
        {"turns": ["b", "c"], "category": "y"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "d"}]},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(each.text, each.kind) for each in read_questions(file)] == [("a", "x"), ("b", "y"), ("d", "")]
    for broken in ("{", "[]", '{"turns": []}', '{"text": " "}', '{"messages": [{"role": "user"}]}', "7"):
        file.write_text(broken)
        with pytest.raises(DataProblem, match=r"q\.jsonl:1 is no prompt"):
            read_questions(file)
    file.write_text("\n")
    with pytest.raises(UsageError, match="holds no prompt"):
        read_questions(file)
    with pytest.raises(UsageError, match="cannot be read"):
        read_questions(tmp_path / "nothing")
