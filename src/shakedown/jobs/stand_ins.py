"""A search on a cheap stand-in of the launch first, where that pays: made-up weights and few layers.

What it finds is never an answer: it is the first guess of the search on the launch itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from shakedown.core import (
    Conclusion,
    Ended,
    Experiment,
    Factor,
    Hypothesis,
    HypothesisState,
    Outcome,
    Phase,
    Purpose,
    Verdict,
)
from shakedown.errors import BudgetSpent
from shakedown.isolate import Clues, isolate
from shakedown.isolate.judge import Showing, classify
from shakedown.isolate.nulls import AS_GIVEN
from shakedown.jobs.costs import Costs
from shakedown.jobs.oracle import TrialOracle

LOADING = frozenset({Phase.DOWNLOAD, Phase.WEIGHT_LOAD, Phase.POST_LOAD})
MISLED = 0.15  # share of stand-ins whose cause is not the launch's
CONFIRMING = 3  # launches that prove a guess: safe mode, the cause alone, the workaround
WORTH = 0.3  # tried where it pays already if one stand-in in three fails like the launch
LEAST_SAVED_S = 30.0
ALIKE = "does a stand-in (made-up weights, few layers) fail the same?"
TRUSTED = 50.0  # weight of what the stand-in blames; a third of the prior stays uniform all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Seconds of a launch and of its stand-in, and how many launches a search is expected to take."""

    real_s: float
    stand_in_s: float
    launches: int

    @property
    def break_even(self) -> float:
        """The chance of failing alike above which a stand-in pays; infinite where it never does."""
        saved = (self.launches - CONFIRMING - MISLED * self.launches) * self.real_s
        saved -= (self.launches - 1) * self.stand_in_s
        return self.stand_in_s / saved if saved > 0 else float("inf")

    @property
    def pays(self) -> bool:
        whole_s = self.launches * (self.real_s - self.stand_in_s)
        return self.break_even <= WORTH and whole_s >= LEAST_SAVED_S


def price_of(failing: Outcome, costs: Costs, factors: int) -> Price | None:
    """None where no stand-in could show the failure: it is about the weights, or comes before them."""
    judgement = failing.judgement
    late = judgement.phase.order > Phase.POST_LOAD.order
    if judgement.verdict not in {Verdict.CRASHED, Verdict.HUNG} or not late:
        return None
    after = costs.after(failing)
    real_s = (after.fails.median_s + after.serves.median_s) / 2
    spans = [span for span in judgement.phases if span.phase in LOADING and span.ended_s is not None]
    loading_s = sum(
        max((span.ended_s or 0.0) - span.started_s for span in spans if span.phase is phase)
        for phase in {span.phase for span in spans}
    )
    return Price(real_s=real_s, stand_in_s=max(real_s - loading_s, 1.0), launches=costs.launches(factors))


def search_stand_in(
    oracle: TrialOracle, factors: tuple[Factor, ...], failing: Outcome, **search: Any
) -> Conclusion | None:
    """What a search on the stand-in found; None where it does not fail like the launch.

    `search`: what `isolate` takes besides factors and oracle.
    """

    def on_stand_in(experiment: Experiment) -> Outcome:
        return oracle(replace(experiment, stand_in=True))

    try:
        first = replace(as_given(factors), reason=ALIKE, stand_in=True)
        shown = oracle.look_ahead(first)
        if classify(shown.judgement, failing.judgement.signature) is not Showing.FAILS:
            return None
        return isolate(factors, on_stand_in, **search)
    except BudgetSpent:
        return None


def as_given(factors: Iterable[Factor]) -> Experiment:
    """The first experiment of every search."""
    kept = frozenset(factor.name for factor in factors)
    return Experiment(kept=kept, purpose=Purpose.REPRODUCE, reason=AS_GIVEN)


def with_guess(clues: Clues, found: Conclusion | None) -> Clues:
    """The clues for the search on the launch itself: what a stand-in proved is suspected first."""
    if found is None or found.ended is not Ended.PROVEN:
        return clues
    blamed = {name: TRUSTED for cause in found.causes for name in cause.factors}
    return replace(clues, weights={**clues.weights, **blamed})


def joined(found: Conclusion | None, conclusion: Conclusion) -> Conclusion:
    """The conclusion about the launch, with the steps on the stand-in and what came of its guess."""
    if found is None:
        return conclusion
    names, proven = ({name for cause in it.causes for name in cause.factors} for it in (found, conclusion))
    guess = " and ".join(sorted(names)) or "no factor"
    state = HypothesisState.OPEN
    if found.ended is Ended.PROVEN and conclusion.ended is Ended.PROVEN:
        state = HypothesisState.SUPPORTED if names == proven else HypothesisState.REFUTED
    hypothesis = Hypothesis(
        statement=f"A stand-in with made-up weights and few layers: {guess} is to blame",
        predicts="the launch itself fails by it, too",
        state=state,
        trial_ids=tuple(step.outcome.trial_id for step in found.steps),
    )
    return replace(
        conclusion,
        steps=found.steps + conclusion.steps,
        hypotheses=(*conclusion.hypotheses, hypothesis),
    )
