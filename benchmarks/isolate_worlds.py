"""Launches with planted causes, to simulate isolation: what fails, how often, and what points at it.

It knows no contestant.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import StrEnum

from shakedown.core import Experiment, Factor, FactorKind, Judgement, Outcome, Phase, Verdict, Wait
from shakedown.isolate.closure import Dependencies

Causes = tuple[frozenset[str], ...]

SHIFT = 1.5  # of the evidence for a guilty factor, in deviations of its noise
DEPENDENT = 0.25
FAIL_S, PASS_S = 60.0, 120.0


class Kind(StrEnum):
    BASE = "base"
    ONE = "one"
    TWO = "two"
    THREE = "three"
    APART = "apart"  # two causes, each enough alone
    GONE = "gone"  # it was seen once and never shows again


SIZES = {Kind.BASE: 0, Kind.ONE: 1, Kind.TWO: 2, Kind.THREE: 3, Kind.APART: 2, Kind.GONE: 0}
MIX = {Kind.BASE: 0.20, Kind.ONE: 0.55, Kind.TWO: 0.20, Kind.THREE: 0.05}


class Clue(StrEnum):
    """What the prior is told: the evidence as it is, nothing, or its contrary."""

    TOLD = "prior"
    NONE = "flat"
    TURNED = "inverted"


SIGNS = {Clue.TOLD: 1.0, Clue.NONE: 0.0, Clue.TURNED: -1.0}

FAILURES = {
    "crash": Judgement(
        verdict=Verdict.CRASHED, phase=Phase.WARM_UP, cause="ValueError: x", fingerprint="ValueError: x"
    ),
    "hang": Judgement(
        verdict=Verdict.HUNG,
        phase=Phase.GRAPH_CAPTURE,
        wait=Wait.WAITING,
        cause="no rank moves",
        fingerprint="x",
    ),
    "serving": Judgement(
        verdict=Verdict.HUNG, phase=Phase.SERVING, wait=Wait.WAITING, cause="no token", fingerprint="x"
    ),
}
SERVES = Judgement(verdict=Verdict.SERVES, phase=Phase.SERVING)
REFUSED = Judgement(verdict=Verdict.CRASHED, phase=Phase.CONFIG, cause="refused", fingerprint="refused")


@dataclass(slots=True)
class World:
    """One case. `causes`: sets each enough alone; one empty set is a broken base, none at all is "gone"."""

    kind: Kind
    factors: list[Factor]
    needs: Dependencies
    causes: Causes
    q: float
    weights: dict[str, float]
    random: random.Random
    failure: Judgement
    launches: int = 0
    seconds: float = 0.0
    begun: bool = False

    @property
    def everything(self) -> frozenset[str]:
        return frozenset(factor.name for factor in self.factors)

    def launch(self, kept: frozenset[str]) -> Judgement:
        """The first look at everything shows the failure, or nobody would search. A factor without what
        it needs is refused."""
        self.launches += 1
        brought = kept == self.everything and not self.begun
        self.begun = self.begun or brought
        if self.needs.closed(kept) != kept:
            judgement = REFUSED
        else:
            can = any(cause <= kept for cause in self.causes)
            fails = can and (brought or self.random.random() < self.q)
            judgement = self.failure if fails else SERVES
        self.seconds += PASS_S if judgement.serves else FAIL_S
        return judgement

    def oracle(self, experiment: Experiment) -> Outcome:
        judgement = self.launch(experiment.kept)
        seconds = PASS_S if judgement.serves else FAIL_S
        return Outcome(trial_id=f"t{self.launches}", judgement=judgement, seconds=seconds)


def make_world(kind: Kind, count: int, q: float, seed: str, clue: Clue, failure: str) -> World:
    rng = random.Random(seed)
    names = [f"f{index:02d}" for index in range(count)]
    needs = {
        name: frozenset({rng.choice(names[:at])}) if at and rng.random() < DEPENDENT else frozenset[str]()
        for at, name in enumerate(names)
    }
    factors = [
        Factor(name=n, kind=FactorKind.FLAG, was="on", now="", needs=needs[n], dear=rng.randrange(5))
        for n in names
    ]
    dependencies = Dependencies(factors)
    while True:
        drawn = frozenset(rng.sample(names, SIZES[kind]))
        if dependencies.core(drawn) == drawn:
            break
    causes: Causes = tuple(frozenset({n}) for n in sorted(drawn)) if kind is Kind.APART else (drawn,)
    scores = {n: rng.gauss(SHIFT if n in drawn else 0.0, 1.0) for n in names}
    return World(
        kind=kind,
        factors=factors,
        needs=dependencies,
        causes=() if kind is Kind.GONE else causes,
        q=q,
        weights={n: math.exp(SIGNS[clue] * SHIFT * score) for n, score in scores.items()},
        random=random.Random(f"{seed}!"),
        failure=FAILURES[failure],
    )
