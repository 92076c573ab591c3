"""How long something takes that took differently long each time.

It never measures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Self

UNKNOWN_SPREAD = 0.3  # of a time seen once: one launch in twenty takes 1.6 times as long


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Times are skewed: their logarithms are normal around the median's, with `spread` as deviation."""

    median_s: float
    spread: float

    @classmethod
    def of(cls, times_s: Sequence[float]) -> Self:
        """From times seen; at least one, and those of nothing are left out."""
        logs = [math.log(time_s) for time_s in times_s if time_s > 0] or [math.log(0.001)]
        spread = stdev(logs) if len(logs) > 2 else UNKNOWN_SPREAD
        return cls(median_s=math.exp(fmean(logs)), spread=spread)

    @classmethod
    def sum(cls, parts: Iterable[LogNormal]) -> LogNormal:
        """One after the other: the log-normal with the same mean and variance."""
        known = tuple(parts)
        mean_s, variance = sum(part.mean_s for part in known), sum(part.variance for part in known)
        if mean_s <= 0:
            return cls(median_s=0.001, spread=0.0)
        square = math.log1p(variance / mean_s**2)
        return cls(median_s=mean_s * math.exp(-square / 2), spread=math.sqrt(square))

    @property
    def mean_s(self) -> float:
        return self.median_s * math.exp(self.spread**2 / 2)

    @property
    def variance(self) -> float:
        return math.expm1(self.spread**2) * self.mean_s**2
