"""What a search ended with, as the one record other rooms read.

It never asks for an experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shakedown.core import (
    Cause,
    CauseKind,
    Check,
    Conclusion,
    Ended,
    Experiment,
    Factor,
    Hypothesis,
    Judgement,
    Match,
    Oracle,
    Step,
    Workaround,
)
from shakedown.isolate.base import NO_RUNGS, Ladder, base_cause
from shakedown.isolate.certify import (
    ALONE,
    ONE_LESS,
    WORKAROUND,
    base_demand,
    check,
    demands_of,
)
from shakedown.isolate.closure import Names
from shakedown.isolate.judge import Showing, classify, compare
from shakedown.isolate.notebook import SearchLimits, Start, shows_nothing
from shakedown.isolate.prior import Clues
from shakedown.isolate.remedy import workaround
from shakedown.isolate.search import Finding, Search
from shakedown.isolate.tell import base_hypotheses, shown, suspect_hypothesis

MOST_SUSPECTS = 8
NOT_WHOLE = "a launch that would prove it shows nothing, each time"
MOST_MEMBERS = 3  # of a launch with more factors, all of them are never the answer unless proven


def _say_nothing(step: Step) -> None:
    """The default report."""


def _start_nothing(experiments: Sequence[Experiment]) -> None:
    """The default start: the oracle launches what it is asked for, one after the other."""


def isolate(
    factors: Sequence[Factor],
    oracle: Oracle,
    *,
    seed: int,
    clues: Clues | None = None,
    limits: SearchLimits | None = None,
    report: Callable[[Step], None] = _say_nothing,
    ladder: Ladder = NO_RUNGS,
    start: Start = _start_nothing,
) -> Conclusion:
    """Find and prove the cause of a failing launch with few experiments.

    With `limits.workers`, `start` is told what may run at once before the oracle is asked for each of it.

    The same factors (in any order), seed and outcomes lead to the same questions in the same order,
    so a search goes on by answering the first ones from a record. `BudgetSpent` from the oracle ends
    it with what is known; it passes through where it came before the first launch.
    """
    search = Search(
        factors,
        oracle,
        seed=seed,
        clues=clues or Clues(),
        limits=limits or SearchLimits(),
        report=report,
        ladder=ladder,
        start=start,
    )
    ended = search.run()
    return conclude_search(search, ended)


def conclude_search(search: Search, ended: Ended) -> Conclusion:
    causes = _causes(search)
    note = search.note
    assert ended is not Ended.PROVEN or causes, "proven, but nothing to blame"
    if ended is Ended.PROVEN and not all(cause.proven for cause in causes):
        ended, note = Ended.NOT_PROVEN, note or NOT_WHOLE
    blamed = frozenset[str]().union(*(finding.members for finding in search.findings))
    cleared, not_cleared = _cleared(search, blamed)
    probabilities = [f.probability for f in search.findings if f.probability is not None]
    return Conclusion(
        ended=ended,
        failing=_failing(search),
        causes=causes,
        suspects=() if ended is Ended.PROVEN else _suspects(search),
        cleared=cleared,
        not_cleared=not_cleared,
        other_failures=_other_failures(search),
        probability=min(probabilities) if probabilities else None,
        hypotheses=_hypotheses(search, causes),
        steps=tuple(search.book.steps),
        note=note,
    )


def _failing(search: Search) -> Judgement:
    assert search.failing is not None, "a conclusion before the first launch"
    return search.failing


def _causes(search: Search) -> tuple[Cause, ...]:
    if search.base is not None:
        arena = search.arena
        assert arena is not None, "a base cause without a search"
        evidence = search.inquiry.evidence(arena)
        safe_mode = check(evidence, [base_demand(arena)], {})
        return (base_cause(safe_mode, search.base),)
    return tuple(_cause(search, finding) for finding in search.findings)


def _cause(search: Search, finding: Finding) -> Cause:
    assert finding.members, "an empty cause"
    arena = finding.arena
    steps = search.book.steps
    instead = {
        step.outcome.trial_id: f"{step.outcome.trial_id}: {shown(step.outcome.judgement)}"
        for step in steps
        if classify(step.outcome.judgement, arena.target) in (Showing.OTHER, Showing.UNKNOWN)
        or compare(step.outcome.judgement.signature, arena.target) is Match.COMPATIBLE
        or step.outcome.judgement.passed is not None
    }
    demanded = demands_of(arena, finding.members, finding.evidence)
    certificate = [
        (name, check(finding.evidence, [demand for demand in demanded if demand.check == name], instead))
        for name in (ALONE, ONE_LESS)
    ]
    mentioned = finding.members & frozenset(name for name, _ in search.substitutes)
    cause = Cause(
        kind=CauseKind.FACTORS,
        factors=tuple(sorted(finding.members)),
        rung=None,
        certificate=(*certificate, (WORKAROUND, _workaround_check(search))),
        workaround=_workaround(search),
        value_note=search.value_note if mentioned or len(search.findings) == 1 else "",
    )
    whole = len(finding.members) == len(search.factors) > MOST_MEMBERS
    assert cause.proven or not whole, "everything is to blame: an error of the search"
    return cause


def _workaround(search: Search) -> Workaround | None:
    if search.serves is None:
        return None
    return workaround(list(search.factors.values()), search.serves, search.substitutes)


def _workaround_check(search: Search) -> Check:
    """The last word on the user's own command, less the members of all causes: whether it serves, or fails
    again and again."""
    if search.removal is None:
        return Check(value=None)
    kept = search.removal.kept if search.serves is None else search.serves
    looks = search.book.looks(kept, search.substitutes)
    told = [look for look in looks if look.judgement.passed is None and not shows_nothing(look)]
    bad = [look for look in told if not look.judgement.serves]
    refused = search.removal.left is not None and bad == told
    value = True if search.serves is not None else False if refused else None
    cited = told or looks
    odd = [f"{it.trial_id}: {shown(it.judgement)}" for it in cited if not it.judgement.serves]
    return Check(value=value, trial_ids=tuple(it.trial_id for it in cited), note="; ".join(odd))


def _cleared(search: Search, blamed: Names) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Factors shown innocent, and those of which nothing was shown.

    With a command that serves, innocent is what it keeps; else what the least failing set lacks.
    """
    if search.arena is None:
        return (), ()
    everything = frozenset(search.factors)
    if search.serves is not None:
        innocent = search.serves
    else:
        failing = [
            step.experiment.kept
            for step in search.book.steps
            if classify(step.outcome.judgement, _failing(search).signature) is Showing.FAILS
        ]
        innocent = everything - (_least(failing) if failing else everything)
    innocent -= blamed
    return tuple(sorted(innocent)), tuple(sorted(everything - innocent - blamed))


def _least(sets: Sequence[Names]) -> Names:
    return min(sets, key=lambda kept: (len(kept), sorted(kept)))


def _suspects(search: Search) -> tuple[tuple[str, float], ...]:
    """The likeliest factors, by what is believed now or, before any experiment, by the prior."""
    if search.base is not None:
        return ()
    if search.belief is not None:
        shares = dict(zip(search.belief.names, (float(b) for b in search.belief.blame()), strict=True))
    else:
        shares = search.weights
    rounded = [(name, round(share, 4)) for name, share in shares.items() if share > 0.005]
    return tuple(sorted(rounded, key=lambda item: (-item[1], item[0]))[:MOST_SUSPECTS])


def _other_failures(search: Search) -> tuple[tuple[str, str], ...]:
    """Failures that are neither the one searched for nor one of the causes found."""
    if search.failing is None or search.failing.serves:
        return ()
    targets = [search.failing.signature, *(finding.arena.target for finding in search.findings)]
    return tuple(
        (step.outcome.trial_id, shown(step.outcome.judgement))
        for step in search.book.steps
        if step.experiment.of_the_launch
        and all(classify(step.outcome.judgement, target) is Showing.OTHER for target in targets)
    )


def _hypotheses(search: Search, causes: Sequence[Cause]) -> tuple[Hypothesis, ...]:
    if search.arena is None or search.failing is None:
        return ()
    steps = search.book.steps
    found = base_hypotheses(steps, search.failing.signature)
    told: set[Names] = set()
    proven = {frozenset(cause.factors) for cause in causes if cause.proven}
    for finding in search.findings:
        told.add(finding.members)
        found.append(
            suspect_hypothesis(
                finding.members,
                steps,
                finding.arena,
                finding.members in proven,
                finding.probability or 1.0,
            )
        )
    for guess in search.belief.guesses(5) if search.belief else ():
        if len(guess.sets) == 1 and guess.sets[0] not in told:
            found.append(suspect_hypothesis(guess.sets[0], steps, search.arena, False, guess.probability))
    return tuple(found)
