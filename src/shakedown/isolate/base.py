"""Below safe mode: which of the simpler things that the launch stands on does not work.

It runs nothing: rungs are looked at through the notebook, like launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shakedown.core import Cause, CauseKind, Check, Judgement, Match, Outcome, Rung, Verdict, Workaround
from shakedown.isolate.judge import compare
from shakedown.isolate.notebook import shows_nothing

UNTRIED = Check(value=None, note="no rung was tried")
NO_CURE = Check(value=None, note="its engine offers no other choice to try")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """What a launch stands on, the simplest first.

    `beyond`: what safe mode has beyond the last rung, "" where it cannot be named. `cures`: (factor,
    tokens) that may make the user's own command serve.
    """

    rungs: tuple[Rung, ...] = ()
    beyond: str = ""
    cures: tuple[tuple[str, tuple[str, ...]], ...] = ()


NO_RUNGS = Ladder()


@dataclass(frozen=True, slots=True, kw_only=True)
class RungFinding:
    """How far down it fails: `rung` is the lowest rung that does, and the next simpler one passes."""

    rung: str | None
    rung_fails: Check
    next_simpler_passes: Check
    workaround_serves: Check = UNTRIED
    workaround: Workaround | None = None

    @property
    def proven(self) -> bool:
        return bool(self.rung_fails.value and self.next_simpler_passes.value)


NO_LADDER = RungFinding(rung=None, rung_fails=UNTRIED, next_simpler_passes=UNTRIED)


def climb(ladder: Ladder, look: Callable[[Rung, bool], Outcome], top: Outcome) -> RungFinding:
    """From the simplest rung up to the first that fails, twice: all above it stands on it.

    `look(rung, again)` runs one; `top` is safe mode, which failed. Where every rung passes, what is left
    is what safe mode has beyond the last of them.
    """
    below: Outcome | None = None
    # Made-up weights answer wrongly whatever is broken, and fewer layers are faster whatever slows them.
    incomparable = top.judgement.verdict in (Verdict.WRONG, Verdict.SLOW)
    for rung in ladder.rungs:
        if rung.same and incomparable:
            continue
        outcome = look(rung, False)
        if not outcome.judgement.serves:
            if shows_nothing(outcome) or (rung.same and _differs(outcome, top)):
                continue
            second = look(rung, True)
            if not second.judgement.serves:
                return RungFinding(
                    rung=rung.name,
                    rung_fails=_seen((outcome, second), top.judgement),
                    next_simpler_passes=_passes(below),
                    workaround_serves=NO_CURE,
                )
            outcome = second  # it failed once and passed once: nothing is proven by that
        below = outcome
    if below is None or incomparable or not ladder.beyond:
        return NO_LADDER
    return RungFinding(
        rung=ladder.beyond,
        rung_fails=_seen((top,), top.judgement),
        next_simpler_passes=_passes(below),
        workaround_serves=NO_CURE,
    )


def _differs(outcome: Outcome, top: Outcome) -> bool:
    return compare(outcome.judgement.signature, top.judgement.signature) is Match.DIFFERENT


def _seen(failed: Sequence[Outcome], failing: Judgement) -> Check:
    ids = tuple(outcome.trial_id for outcome in failed)
    found = failed[0].judgement
    if found.verdict is failing.verdict:
        return Check(value=True, trial_ids=ids)
    said = f"there it is {found.verdict.value}: {found.cause}"
    return Check(value=True, trial_ids=ids, note=said)


def _passes(below: Outcome | None) -> Check:
    if below is None:
        return Check(value=None, note="nothing simpler passed")
    return Check(value=True, trial_ids=(below.trial_id,))


def base_cause(safe_mode_fails: Check, finding: RungFinding) -> Cause:
    return Cause(
        kind=CauseKind.BASE,
        factors=(),
        rung=finding.rung,
        certificate=(
            ("safe_mode_fails", safe_mode_fails),
            ("rung_fails", finding.rung_fails),
            ("next_simpler_passes", finding.next_simpler_passes),
            ("workaround_serves", finding.workaround_serves),
        ),
        workaround=finding.workaround,
    )
