"""The guesses a search can still prove, what their proofs lack, and when a failure must be shown anew.

It never asks for an experiment, and needs numpy only through the belief it is handed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shakedown.core import Factor, Purpose
from shakedown.isolate.arena import Reading
from shakedown.isolate.certify import WORKAROUND, Demand, Evidence, base_demand, demands, remedies
from shakedown.isolate.closure import Names
from shakedown.isolate.judge import Showing

if TYPE_CHECKING:
    from shakedown.isolate.beliefs import Belief, Guess

MOST_GUESSES = 8
SUSPECT_RATE = 0.5  # flake rate below which a set that failed is looked at again before it is believed
MOST_CONTROLS = 4
MOST_PURSUED = 3  # leads whose missing proofs raise the value of an experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An experiment that a certificate still lacks, and the probability that it will be needed."""

    kept: Names
    purpose: Purpose
    reason: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """A guess and the certificate it would need; `full` where no look could add to it."""

    guess: Guess
    demands: tuple[Demand, ...]
    full: bool


def find_leads(belief: Belief, evidence: Evidence, factors: Mapping[str, Factor]) -> tuple[Lead, ...]:
    """The likeliest guesses that can still be proven, likeliest first.

    Their probabilities are among such: what fails in another way when alone is no cause by itself.
    """
    found, barred = [], 0.0
    for guess in belief.guesses(MOST_GUESSES):
        if guess.sets:
            remedy = remedies(belief.arena, guess.sets, factors, evidence)[0]
            demanded = demands(belief.arena, guess.sets, remedy, evidence)
        else:
            demanded = (base_demand(belief.arena),)
        if any(evidence.bars(demand) for demand in demanded if demand.check != WORKAROUND):
            barred += guess.probability
        else:
            found.append((guess, demanded))
    return tuple(
        Lead(
            guess=replace(guess, probability=guess.probability / (1 - barred)),
            demands=demanded,
            full=not any(evidence.lacks(demand) for demand in demanded),
        )
        for guess, demanded in found
    )


def wanted(leads: Sequence[Lead], evidence: Evidence) -> list[Wanted]:
    """What the certificates of the first leads still lack."""
    return [
        Wanted(
            kept=demand.kept,
            purpose=demand.purpose,
            reason=demand.reason,
            probability=lead.guess.probability,
        )
        for lead in leads[:MOST_PURSUED]
        for demand in lead.demands
        if evidence.lacks(demand)
    ]


def control(rate: float, evidence: Evidence, *, odd: bool) -> Names | None:
    """The least set that failed, to be looked at again where a flake rate is only inferred, or where no
    hypothesis explains what was seen (`odd`).

    Passes that seem to contradict failures may be flakes, or a cause no hypothesis holds: a set
    that both failed and served tells, and so does one that fails again and again.
    """
    if (rate >= SUSPECT_RATE and not odd) or flaked(evidence):
        return None
    least = least_failing(evidence.readings)
    enough = evidence.tally(least).fails > MOST_CONTROLS
    return None if enough else least


def flaked(evidence: Evidence) -> bool:
    """Whether one configuration both failed and served."""
    kept = {reading.kept for reading in evidence.readings if reading.direct}
    return any(seen.fails and seen.serves for seen in map(evidence.tally, kept))


def least_failing(readings: Sequence[Reading]) -> Names:
    """The smallest set seen to fail; ties in order of name."""
    failing = [r.kept for r in readings if r.direct and r.showing is Showing.FAILS]
    return min(failing, key=lambda kept: (len(kept), sorted(kept)))
