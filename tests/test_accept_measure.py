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
from pathlib import Path

import pytest

from shakedown.acceptance.lookup import Lookup
from shakedown.acceptance.replay import Standing
from shakedown.acceptance.rounds import Source
from shakedown.acceptance.verdict import Blame, Outcome, Shown, judge
from shakedown.core import Launch, LogprobStyle
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError
from shakedown.host.reach import free_port, is_listening
from shakedown.jobs.accept_answers import Answered
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
    def say(self, text: str) -> None:
        pass

    def progress(self, progress: object) -> None:
        pass


@contextlib.contextmanager
def serving(fault: str = "", *, plain: bool = False) -> Iterator[Target]:
    port = free_port()
    flags = [] if plain else ["--speculative-config", json.dumps(LOOKUP)]
    env = {**os.environ, "DRAFTING": fault, "DRAFTING_STEP_S": "0.0005"}
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
                engine="vllm",
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
) -> Measurement:
    drafts = 0 if plain else 3
    plan = Plan(
        questions=read_questions(None), tokens=tokens, most=most, margin=0.5, drafts=drafts, ends=ends
    )
    with serving(fault, plain=plain) as target:
        return measure_server(target, plan, concurrency=concurrency, number=number, talk=Quiet())


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
