"""A running server judged: watched and asked like a launch, but never started, signalled or ended.

It never sends more than a canary, and log-probability requests only where they were asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from shakedown.core import (
    Engine,
    Evidence,
    Gap,
    Host,
    Judgement,
    LogprobStyle,
    Phase,
    Run,
    TrialRecord,
    Verdict,
)
from shakedown.ledger import Ledger
from shakedown.probe import Readiness, Target, check
from shakedown.trial.asking import CANARY_S, Asking
from shakedown.trial.conduct import Subject, observe, with_gaps
from shakedown.watch import Assessment, Watcher
from shakedown.watch.log import LogReader
from shakedown.watch.phases import Timeline

FIRST_LOOK_S = 1.0
NOT_ASKED = "not asked for: --numeric sends requests for log-probabilities"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """How a server stood when we came. `listens`: its port is open; `phase`: what its log says."""

    listens: bool
    phase: Phase

    @property
    def up(self) -> bool:
        """It listens and its log names no start that is still going on: it must answer now."""
        return self.listens and (self.phase is Phase.IMPORT or self.phase.order >= Phase.READY.order)


def phase_in(tail: bytes, engine: Engine) -> Phase:
    """How far the lines before we came say the launch is; IMPORT where they say nothing."""
    timeline = Timeline(engine)
    for line in LogReader(engine).feed(tail, 0.0, last=True):
        timeline.read(line.rank, line.text, 0.0)
    return timeline.common


def judge_attached(
    host: Host, run: Run, subject: Subject, arrival: Arrival, look_on: Callable[[Assessment], None]
) -> Judgement:
    """Watches and asks until one of the two knows; `subject.deadline_s` cuts it."""
    watcher = Watcher(host, run, subject.engine, limits=subject.limits, port=subject.port)
    begin = Phase.READY if arrival.up else arrival.phase
    watcher.enter(begin)
    asking = AttachedAsking(
        subject.target,
        subject.ready_log,
        lambda: host.clock_s() - run.started_s,
        up=arrival.up,
        gaps=subject.gaps,
    )
    judgement = observe(host, run, subject, watcher, look_on, asking=asking)
    judgement = with_gaps(judgement, subject.gaps(), run.started_s)
    if begin is not Phase.IMPORT:  # the watcher begins every launch there
        kept = tuple(span for span in judgement.phases if span.phase is not Phase.IMPORT)
        judgement = replace(judgement, phases=kept)
    return unasked(without_first_look(judgement), subject.target)


def without_first_look(judgement: Judgement) -> Judgement:
    """A port and processes seen for the first time are old: they were there before us."""

    def told(it: Evidence) -> Evidence:
        early = it.kind == "progress" and it.at_s < FIRST_LOOK_S
        return replace(it, text="no hard progress since we came") if early else it

    return replace(judgement, evidence=tuple(map(told, judgement.evidence)))


def judge_unseen(target: Target, clock: Callable[[], float]) -> Judgement:
    """By requests alone, where the server's processes are not on this machine or not ours to see."""
    report = check(target, deadline_s=CANARY_S, clock=clock)
    verdict, cause = report.verdict, report.cause
    if verdict is Verdict.HUNG:
        verdict = Verdict.UNDECIDED
        cause += "; its processes cannot be seen from here, so a hang cannot be told from a queue"
    judgement = Judgement(
        verdict=verdict,
        phase=Phase.SERVING,
        cause=cause,
        fingerprint=report.fingerprint,
        evidence=report.evidence,
        would_change=report.would_change,
        exited=False,
    )
    return unasked(judgement, target)


def attach_recorded(
    ledger: Ledger, record: TrialRecord, judge: Callable[[], Judgement], clock: Callable[[], float]
) -> TrialRecord:
    """One entry of the ledger around a judgement, as for a launch; what interrupts it leaves it open."""
    ledger.open_trial(record)
    began_s = clock()
    judgement = judge()
    ledger.close_trial(record.id, judgement, seconds=clock() - began_s)
    return ledger.trial(record.id)


class AttachedAsking(Asking):
    """Questions to a server that may have been up for days: if it is `up`, a silence is its answer."""

    def __init__(
        self,
        target: Target | None,
        ready_log: str | None,
        clock: Callable[[], float],
        *,
        up: bool,
        gaps: Callable[[], tuple[Gap, ...]] = tuple,
    ) -> None:
        super().__init__(target, ready_log, clock, gaps=gaps)
        self._up = up
        self._answering = up and target is not None  # a request is in flight as soon as it is sent

    def _is_worth_a_canary(self, seen: Readiness) -> bool:
        """Of a server that is up, all but "not yet, 503": the canary finds out what else it means."""
        return super()._is_worth_a_canary(seen) or (self._up and seen.failure is not None)


def unasked(judgement: Judgement, target: Target | None) -> Judgement:
    """A layer that was left out on purpose is no lack of the server's."""
    if target is None or target.logprobs is not LogprobStyle.NONE or target.engine == "transformers":
        return judgement

    def told(it: Evidence) -> Evidence:
        return replace(it, text=NOT_ASKED) if it.kind == "canary numeric" else it

    return replace(judgement, evidence=tuple(map(told, judgement.evidence)))
