"""What the marks a user stated make of a launch that serves.

It never measures one: `probe` asks the server, `asking` knows when it was ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shakedown.core import (
    Evidence,
    Expectation,
    Judgement,
    Mark,
    Measured,
    Phase,
    Verdict,
    missed_fingerprint,
)
from shakedown.watch import Assessment, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """The marks of one launch.

    `spread` is the share by which equal launches differ, where launches are to be compared; `cut` ends a
    launch that can no longer be ready in time.
    """

    expectations: tuple[Expectation, ...] = ()
    spread: float = 0.0
    cut: bool = False

    @property
    def ready(self) -> Expectation | None:
        return next((it for it in self.expectations if it.mark is Mark.READY_S), None)


def time_to_ready(expectation: Expectation, low_s: float, high_s: float, spread: float) -> Measured:
    """Ready was seen at `high_s`, and at `low_s` not yet."""
    return Measured(
        expectation=expectation,
        value=high_s,
        low=low_s / (1 + spread),
        high=high_s * (1 + spread),
        samples=1,
    )


def judge_marks(judgement: Judgement, measured: Sequence[Measured]) -> Judgement:
    """A launch that serves, or is called slow, once its marks are measured. Any other keeps its verdict."""
    judgement = replace(judgement, measured=tuple(measured))
    if judgement.verdict not in {Verdict.SERVES, Verdict.SLOW}:
        return judgement
    missed = [it for it in measured if it.met is False]
    if missed:
        return _missed(judgement, missed)
    open_ = [it for it in measured if it.met is None]
    if open_ and judgement.serves:
        said = "; ".join(f"{it}, stated {it.expectation}" if it.value else str(it) for it in open_)
        return replace(
            judgement,
            verdict=Verdict.UNDECIDED,
            cause=said,
            fingerprint="stated marks: undecided",
            would_change="less noise, or a mark further from what it does",
        )
    return judgement


def judge_late(expectation: Expectation, assessment: Assessment, spread: float) -> Judgement | None:
    """A launch that still moves and is past the time at which it should have been ready."""
    if assessment.state is not State.MOVING or assessment.now_s <= expectation.bound * (1 + spread):
        return None
    late = Measured(
        expectation=expectation,
        value=assessment.now_s,
        low=assessment.now_s / (1 + spread),
        samples=1,
        note=f"not ready, but in {assessment.phase}",
    )
    judgement = Judgement(
        verdict=Verdict.SLOW,
        phase=Phase.READY,
        phases=assessment.phases,
        evidence=assessment.evidence,
        exited=False,
        measured=(late,),
    )
    return _missed(judgement, [late])


def _missed(judgement: Judgement, missed: Sequence[Measured]) -> Judgement:
    said = "; ".join(f"{it}{_after(it)}, stated {it.expectation}" for it in missed)
    only_ready = all(it.expectation.mark is Mark.READY_S for it in missed)
    at_s = max((span.started_s for span in judgement.phases), default=0.0)
    return replace(
        judgement,
        verdict=Verdict.SLOW,
        phase=Phase.READY if only_ready else Phase.SERVING,
        cause=f"below a stated mark: {said}",
        fingerprint=missed_fingerprint(missed),
        evidence=(*judgement.evidence, Evidence(kind="stated mark", text=said, at_s=at_s)),
        would_change="; ".join(str(it.expectation) for it in missed),
    )


def _after(it: Measured) -> str:
    return f" and {it.note}" if it.note else ""
