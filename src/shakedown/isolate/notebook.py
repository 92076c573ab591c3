"""Every experiment of one search in order, and the only place that asks the oracle.

It never asks twice what it knows, unless told to look again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shakedown.core import Experiment, Oracle, Outcome, Purpose, Step, Verdict
from shakedown.errors import BudgetSpent

MOST_RANKED = 12  # factors whose standing is kept with a step
Substitutes = tuple[tuple[str, tuple[str, ...]], ...]
Start = Callable[[Sequence[Experiment]], None]  # launches that the oracle is asked for a moment later


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """How far a search may go.

    `repeats`: looks at a launch that serves at first (1: once, and it is nothing to isolate).
    `workers`: launches that may run at once; a proof has nothing beside it.
    `pass_s`: what a launch that serves takes, where that is known before one was seen.
    `lowest_rate`: a failure that shows more rarely is not searched but should be amplified.
    """

    max_launches: int = 100
    workers: int = 1
    pass_s: float | None = None
    repeats: int = 1
    max_causes: int = 3
    max_values: int = 4
    lowest_rate: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Expected seconds of a launch that fails and of one that serves."""

    fail_s: float
    pass_s: float


class Inconclusive(Exception):
    """An experiment showed nothing twice, so the search cannot go on."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.trial_id)
        self.outcome = outcome


class Notebook:
    """Steps so far. `look` returns what is known or asks; each asking is reported with a sentence."""

    def __init__(
        self, oracle: Oracle, report: Callable[[Step], None], limits: SearchLimits, start: Start
    ) -> None:
        self.steps: list[Step] = []
        self._oracle = oracle
        self._start = start
        self._report = report
        self._limits = limits

    def look(
        self,
        kept: frozenset[str],
        purpose: Purpose,
        reason: str,
        tell: Callable[[Outcome], str],
        *,
        again: bool = False,
        substitutes: Substitutes = (),
        debug: bool = False,
        rung: str = "",
    ) -> Outcome:
        """What this configuration showed last; a new launch if it is new, or `again` is set.

        An outcome that shows nothing (undecided, or the surroundings failed) is retried once.
        Raises `BudgetSpent`, and `Inconclusive` when the surroundings fail twice.
        """
        wanted = Experiment(
            kept=kept, purpose=purpose, reason=reason, substitutes=substitutes, debug=debug, rung=rung
        )
        before = [step for step in self.steps if _same_configuration(step.experiment, wanted)]
        if before and not again:
            return before[-1].outcome
        outcome = self._ask(wanted, len(before), tell)
        if shows_nothing(outcome):
            outcome = self._ask(wanted, len(before) + 1, tell)
            if outcome.judgement.environment:
                raise Inconclusive(outcome)
        return outcome

    def looks(self, kept: frozenset[str], substitutes: Substitutes = ()) -> list[Outcome]:
        """What a launch of this configuration showed, each time; no rung and no debugging run of it."""
        wanted = (kept, substitutes)
        return [
            step.outcome
            for step in self.steps
            if (step.experiment.kept, step.experiment.substitutes) == wanted and step.experiment.of_the_launch
        ]

    def begin(self, wanted: Sequence[tuple[frozenset[str], Purpose, str]]) -> None:
        """Starts looks at once, as far as the budget goes; `look` asks for them later, in this order."""
        begun: list[Experiment] = []
        for kept, purpose, reason in wanted[: self._limits.max_launches - len(self.steps)]:
            each = Experiment(kept=kept, purpose=purpose, reason=reason)
            known = [*(step.experiment for step in self.steps), *begun]
            begun.append(replace(each, repeat=sum(_same_configuration(other, each) for other in known)))
        self._start(begun)

    def rank(self, suspicion: Mapping[str, float]) -> None:
        """Notes with the last step how suspected the factors are after it."""
        ranked = sorted(((name, round(share, 4)) for name, share in suspicion.items()), key=_likeliest)
        top = tuple(item for item in ranked[:MOST_RANKED] if item[1] > 0)
        self.steps[-1] = replace(self.steps[-1], ranking=top)

    def costs(self) -> Costs:
        """Means of the launches so far; one that serves is priced as the limits say until it was seen."""
        fail_s = self._mean_seconds(serving=False) or 1.0
        pass_s = self._mean_seconds(serving=True) or self._limits.pass_s or fail_s
        return Costs(fail_s=fail_s, pass_s=pass_s)

    def _mean_seconds(self, *, serving: bool) -> float | None:
        seconds = [
            step.outcome.seconds
            for step in self.steps
            if (step.outcome.judgement.serves or step.outcome.judgement.passed is not None) is serving
            and not shows_nothing(step.outcome)
            and step.experiment.of_the_launch
        ]
        return sum(seconds) / len(seconds) if seconds else None

    def _ask(self, wanted: Experiment, repeat: int, tell: Callable[[Outcome], str]) -> Outcome:
        if len(self.steps) >= self._limits.max_launches:
            raise BudgetSpent(f"{len(self.steps)} launches are spent")
        experiment = replace(wanted, repeat=repeat)
        outcome = self._oracle(experiment)
        step = Step(experiment=experiment, outcome=outcome, concluded=tell(outcome))
        self.steps.append(step)
        self._report(step)
        return outcome


def _likeliest(item: tuple[str, float]) -> tuple[float, str]:
    return -item[1], item[0]


def shows_nothing(outcome: Outcome) -> bool:
    judgement = outcome.judgement
    return judgement.environment or (judgement.verdict is Verdict.UNDECIDED and judgement.passed is None)


def _same_configuration(a: Experiment, b: Experiment) -> bool:
    return (a.kept, a.substitutes, a.debug, a.rung) == (b.kept, b.substitutes, b.debug, b.rung)
