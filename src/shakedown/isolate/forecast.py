"""What a search may cost, said before it begins.

It never measures: launches come from the simulation under benchmarks/, seconds from the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Launches and seconds of a search, reproduction and certificate included."""

    launches: int
    at_most_launches: int
    seconds: float
    at_most_seconds: float


def forecast(
    n_factors: int, *, fail_s: float, pass_s: float | None = None, max_launches: int | None = None
) -> Forecast:
    """Expected cost, and the cost of nineteen in twenty searches whose failure shows every time.

    `fail_s` and `pass_s` are seconds of a launch that fails and of one that serves.
    """
    bits = log2(n_factors + 1)
    launches = ceil(EXPECTED_BASE + EXPECTED_PER_BIT * bits)
    at_most = ceil(LIKELY_BASE + LIKELY_PER_BIT * bits)
    if max_launches is not None:
        launches, at_most = min(launches, max_launches), min(at_most, max_launches)
    each = (fail_s + (fail_s if pass_s is None else pass_s)) / 2
    dearest = max(fail_s, fail_s if pass_s is None else pass_s)
    return Forecast(
        launches=launches,
        at_most_launches=at_most,
        seconds=launches * each,
        at_most_seconds=at_most * dearest,
    )


# Fitted by eye to the simulation of mixed causes at 12, 24 and 40 factors (mean; 95th percentile).
EXPECTED_BASE, EXPECTED_PER_BIT = 3.0, 0.95
LIKELY_BASE, LIKELY_PER_BIT = 3.0, 3.0
