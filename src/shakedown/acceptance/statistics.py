"""How surely a rate is known: intervals that respect documents, equivalence within a margin, sample sizes.

It draws nothing but its own resamples, from a seed. Tokens of one document depend on each other, so a
document (or request), never a token or a round, is what is counted as one observation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 2000
SEED = 20260101


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with its interval; `low` and `high` are None where one observation cannot tell."""

    value: float
    low: float | None
    high: float | None
    level: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A difference of two ratios over the same clusters, its standard error NaN for a single one."""

    value: float
    standard_error: float
    clusters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Two one-sided tests: `equivalent` where the (1 - 2 alpha) interval lies within -margin and +margin."""

    difference: Interval
    margin: float
    equivalent: bool


def bootstrap_ratio(
    numerators: Sequence[float],
    denominators: Sequence[float],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """A ratio's interval by resampling whole clusters; it never leaves what the clusters themselves span.

    Percentiles of the resampled ratios, taken further out for few clusters as Student's t is wider than the
    normal distribution (Hesterberg's expanded percentile interval): plain ones are too short by that.
    """
    above, below = _columns(numerators, denominators)
    value, clusters = float(above.sum() / below.sum()), len(above)
    if clusters < 2:
        return Interval(value=value, low=None, high=None, level=level)
    shares = np.full(clusters, 1 / clusters)
    counts = np.random.default_rng(seed).multinomial(clusters, shares, size=resamples)
    sums = counts @ below
    ratios = (counts @ above)[sums > 0] / sums[sums > 0]
    reach = math.sqrt(clusters / (clusters - 1)) * student_quantile((1 + level) / 2, clusters - 1)
    tail = NormalDist().cdf(-reach)
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return Interval(value=value, low=float(low), high=float(high), level=level)


def paired_difference(
    first: tuple[Sequence[float], Sequence[float]], second: tuple[Sequence[float], Sequence[float]]
) -> Estimate:
    """First ratio minus second, both over the same clusters in the same order."""
    influences, values = [], []
    for numerators, denominators in (first, second):
        above, below = _columns(numerators, denominators)
        values.append(float(above.sum() / below.sum()))
        influences.append(_influence(above, below, values[-1]))
    if len(influences[0]) != len(influences[1]):
        raise ValueError(f"{len(influences[0])} clusters cannot be paired with {len(influences[1])}")
    return Estimate(
        value=values[0] - values[1],
        standard_error=_spread(influences[0] - influences[1]),
        clusters=len(influences[0]),
    )


def equivalence(found: Estimate, margin: float, *, alpha: float = 0.05) -> Equivalence:
    """Whether a difference is certainly within the margin."""
    degrees = found.clusters - 1
    level = 1 - 2 * alpha
    if not math.isfinite(found.standard_error) or degrees < 1:
        unknown = Interval(value=found.value, low=None, high=None, level=level)
        return Equivalence(difference=unknown, margin=margin, equivalent=False)
    reach = student_quantile(1 - alpha, degrees) * found.standard_error
    low, high = found.value - reach, found.value + reach
    return Equivalence(
        difference=Interval(value=found.value, low=low, high=high, level=level),
        margin=margin,
        equivalent=-margin < low and high < margin,
    )


def clusters_needed(spread: float, margin: float, *, alpha: float = 0.05, power: float = 0.9) -> int:
    """Clusters that show equivalence of truly equal ratios within `margin`, with this power.

    `spread`: standard deviation of one cluster's contribution, sqrt(clusters) times a standard error.
    """
    if margin <= 0:
        raise ValueError(f"a margin must be above 0, not {margin}")
    normal = NormalDist()
    z = normal.inv_cdf(1 - alpha) + normal.inv_cdf((1 + power) / 2)
    return max(2, math.ceil((z * spread / margin) ** 2))


def student_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t by Hill's expansion of the normal one: off by under 1 % from 4 degrees on."""
    z = NormalDist().inv_cdf(probability)
    if math.isinf(freedom):
        return z
    if freedom < 3:
        return math.tan(math.pi * (probability - 0.5)) if freedom < 2 else _two_degrees(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def _two_degrees(probability: float) -> float:
    side = 2 * probability - 1
    return side * math.sqrt(2 / (1 - side * side))


def _columns(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[Floats, Floats]:
    above, below = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if above.shape != below.shape or above.ndim != 1:
        raise ValueError(f"{above.shape} numerators do not pair with {below.shape} denominators")
    if not below.sum() > 0:
        raise ValueError("the denominators sum to nothing")
    return above, below


def _influence(above: Floats, below: Floats, value: float) -> Floats:
    """How far each cluster pulls the ratio, times the number of clusters."""
    return np.asarray((above - value * below) / below.mean())


def _spread(influence: Floats) -> float:
    """Standard error of a mean of influences."""
    count = len(influence)
    return float(influence.std(ddof=1) / math.sqrt(count)) if count > 1 else math.nan
