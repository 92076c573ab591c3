"""The guesses a search can still prove, what their proofs lack, and when a failure must be shown anew.

It never asks for an experiment, and needs numpy only through the belief it is handed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shakedown.core import Factor, Purpose
from shakedown.isolate.arena import Arena, Reading
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

    Their probabilities are among such: what fails in another way when alone is no cause by itself. What
    shows nothing may be one all the same: where it stands apart, the other is a cause with or without it.
    """
    found: list[tuple[Guess, tuple[Demand, ...]]] = []
    untold: list[Guess] = []
    barred = 0.0
    for guess in belief.guesses(MOST_GUESSES):
        demanded = _demanded(guess, belief.arena, evidence, factors)
        needed = [demand for demand in demanded if demand.check != WORKAROUND]
        if any(map(evidence.bars, needed)):
            barred += guess.probability
        elif len(guess.sets) != 1 and any(map(evidence.stays_open, needed)):
            untold.append(guess)  # a pair, or the base: that must have been seen to fail
        else:
            found.append((guess, demanded))
    leads = [
        Lead(
            guess=replace(guess, probability=(guess.probability + _within(guess, untold)) / (1 - barred)),
            demands=demanded,
            full=not any(map(evidence.lacks, demanded)),
        )
        for guess, demanded in found
    ]
    return tuple(sorted(leads, key=lambda lead: -round(lead.guess.probability, 12)))


def _demanded(
    guess: Guess, arena: Arena, evidence: Evidence, factors: Mapping[str, Factor]
) -> tuple[Demand, ...]:
    if not guess.sets:
        return (base_demand(arena),)
    return demands(arena, guess.sets, remedies(arena, guess.sets, factors, evidence)[0], evidence)


def _within(guess: Guess, pairs: Sequence[Guess]) -> float:
    """The probability that a cause is one of two, of the other of which nothing can be told."""
    return sum(pair.probability for pair in pairs if len(guess.sets) == 1 and guess.sets[0] in pair.sets)


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
