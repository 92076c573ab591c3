"""Passing without having served: a program that says so, a launch that is past what was asked of it.

It sends nothing.
"""

from __future__ import annotations

from shakedown.core import Evidence, Judgement, Phase, Verdict
from shakedown.watch import Assessment, State

SETTLED_S = 5.0  # a failure at the end of a phase may be told after the next one's first line


class PassLine:
    """The line by which a rung says that it ran to its end and computed right."""

    def __init__(self, line: str) -> None:
        self._line = line

    def step(self, assessment: Assessment) -> Judgement | None:
        said = [seen.line.text for seen in assessment.new_lines if self._line in seen.line.text]
        if not said:
            return None
        evidence = Evidence(kind="passed", text=said[0], at_s=assessment.now_s)
        return Judgement(
            verdict=Verdict.SERVES,
            phase=Phase.READY,
            phases=assessment.phases,
            evidence=(evidence,),
            exited=False,
        )


class PassPhase:
    """A launch that has been in `phase`, or a later one, in good order for a while."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase
        self._since_s: float | None = None

    def step(self, assessment: Assessment) -> Judgement | None:
        here, now_s = assessment.phase, assessment.now_s
        healthy = assessment.state is State.MOVING and assessment.first_error is None
        if here.order < self._phase.order or not healthy:
            self._since_s = None
            return None
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s < SETTLED_S:
            return None
        return Judgement(
            verdict=Verdict.UNDECIDED,
            phase=here,
            phases=assessment.phases,
            evidence=(Evidence(kind="passed", text=f"in {here} and moving, so ended", at_s=now_s),),
            would_change="going on until it serves",
            exited=False,
            passed=here,
        )
