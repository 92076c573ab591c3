"""Below safe mode: which of the simpler things that the launch stands on does not work.

It runs nothing: rungs are looked at through the notebook, like launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shakedown.core import Cause, CauseKind, Check, Judgement, Match, Outcome, Rung, Verdict, Workaround
from shakedown.isolate.judge import compare
from shakedown.isolate.notebook import shows_nothing
from shakedown.isolate.tell import shown

UNTRIED = Check(value=None, note="no rung was tried")
NOTHING_SIMPLER = Check(value=None, note="nothing simpler passed")
NONE_FAILED = Check(value=None, note="no rung was seen to fail")
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
    is what safe mode has beyond the last of them; one that settles nothing may itself be what is broken.
    """
    below = NOTHING_SIMPLER
    # Made-up weights answer wrongly whatever is broken, and fewer layers are faster whatever slows them.
    incomparable = top.judgement.verdict in (Verdict.WRONG, Verdict.SLOW)
    for rung in ladder.rungs:
        if rung.same and incomparable:
            continue
        looks = [look(rung, False)]
        if _fails(rung, looks[0], top):
            looks.append(look(rung, True))
            if _fails(rung, looks[1], top):
                return RungFinding(
                    rung=rung.name,
                    rung_fails=_seen(looks, top.judgement),
                    next_simpler_passes=below,
                    workaround_serves=NO_CURE,
                )
        below = _held(rung, looks)
    if incomparable or not ladder.beyond or not below.value:
        return NO_LADDER if below is NOTHING_SIMPLER else _untold(below)
    return RungFinding(
        rung=ladder.beyond,
        rung_fails=_seen((top,), top.judgement),
        next_simpler_passes=below,
        workaround_serves=NO_CURE,
    )


def _fails(rung: Rung, outcome: Outcome, top: Outcome) -> bool:
    """Whether it shows the rung broken: not by chance of the surroundings, nor in a way of its own."""
    if outcome.judgement.serves or shows_nothing(outcome):
        return False
    return (
        not rung.same or compare(outcome.judgement.signature, top.judgement.signature) is not Match.DIFFERENT
    )


def _held(rung: Rung, looks: Sequence[Outcome]) -> Check:
    """What a rung that was not shown to be broken says of those above it."""
    ids = tuple(outcome.trial_id for outcome in looks)
    if all(outcome.judgement.serves for outcome in looks):
        return Check(value=True, trial_ids=ids)
    said = ", then ".join(shown(outcome.judgement) for outcome in looks)
    return Check(value=None, trial_ids=ids, note=f"{rung.name} settles nothing: {said}")


def _untold(last: Check) -> RungFinding:
    """No rung failed, and what is left above the last of them cannot be blamed, or not be named."""
    if last.value:
        last = replace(last, value=None, note="every rung that was tried passes")
    return RungFinding(
        rung=None, rung_fails=NONE_FAILED, next_simpler_passes=last, workaround_serves=NONE_FAILED
    )


def _seen(failed: Sequence[Outcome], failing: Judgement) -> Check:
    ids = tuple(outcome.trial_id for outcome in failed)
    found = failed[0].judgement
    if found.verdict is failing.verdict:
        return Check(value=True, trial_ids=ids)
    said = f"there it is {found.verdict.value}: {found.cause}"
    return Check(value=True, trial_ids=ids, note=said)


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
