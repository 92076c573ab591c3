"""What a search may cost, said before it begins.

It never measures: launches come from the simulation under benchmarks/, seconds from the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2, sqrt

from shakedown.core import LogNormal, Phase

NINETEEN_OF_TWENTY = 1.645  # deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Launches and seconds of a search, reproduction and certificate included."""

    launches: int
    at_most_launches: int
    seconds: float
    at_most_seconds: float


def forecast(
    n_factors: int, *, fails: LogNormal, passes: LogNormal, max_launches: int | None = None
) -> Forecast:
    """Expected cost, and the cost of nineteen in twenty searches whose failure shows every time.

    `fails` and `passes`: how long a launch takes that fails, and one that passes. Half of them do.
    """
    bits = log2(n_factors + 1)
    launches = ceil(EXPECTED_BASE + EXPECTED_PER_BIT * bits)
    at_most = ceil(LIKELY_BASE + LIKELY_PER_BIT * bits)
    if max_launches is not None:
        launches, at_most = min(launches, max_launches), min(at_most, max_launches)
    each_s = (fails.mean_s + passes.mean_s) / 2
    spread_s = sqrt(at_most * (fails.variance + passes.variance) / 2)
    return Forecast(
        launches=launches,
        at_most_launches=at_most,
        seconds=launches * each_s,
        at_most_seconds=at_most * max(fails.mean_s, passes.mean_s) + NINETEEN_OF_TWENTY * spread_s,
    )


def time_to(phases: Mapping[Phase, LogNormal], end: Phase) -> LogNormal:
    """How long the launch takes until it is in phase `end`."""
    return LogNormal.sum(time for phase, time in phases.items() if phase.order < end.order)


# Fitted by eye to the simulation of mixed causes at 12, 24 and 40 factors (mean; 95th percentile).
EXPECTED_BASE, EXPECTED_PER_BIT = 3.0, 0.95
LIKELY_BASE, LIKELY_PER_BIT = 3.0, 3.0
