"""Decides what has become of a launch from what was read of it: situation and limits in, decision out.

It never reads, waits or looks at a clock.
"""

from __future__ import annotations

from shakedown.core import Verdict
from shakedown.watch.crash import died_inside, ended
from shakedown.watch.hang import silent, stuck_at_once
from shakedown.watch.situation import Decision, Limits, Situation, State


def decide(s: Situation, limits: Limits) -> Decision:
    """The one question: moving, quiet, suspect, or over?"""
    if s.exit is not None:
        return ended(s, limits)
    if s.blind:
        return _unsupervised(s, limits)
    if (decision := died_inside(s, limits)) or (decision := stuck_at_once(s, limits)):
        return decision
    if s.quiet_s < limits.quiet_s:
        return Decision(state=State.MOVING)
    hang = silent(s, limits)
    if hang.state is State.QUIET:
        return hang
    if _met_again(s, limits, hang):
        return hang
    if s.quiet_s < s.budget_s:
        return Decision(state=State.QUIET)
    if s.rounds_over < limits.rounds:
        return Decision(state=State.SUSPECT, suspect=hang.suspect, note="looking at all stacks")
    return hang


def _unsupervised(s: Situation, limits: Limits) -> Decision:
    """Its silence says nothing any more. A moment is left for the leader, which may be dying with it."""
    if s.blind_s < limits.settle_s:
        return Decision(state=State.QUIET, note=s.blind)
    return Decision(
        state=State.FINAL,
        verdict=Verdict.UNDECIDED,
        cause=f"{s.blind} (out of memory?): its log is blind from then on, and it may be healthy",
        fingerprint="unsupervised",
        exited=False,
        environment=True,
        would_change="a supervisor that lives",
    )


def foresee(s: Situation, limits: Limits) -> Decision:
    """What a silence would be called if it lasted; to compare with an expected failure."""
    return silent(s, limits)


def cut_short(cause: str, *, moving: bool) -> Decision:
    """What a launch is called that was given no more time."""
    return Decision(
        state=State.FINAL,
        verdict=Verdict.SLOW if moving else Verdict.UNDECIDED,
        cause=cause,
        fingerprint="cut",
        would_change="more time",
    )


def _met_again(s: Situation, limits: Limits, hang: Decision) -> bool:
    known = limits.expected if s.met_expected_s >= 10.0 else None
    return known is not None and hang.verdict is not None and hang.matches(known, s.phase)
