"""Which of a log's errors a launch has survived, and which it died of, seconds or minutes later."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replaying import MIB, Script, process, run_until, watch

from shakedown.core import Exit, Phase, Verdict
from shakedown.engines.vllm import VLLM
from shakedown.trial.passing import PassPhase

KILLED, FAILED = Exit(code=None, signal=9), Exit(code=3, signal=None)
CAUGHT = """Traceback (most recent call last):
  File "/x/site-packages/engine/_opt.py", line 3, in load
    import flash_attn_3
ImportError: cannot import name 'flash_attn_3' from 'extras'
INFO going on without them"""
NAMED = "ImportError: cannot import name 'flash_attn_3' from 'extras'"
TORN = "terminate called after throwing an instance of 'c10::Error'"


def growing(at_s: float, until_s: float = 1e9):
    return [process(rss_bytes=int(100 + 10 * min(at_s, until_s)) * MIB)]


def died_of(host: Script, seconds: float = 200, **named):
    judgement = run_until(host, watch(host, **named), seconds).judgement
    assert judgement.verdict is Verdict.CRASHED
    return judgement


def ending(exit_: Exit, ended_s: float, *lines: tuple[float, str], launch=growing, **rest) -> Script:
    def alive(at_s: float):
        return launch(at_s) if at_s < ended_s else []

    return Script(alive, lines=[(5.0, CAUGHT), *lines], exit=exit_, ended_s=ended_s, **rest)


@pytest.mark.parametrize(
    ("exit_", "last", "cause"),
    [
        (KILLED, "going on", "killed by signal 9 (SIGKILL): out of memory, or somebody killed it"),
        (Exit(code=None, signal=6), TORN, TORN),
        (FAILED, "tool: cannot open /dev/x", "exited with code 3; the last error it printed: tool: cannot"),
        (FAILED, "ValueError: no such weights", "ValueError: no such weights"),
    ],
)
def test_what_was_caught_minutes_before_is_no_cause(exit_: Exit, last: str, cause: str):
    judgement = died_of(ending(exit_, 120.0, (119.0, last)))
    assert judgement.cause.startswith(cause)
    assert f"earlier: {NAMED}" in [item.text for item in judgement.evidence]


def test_who_is_struck_down_ten_seconds_after_a_caught_error_did_not_die_of_it():
    assert "SIGKILL" in died_of(ending(KILLED, 17.0)).cause


def test_an_error_that_nothing_followed_is_the_cause_however_late_the_end():
    """SGLang's parent and vLLM's front end notice a dead child seconds later, and say so."""
    host = ending(
        FAILED,
        62.0,
        (60.0, "a child has gone"),
        (61.0, "shutting down"),
        launch=lambda at_s: growing(at_s, 6.0),
    )
    assert died_of(host).cause == NAMED


def test_who_says_good_bye_at_length_died_of_the_error_before():
    lines = [(6.0 + n, f"INFO closing the {name}") for n, name in enumerate(("port", "pool", "queue", "log"))]
    host = ending(FAILED, 14.0, *lines, launch=lambda at_s: growing(at_s, 10.0))
    assert died_of(host).cause == NAMED


def test_a_process_that_went_with_its_error_did_not_survive_it_although_others_went_on():
    def two(at_s: float):
        return [*growing(at_s), *([process(2, name="worker")] if at_s < 8 else [])]

    assert died_of(ending(FAILED, 100.0, launch=two)).cause == NAMED


def test_only_its_own_process_tells_that_an_error_was_survived():
    line = "(Worker_TP1 pid=2) ERROR 11-29 14:14:45 [core.py:1510] ValueError: no weights"

    def ranks(moves: int):
        return lambda at_s: [
            replace(growing(at_s)[0], pid=pid, started_ticks=pid)
            if pid == moves
            else process(pid, rss_bytes=100 * MIB)
            for pid in (1, 2)
        ]

    for moves, cause in ((1, "ValueError: no weights"), (2, "killed by signal 9")):
        launch = ranks(moves)
        host = Script(
            lambda at_s, launch=launch: launch(at_s) if at_s < 100 else [],
            lines=[(5.0, line)],
            exit=KILLED,
            ended_s=100.0,
        )
        assert died_of(host, engine=VLLM).cause.startswith(cause)


def test_what_refers_to_the_root_cause_above_has_one():
    said = "RuntimeError: Engine core initialization failed. See root cause above."
    assert died_of(ending(FAILED, 120.0, (119.0, said)), engine=VLLM).cause == NAMED


def passed_s(host: Script, phase: Phase = Phase.WEIGHT_LOAD) -> float | None:
    watcher, passing = watch(host), PassPhase(phase)
    watcher.enter(phase)
    for _ in range(100):
        host.advance(1.0)
        if passing.step(watcher.step()):
            return host.clock_s() - host.run.started_s
    return None


def test_a_launch_is_past_its_phase_once_an_error_of_before_was_survived():
    assert 35 < passed_s(Script(growing, lines=[(5.0, CAUGHT)])) < 60


def test_a_launch_that_lost_a_process_to_an_error_is_not_past_anything():
    def two(at_s: float):
        return [*growing(at_s), *([process(2, name="worker")] if at_s < 8 else [])]

    assert passed_s(Script(two, lines=[(5.0, CAUGHT)])) is None
    assert passed_s(Script(lambda at_s: growing(at_s, 6.0), lines=[(5.0, CAUGHT)])) is None
