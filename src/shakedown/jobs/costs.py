"""What a search may cost, from what the ledger has seen of this engine and model.

It decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shakedown.core import WEIGHTS_FACT, Judgement, LogNormal, Outcome, Phase, Verdict
from shakedown.isolate import forecast, time_to
from shakedown.isolate.judge import safely_past
from shakedown.ledger import MODEL_FACT, Ledger
from shakedown.trial.passing import SETTLED_S

UNKNOWN_LAUNCH_S = 60.0  # of an engine the ledger has not seen
UNKNOWN_LAUNCH_SPREAD = 0.7  # half of all first launches of anything take between 0.6 and 1.6 times that
ASKING_S = 10.0  # a canary and a gentle end


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """How long a launch takes that fails or serves, and what that is known from."""

    fails: LogNormal
    serves: LogNormal
    phases: Mapping[Phase, LogNormal]
    basis: str

    def words(self, factors: int, max_launches: int) -> str:
        cost = forecast(factors, fails=self.fails, passes=self.serves, max_launches=max_launches)
        return (
            f"may cost about {cost.launches} launches and {_minutes(cost.seconds)}, 19 times of 20 at most "
            f"{cost.at_most_launches} and {_minutes(cost.at_most_seconds)} ({self.basis}); "
            f"never more than {max_launches} launches"
        )

    def launches(self, factors: int) -> int:
        return forecast(factors, fails=self.fails, passes=self.serves).launches

    def after(self, failing: Outcome) -> Costs:
        """Once the failure is known: it takes this long to show, and launches end where they are past it."""
        fails = LogNormal.of([failing.seconds])
        past = safely_past(failing.judgement.signature)
        if not self.phases:
            serves = fails
        elif past is None:
            serves = self.serves
        else:
            settled = LogNormal(median_s=SETTLED_S, spread=0.0)
            serves = LogNormal.sum([time_to(self.phases, past), settled])
            serves = min(serves, self.serves, key=lambda time: time.mean_s)
        where = f"it fails after {failing.seconds:.0f} s"
        early = f", others end past {failing.judgement.phase}" if past is not None else ""
        return Costs(fails=fails, serves=serves, phases=self.phases, basis=where + early)


def costs_of(ledger: Ledger, engine: str, facts: Mapping[str, str]) -> Costs:
    """Of this model where it was launched before, else of the engine with the load reckoned by bytes."""
    model = facts.get(MODEL_FACT, "")
    phases = ledger.phase_times(engine, model)
    basis = "from earlier launches"
    if not phases and (phases := dict(ledger.phase_times(engine, None))):
        basis = "from launches of other models"
        weights, rate = facts.get(WEIGHTS_FACT, ""), ledger.load_rate(engine)
        if weights.isdecimal() and rate is not None:
            phases[Phase.WEIGHT_LOAD] = LogNormal.of([int(weights) / rate])
            basis += f", {int(weights) / 1e9:.1f} GB at {rate / 1e9:.2f} GB/s"
    if not phases:
        known_s = ledger.average_seconds(engine, model)
        guess = LogNormal(median_s=known_s or UNKNOWN_LAUNCH_S, spread=UNKNOWN_LAUNCH_SPREAD)
        said = "as earlier ones that failed" if known_s else "which is a guess"
        return Costs(fails=guess, serves=guess, phases={}, basis=f"at {guess.median_s:.0f} s each, {said}")
    asking = LogNormal(median_s=ASKING_S, spread=0.3)
    serves = LogNormal.sum([time_to(phases, Phase.READY), asking])
    failed_s = ledger.average_seconds(engine, model, Verdict.CRASHED)
    return Costs(
        fails=LogNormal.of([failed_s]) if failed_s else serves, serves=serves, phases=phases, basis=basis
    )


def refines(judgement: Judgement) -> bool:
    """Whether the first look says what the further ones cost."""
    return not judgement.serves and judgement.verdict is not Verdict.UNDECIDED


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
