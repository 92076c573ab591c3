"""An engine's rounds beside a reference's on the same text: equal within a margin, below it, or undecided.

It computes no draft: what the reference would have had accepted after each token is handed in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from shakedown.acceptance.rounds import Placed, Tally
from shakedown.acceptance.statistics import (
    Equivalence,
    Estimate,
    Interval,
    clusters_needed,
    equivalence,
    paired_difference,
)

FEWEST_REQUESTS = 8  # below, Student's t over requests says nothing worth a verdict


class Standing(StrEnum):
    """Where an engine's tokens a round stand against what the reference gives on the same text."""

    EQUAL = "equal"  # certainly within the margin
    BELOW = "below"  # certainly below it
    ABOVE = "above"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One request: tokens and rounds of the engine and of the reference, and how many rounds came out alike
    of those that both began at the same token (None where the engine's rounds are not known one by one)."""

    engine: Tally
    reference: Tally
    alike: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`needed`: requests that would decide it, where these do not. `alike`: of `rounds` begun alike.
    `to_the_end`: what is expected of the answers up to the model's own end; None where that is not known."""

    standing: Standing
    expected: Interval
    difference: Interval
    margin: float
    requests: int
    rounds: int
    alike: float | None
    needed: int | None
    conditional: tuple[Interval, ...] = ()  # of the reference, by position
    to_the_end: Interval | None = None
    block: int = 1  # answers of each request that is counted: of blocks only sums are told

    @property
    def needed_rounds(self) -> int | None:
        return math.ceil(self.needed * self.rounds / self.requests) if self.needed and self.requests else None


def pair_rounds(placed: Sequence[Placed], reference: NDArray[np.float64]) -> Pair:
    """`reference[p, j]`: whether draft j of a round begun at p is accepted once those before it were; the
    reference is asked at the very places where the engine's rounds began."""
    passed = np.cumprod(reference, axis=1).sum(axis=1).round().astype(int)
    drafts = reference.shape[1]
    kept = [each for each in placed if each.start < len(passed)]
    ours = [int(passed[each.start]) for each in kept]
    return Pair(
        engine=Tally.of_rounds([each.accepted for each in kept], drafts),
        reference=Tally.of_rounds(ours, drafts),
        alike=sum(each.accepted == other for each, other in zip(kept, ours, strict=True)),
    )


def compare(pairs: Sequence[Pair], expected: Interval, margin: float, *, alpha: float = 0.05) -> Comparison:
    """Two one-sided tests of the difference, engine less reference, by request.

    Where every request is alike the spread is nothing, and the number of requests alone is the proof.
    """
    pairs = [pair for pair in pairs if pair.engine.rounds and pair.reference.rounds]
    rounds = sum(pair.engine.rounds for pair in pairs)
    known = [pair.alike for pair in pairs if pair.alike is not None]
    alike = sum(known) / rounds if pairs and len(known) == len(pairs) else None
    if not pairs:
        nothing = Interval(value=0.0, low=None, high=None)
        return Comparison(
            standing=Standing.UNDECIDED,
            expected=expected,
            difference=nothing,
            margin=margin,
            requests=0,
            rounds=0,
            alike=None,
            needed=FEWEST_REQUESTS,
        )
    found = paired_difference(
        ([p.engine.tokens for p in pairs], [p.engine.rounds for p in pairs]),
        ([p.reference.tokens for p in pairs], [p.reference.rounds for p in pairs]),
    )
    test = equivalence(found, margin, alpha=alpha)
    standing = stand(test, len(pairs))
    return Comparison(
        standing=standing,
        expected=expected,
        difference=test.difference,
        margin=margin,
        requests=len(pairs),
        rounds=rounds,
        alike=alike,
        needed=None if standing is not Standing.UNDECIDED else needed(found, margin, alpha),
    )


def stand(test: Equivalence, requests: int) -> Standing:
    low, high = test.difference.low, test.difference.high
    if requests < FEWEST_REQUESTS or low is None or high is None:
        return Standing.UNDECIDED
    if test.equivalent:
        return Standing.EQUAL
    if high < -test.margin:
        return Standing.BELOW
    return Standing.ABOVE if low > test.margin else Standing.UNDECIDED


def needed(found: Estimate, margin: float, alpha: float) -> int:
    """Requests that decide it either way, if the difference stays where it is."""
    if not math.isfinite(found.standard_error):
        return FEWEST_REQUESTS
    spread = found.standard_error * math.sqrt(found.clusters)
    away = abs(abs(found.value) - margin)
    least = max(away, margin / 10)  # a difference on the margin itself would never be decided
    return max(FEWEST_REQUESTS, clusters_needed(spread, least, alpha=alpha), found.clusters + 1)
