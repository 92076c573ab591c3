"""One plain sentence for what an experiment showed, and the hypotheses as records.

It never decides anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from shakedown.core import (
    Hypothesis,
    HypothesisState,
    Judgement,
    Match,
    Purpose,
    Signature,
    Step,
)
from shakedown.isolate.arena import Arena
from shakedown.isolate.certify import spoken
from shakedown.isolate.closure import Names
from shakedown.isolate.judge import Showing, classify, compare


def shown(judgement: Judgement) -> str:
    """What a launch did, in words: "crashed in weight_load: …"."""
    if judgement.serves:
        return "serves"
    if judgement.passed is not None:
        return f"reached {judgement.passed.value}, past where it failed, and was ended"
    where = f"{judgement.verdict.value} in {judgement.phase.value}"
    return f"{where}: {judgement.cause}" if judgement.cause else where


def conclude(
    purpose: Purpose, kept: Names, judgement: Judgement, arena: Arena, reason: str, *, sure: bool
) -> str:
    """What one experiment says about where the cause is. `sure`: the failure seems to show every time."""
    showing = classify(judgement, arena.target)
    if showing is Showing.UNKNOWN:
        return f"shows nothing ({shown(judgement)})"
    if showing is Showing.OTHER:
        return f"fails in another way ({shown(judgement)}): filed apart, counts neither way"
    if purpose is Purpose.VALUE:
        said = f"{reason}: {'fails the same' if showing is Showing.FAILS else 'serves'}"
    else:
        said = _located(purpose, kept, showing, arena)
        if judgement.passed is not None:
            said += f" (it {shown(judgement)})"
    if showing is Showing.FAILS and compare(judgement.signature, arena.target) is Match.COMPATIBLE:
        said += f" (a compatible failure: {shown(judgement)})"
    if showing is Showing.SERVES and not sure:
        said += " (one look, and it may not fail every time)"
    return said


def _located(purpose: Purpose, kept: Names, showing: Showing, arena: Arena) -> str:
    fails = showing is Showing.FAILS
    changed = arena.universe - kept
    if purpose in (Purpose.SAFE_MODE, Purpose.EVIDENCE):
        if fails and kept:
            return f"still fails with {spoken(kept)}, which you gave, and nothing else optional"
        if fails:
            return "fails without any optional flag: the flags are innocent"
        return f"serves without any optional flag: the cause is among the {len(arena.universe)} factors"
    if purpose is Purpose.PLAIN_NULL:
        if fails:
            return "fails with only the defaults on: the flags are innocent"
        return f"serves with the defaults on: the cause is among the {len(changed)} flags"
    missed = purpose is Purpose.ONE_LESS and len(changed) < len(kept)
    if purpose is Purpose.WORKAROUND or missed:
        without = f"your own command less {spoken(changed)}"
        return f"{without} {'still fails' if fails else 'serves'}"
    inside = kept - arena.floor
    if purpose is Purpose.ALONE:
        return f"{spoken(inside)} alone {'fails the same' if fails else 'does not fail'}"
    if purpose is Purpose.ONE_LESS:
        return (
            f"with {spoken(inside) or 'none of them'} only it {'still fails' if fails else 'does not fail'}"
        )
    if fails:
        return (
            f"still fails with {len(inside)} of {len(arena.variables)} back: {spoken(inside)} can do it alone"
        )
    return (
        f"serves with {len(inside)} of {len(arena.variables)} back: the cause needs one of {spoken(changed)}"
    )


def base_hypotheses(steps: Sequence[Step], target: Signature) -> list[Hypothesis]:
    """Base broken against one of the factors: what safe mode says of both."""
    nulls = [s for s in steps if s.experiment.purpose in (Purpose.SAFE_MODE, Purpose.PLAIN_NULL)]
    showings = [(classify(s.outcome.judgement, target), s.outcome.trial_id) for s in nulls]
    failed = tuple(trial for showing, trial in showings if showing is Showing.FAILS)
    served = tuple(trial for showing, trial in showings if showing is Showing.SERVES)
    base = _state(supported=bool(failed), refuted=bool(served) and not failed)
    flags = _state(supported=bool(served) and not failed, refuted=bool(failed))
    return [
        Hypothesis(
            statement="The base is broken: it fails whatever the flags are",
            predicts="safe mode fails the same way",
            state=base,
            trial_ids=failed or served,
        ),
        Hypothesis(
            statement="A flag, a variable or a default is to blame",
            predicts="safe mode serves",
            state=flags,
            trial_ids=served or failed,
        ),
    ]


def suspect_hypothesis(
    members: Names, steps: Sequence[Step], arena: Arena, proven: bool, probability: float
) -> Hypothesis:
    """A suspect: refuted by a failure without all of it or by the unlikeliness of what it predicts."""
    bearing = []
    alone, removed = arena.alone(members), arena.removed(members)
    for step in steps:
        if (step.experiment.kept in (alone, removed) and not step.experiment.substitutes) or (
            not members <= step.experiment.kept
            and classify(step.outcome.judgement, arena.target) is Showing.FAILS
        ):
            bearing.append(step.outcome.trial_id)
    name = spoken(members)
    return Hypothesis(
        statement=f"{name} {'is' if len(members) == 1 else 'together are'} to blame",
        predicts=f"{name} alone fails the same way; the command without it serves",
        state=_state(supported=proven, refuted=not proven and probability < 0.01),
        trial_ids=tuple(dict.fromkeys(bearing)),
    )


def _state(*, supported: bool, refuted: bool) -> HypothesisState:
    if supported:
        return HypothesisState.SUPPORTED
    return HypothesisState.REFUTED if refuted else HypothesisState.OPEN
