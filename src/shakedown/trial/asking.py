"""The server's answers beside the watch: a question asked in a thread, and what both together mean.

It never starts, signals or reads a process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from shakedown.core import Judgement, Phase, Verdict
from shakedown.probe import CanaryReport, Readiness, ReadyState, Target, check, poll
from shakedown.trial.ready_line import ReadyLine
from shakedown.watch import Assessment, State, Watcher

READY_LOOK_S = 5.0
READY_PAUSE_S = 1.0
CANARY_S = 60.0
DEATH_SHOWS_S = 8.0  # an engine that dies of a request takes the other processes with it in seconds
HANG_SHOWS_S = 60.0  # the watch's budget for a silence, its three looks and some air
STEP_S = 0.5


class Asking:
    """Questions to the server in a thread of their own: a silent server must not stop the watch."""

    def __init__(self, target: Target | None, ready_log: str | None, clock: Callable[[], float]) -> None:
        self._target = target
        self._clock = clock
        self._ready_line = ReadyLine(ready_log) if ready_log else None
        self._thread: threading.Thread | None = None
        self._abandoned = threading.Event()
        self._answering = False
        self._reported_s: float | None = None
        self.report: CanaryReport | None = None

    def step(self, assessment: Assessment, watcher: Watcher) -> Judgement | None:
        """Begins to ask once ours listens, and judges once the answers do and the watch has had its say."""
        if self._thread is None:
            if self._target is not None and self._is_up(assessment):
                self._begin(self._target)
            return None
        if not self._answering:
            return None
        if assessment.phase.order < Phase.READY.order:
            watcher.enter(Phase.READY)
        report = self.report
        watcher.probe_pending(report is None or report.verdict is Verdict.HUNG)
        if report is None:
            return None
        self._reported_s = self._reported_s or assessment.now_s
        waited_s = assessment.now_s - self._reported_s
        if report.verdict is Verdict.CRASHED and waited_s < DEATH_SHOWS_S:
            return None  # the watch sees the death itself, with its cause, in a moment
        if report.verdict is Verdict.HUNG:
            return self._no_answer(report, assessment, waited_s)
        return judge_answers(report, assessment)

    def abandon(self) -> None:
        self._abandoned.set()

    def _is_up(self, assessment: Assessment) -> bool:
        if self._ready_line is not None:
            return self._ready_line.is_in(seen.line.text for seen in assessment.new_lines)
        return assessment.listening is not None and assessment.listening.ours

    def _begin(self, target: Target) -> None:
        self._thread = threading.Thread(
            target=self._ask, args=(target,), name="shakedown-canary", daemon=True
        )
        self._thread.start()

    def _ask(self, target: Target) -> None:
        while not self._is_worth_a_canary(poll(target, READY_LOOK_S)):
            if self._abandoned.wait(READY_PAUSE_S):
                return
        self._answering = True
        self.report = check(target, deadline_s=CANARY_S, clock=self._clock, abandoned=self._abandoned.is_set)

    def _is_worth_a_canary(self, seen: Readiness) -> bool:
        return seen.state is ReadyState.ANSWERING

    def _no_answer(self, report: CanaryReport, assessment: Assessment, waited_s: float) -> Judgement | None:
        """No token came: the watch tells a hang, what goes on working is slow, the rest is undecided."""
        if assessment.state is State.MOVING and waited_s >= STEP_S:
            return judge_answers(replace(report, verdict=Verdict.SLOW), assessment)
        if waited_s > HANG_SHOWS_S:
            return judge_answers(replace(report, verdict=Verdict.UNDECIDED), assessment)
        return None


def judge_answers(report: CanaryReport, assessment: Assessment) -> Judgement:
    """The server's answers as a judgement, with the phases and readings of the watch around it."""
    return Judgement(
        verdict=report.verdict,
        phase=Phase.SERVING,
        cause=report.cause,
        fingerprint=report.fingerprint,
        phases=assessment.phases,
        evidence=(*report.evidence, *assessment.evidence),
        would_change=report.would_change,
        exited=False,
    )
