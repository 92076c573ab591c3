"""The server's answers beside the watch: a question asked in a thread, and what both together mean.

It never starts, signals or reads a process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from shakedown.core import Gap, Judgement, Mark, Measured, Phase, Verdict
from shakedown.probe import (
    CanaryReport,
    Failure,
    Readiness,
    ReadyState,
    Target,
    check,
    is_early,
    measure,
    poll,
)
from shakedown.trial.answered import broken_off, judge_answers, spelled, unreached
from shakedown.trial.marks import Stated, judge_late, judge_marks, time_to_ready
from shakedown.trial.ready_line import ReadyLine
from shakedown.watch import Assessment, State

READY_LOOK_S = 5.0
READY_PAUSE_S = 1.0
CANARY_S = 60.0
MARKS_S = 120.0  # for all stated marks together
DEATH_SHOWS_S = 8.0  # an engine that dies of a request takes the other processes with it in seconds
HANG_SHOWS_S = 60.0  # the watch's budget for a silence, its three looks and some air
NO_ROUTES_S = 40 * 60.0  # a server of another kind may move for ever; one that loads has routes by then
STEP_S = 0.5
UNREACHED_S = 30.0  # after its log says ready; an answer, be it an error, takes milliseconds


class Told(Protocol):
    """The watch, or the watches of several nodes, as far as they are told what only the asker knows."""

    def enter(self, phase: Phase) -> None: ...
    def probe_pending(self, pending: bool) -> None: ...
    def request_cut(self) -> None: ...


class Asking:
    """Questions to the server in a thread of their own: a silent server must not stop the watch."""

    def __init__(
        self,
        target: Target | None,
        ready_log: str | None,
        clock: Callable[[], float],
        stated: Stated | None = None,
        *,
        gaps: Callable[[], tuple[Gap, ...]] = tuple,
    ) -> None:
        self._target = target
        self._clock = clock
        self._stated = stated or Stated()
        self._gaps = gaps
        self._ready_line = ReadyLine(ready_log) if ready_log else None
        self._thread: threading.Thread | None = None
        self._abandoned = threading.Event()
        self._answering = self._overdue = self._stands = False
        self._seen: Readiness | None = None
        self._looked_at: Target | None = None
        self._not_yet_s = self._answered_s = 0.0
        self._asked_s: float | None = None  # when the canary began that may have come too early
        self._first_early_s: float | None = None
        self._may_load = self._told = False
        self._sent = self._seen_sent = 0  # requests that measure marks
        self._reported_s: float | None = None
        self._measured: tuple[Measured, ...] = ()
        self.report: CanaryReport | None = None
        self.early: CanaryReport | None = None  # the last one that came before it had loaded

    def step(self, assessment: Assessment, watcher: Told) -> Judgement | None:
        """Begins to ask once ours listens, and judges once the answers do and the watch has had its say."""
        self._date(assessment)
        if self._thread is None:
            if self._is_up(assessment):
                if self._ready_line is not None:
                    watcher.enter(Phase.READY)
                if self._target is not None:
                    self._begin()
            return self._late(assessment) or self._unreached(assessment)
        if not self._answering or self._only_looks(assessment):
            return self._late(assessment) or self._unreached(assessment)
        self._told = True
        if assessment.phase.order < Phase.READY.order:
            watcher.enter(Phase.READY)
        report = self.report
        if self._sent > self._seen_sent:
            self._seen_sent = self._sent
            watcher.probe_pending(False)  # each of many requests has its own silence
        watcher.probe_pending(report is None or report.verdict is Verdict.HUNG)
        if report is None:
            return None
        if self._reported_s is None:
            self._reported_s = assessment.now_s
            if report.verdict is Verdict.HUNG:
                watcher.request_cut()
        waited_s = assessment.now_s - self._reported_s
        if report.verdict is Verdict.CRASHED and waited_s < DEATH_SHOWS_S:
            return None  # the watch sees the death itself, with its cause, in a moment
        if report.verdict is Verdict.HUNG:
            return self._no_answer(report, assessment, waited_s)
        return judge_marks(judge_answers(report, assessment), self._measured)

    def doubt(self, judgement: Judgement, assessment: Assessment, watcher: Told) -> Judgement | None:
        """The watch's verdict, or a better one; None as long as it may be one, and the watch goes on."""
        return judgement

    def abandon(self) -> None:
        self._abandoned.set()

    def _is_up(self, assessment: Assessment) -> bool:
        if self._ready_line is not None:
            return self._ready_line.is_in(seen.line.text for seen in assessment.new_lines)
        return assessment.listening is not None and assessment.listening.ours

    def _begin(self) -> None:
        self._not_yet_s = self._clock()
        self._thread = threading.Thread(target=self._ask, name="shakedown-canary", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        """A fault of ours in what is read out of an answer is told, and is no silence of the server's."""
        try:
            self._ask_on()
        except Exception as problem:  # noqa: BLE001  whatever it is, nobody else would tell it
            self.report = broken_off(problem, self._clock())
            self._answering = True

    def _ask_on(self) -> None:
        while (report := self._ask_once()) is not None and self._came_early(report):
            self._answering = False
            self.early, self._not_yet_s = report, self._clock()
            if self._abandoned.wait(READY_PAUSE_S):
                return
        self.report = report

    def _ask_once(self) -> CanaryReport | None:
        """One canary, once it is worth one; None where nobody waits for it any more."""
        while not self._is_worth_a_canary(self._look()):
            self._not_yet_s = self._clock()
            if self._abandoned.wait(READY_PAUSE_S):
                return None
        target = self._looked_at
        assert target is not None
        self._answered_s = self._asked_s = self._clock()
        self._answering = True
        while True:
            before = self._gaps()
            report = check(target, deadline_s=CANARY_S, clock=self._clock, abandoned=self._abandoned.is_set)
            if self._stated.expectations and report.verdict in {Verdict.SERVES, Verdict.SLOW}:
                self._measured = self._measure(target)
            if self._gaps() == before:  # else the way there was broken, which is no answer of the server's
                return report
            if self._abandoned.wait(READY_PAUSE_S):
                return None

    def _look(self) -> Readiness:
        """Where to ask may have changed since the last look."""
        target = self._target
        assert target is not None
        seen = poll(target, READY_LOOK_S)
        self._looked_at = target
        return seen

    def _came_early(self, report: CanaryReport) -> bool:
        """A server may listen, and list its model, minutes before it answers a request.

        Once the watch was told of a request in flight there is no way back into a loading phase.
        """
        if not self._may_load or self._told or not is_early(report):
            return False
        if self._first_early_s is None:
            self._first_early_s = self._clock()
        return report.says_not_ready or self._clock() - self._first_early_s < NO_ROUTES_S

    def _only_looks(self, assessment: Assessment) -> bool:
        """The first seconds of a canary are a look like any other while nothing has said that it is ready."""
        asked_s = self._asked_s
        return (
            self._may_load
            and not self._told
            and self.report is None
            and asked_s is not None
            and assessment.now_s - asked_s < READY_LOOK_S
        )

    def _measure(self, target: Target) -> tuple[Measured, ...]:
        stated, found = self._stated, []
        if stated.ready is not None:
            found.append(time_to_ready(stated.ready, self._not_yet_s, self._answered_s, stated.spread))
        try:
            found += measure(
                target,
                stated.expectations,
                deadline_s=MARKS_S,
                spread=stated.spread,
                began=self._begin_request,
                abandoned=self._abandoned.is_set,
            )
        except Exception as problem:  # noqa: BLE001  it serves all the same
            left = [it for it in stated.expectations if it.mark is not Mark.READY_S]
            found += [Measured(expectation=it, note=spelled(problem)) for it in left]
        return tuple(found)

    def _begin_request(self) -> None:
        self._sent += 1

    def _late(self, assessment: Assessment) -> Judgement | None:
        stated = self._stated
        if stated.ready is None or not stated.cut:
            return None
        return judge_late(stated.ready, assessment, stated.spread)

    def _is_worth_a_canary(self, seen: Readiness) -> bool:
        """Also one that says it is ready and leaves a look unanswered: only a canary shows it hung.

        One whose health page goes on answering 503 may still load, as long as it moves.
        """
        self._seen = seen
        if seen.state is ReadyState.NOT_YET and self._overdue:
            return seen.failure is Failure.CUT or (seen.failure is None and self._stands)
        return seen.state is ReadyState.ANSWERING

    def _date(self, assessment: Assessment) -> None:
        said_ready = any(span.phase.order >= Phase.READY.order for span in assessment.phases)
        self._may_load = not said_ready and assessment.state in {State.MOVING, State.QUIET}
        said = [span.started_s for span in assessment.phases if span.phase is Phase.READY]
        self._overdue = bool(said) and assessment.now_s - min(said) >= UNREACHED_S
        moved = assessment.last_progress
        self._stands = moved is None or assessment.now_s - moved.at_s >= UNREACHED_S

    def _unreached(self, assessment: Assessment) -> Judgement | None:
        """Its log has said for long that it is ready, and there is nowhere to ask it."""
        why = self._why_unreached()
        if not self._overdue or not why:
            return None
        return unreached(why, assessment)

    def _why_unreached(self) -> str:
        """ "" while it may only be late."""
        if self._target is None:
            return "its port is not known: nothing was asked"
        if self._thread is None and self._ready_line is not None:
            return ""  # the user says when
        if self._thread is None:
            return f"nothing of it listens where {self._target.base_url} leads"
        seen = self._seen
        if seen is None or seen.failure in {None, Failure.CUT}:
            return ""
        return f"{self._target.base_url} cannot be reached: {seen.why}"

    def _no_answer(self, report: CanaryReport, assessment: Assessment, waited_s: float) -> Judgement | None:
        """No token came: the watch tells a hang, what goes on working is slow, the rest is undecided."""
        if assessment.state is State.MOVING and waited_s >= STEP_S:
            return judge_answers(replace(report, verdict=Verdict.SLOW), assessment)
        if waited_s > HANG_SHOWS_S:
            return judge_answers(replace(report, verdict=Verdict.UNDECIDED), assessment)
        return None
