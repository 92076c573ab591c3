"""How fast with and without speculation: the cost of a round in plain steps, break-even, speed-up, best k.

It measures nothing: seconds, steps and tokens of requests are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from shakedown.acceptance.statistics import RESAMPLES, SEED, Interval, student_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What one request took after its first token: seconds, tokens that came, steps of the target, and how
    many of these were rounds of speculation."""

    seconds: float
    tokens: int
    steps: int
    rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`round_cost`: a round in plain steps, which is also how many tokens a round must yield to pay.
    `best_drafts`: the k up to the one measured that is fastest, 0 for none, with a round's cost taken to grow
    evenly with k."""

    round_cost: Interval
    speed_up: Interval
    best_drafts: int
    best_speed_up: float


def pace_of(
    plain: Sequence[Effort], drafted: Sequence[Effort], unconditional: Sequence[float]
) -> Pace | None:
    """The same requests in the same order, without and with speculation; None where none can be timed."""
    pairs = [
        (p, d)
        for p, d in zip(plain, drafted, strict=True)
        if min(p.seconds, d.seconds) > 0 < min(p.steps, d.steps)
    ]
    if not pairs:
        return None
    plain, drafted = [p for p, _ in pairs], [d for _, d in pairs]
    cost = quotient(
        [d.seconds for d in drafted],
        [d.steps for d in drafted],
        [p.seconds for p in plain],
        [p.steps for p in plain],
    )
    steps = sum(d.steps for d in drafted)
    tokens_per_step = sum(d.tokens for d in drafted) / steps
    best, gain = best_drafts(cost.value, scaled(unconditional, tokens_per_step))
    return Pace(
        round_cost=of_a_round(cost, sum(d.rounds for d in drafted) / steps),
        speed_up=quotient(
            [d.tokens for d in drafted],
            [d.seconds for d in drafted],
            [p.tokens for p in plain],
            [p.seconds for p in plain],
        ),
        best_drafts=best,
        best_speed_up=gain,
    )


def of_a_round(step: Interval, share: float) -> Interval:
    """The cost of a round from that of a step, where only a share of the steps are rounds, the rest plain."""
    if not 0 < share < 1:
        return step
    cost = [None if each is None else 1 + (each - 1) / share for each in (step.low, step.high)]
    return Interval(value=1 + (step.value - 1) / share, low=cost[0], high=cost[1], level=step.level)


def quotient(
    first: Sequence[float],
    first_of: Sequence[float],
    second: Sequence[float],
    second_of: Sequence[float],
    *,
    level: float = 0.95,
) -> Interval:
    """(sum first / sum first_of) over (sum second / sum second_of), by resampling whole requests.

    As in `bootstrap_ratio` the percentiles are taken further out for few requests.
    """
    columns = np.array([first, first_of, second, second_of], dtype=np.float64)
    a, b, c, d = columns.sum(axis=1)
    value, count = float(a / b / (c / d)), columns.shape[1]
    if count < 2:
        return Interval(value=value, low=None, high=None, level=level)
    counts = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    a, b, c, d = (counts @ columns.T).T
    reach = math.sqrt(count / (count - 1)) * student_quantile((1 + level) / 2, count - 1)
    tail = NormalDist().cdf(-reach)
    low, high = np.quantile(a / b / (c / d), [tail, 1 - tail])
    return Interval(value=value, low=float(low), high=float(high), level=level)


def scaled(unconditional: Sequence[float], tokens_per_step: float) -> list[float]:
    """By step instead of by round: where nothing is drafted for some steps, each position counts less."""
    total = sum(unconditional)
    return [each * (tokens_per_step - 1) / total for each in unconditional] if total > 0 else [*unconditional]


def best_drafts(round_cost: float, unconditional: Sequence[float]) -> tuple[int, float]:
    """(k, speed-up) of the fastest k up to the one measured; 0 drafts are plain steps at a cost of 1."""
    drafts = len(unconditional)
    best, gain = 0, 1.0
    for k in range(1, drafts + 1):
        tokens = 1 + sum(unconditional[:k])
        cost = 1 + (round_cost - 1) * k / drafts
        if cost > 0 and tokens / cost > gain:
            best, gain = k, tokens / cost
    return best, gain
