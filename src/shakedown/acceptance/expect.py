"""What acceptance to expect of a drafter on a text, by walking the text as an engine does.

A round starts after a token the target has chosen, tries k drafts and ends with one more token of the
target's (the bonus); the next round starts there. It computes no draft: matrices of acceptance are handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shakedown.acceptance.statistics import Interval, bootstrap_ratio

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Sums over rounds; `reached[j]` of them had their first j drafts accepted, `accepted[j]` j + 1."""

    rounds: float
    tokens: float  # emitted, bonus included
    reached: Floats
    accepted: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """`tokens_per_round` as the engines count it: with the bonus, 1 to k + 1.

    Per position j: `conditional` on the drafts before it, `unconditional` as engines print it.
    `product_of_marginals` and `uniform_joint` (both with the bonus) are what trainers print instead; they
    take every position of the text for a round's start, which rounds do not.
    """

    tokens_per_round: Interval
    conditional: tuple[Interval, ...]
    unconditional: tuple[Interval, ...]
    product_of_marginals: float
    uniform_joint: float
    rounds: float
    documents: int


def walk(accept: Floats) -> Walk:
    """Walks one generated stretch. `accept[p, j]`: the probability that draft j of a round started at p is
    accepted once all before it were; 0 or 1 where the text itself decides.

    Rows are the starts whose k drafts and bonus all lie within the text (`full_starts`): a round that the
    text's end could cut short is counted neither way.
    """
    starts, drafts = accept.shape
    passed = np.cumprod(accept, axis=1)
    reached = np.concatenate([np.ones((starts, 1)), passed[:, :-1]], axis=1)
    ends = np.concatenate([reached - passed, passed[:, -1:]], axis=1)  # after 0, 1, … k accepted drafts
    mass = np.zeros(starts + drafts + 1)  # probability that a round starts here
    mass[0] = 1.0
    for start in range(starts):
        if mass[start]:
            mass[start + 1 : start + drafts + 2] += mass[start] * ends[start]
    mass = mass[:starts]
    return Walk(
        rounds=float(mass.sum()),
        tokens=float(mass.sum() + (mass @ passed).sum()),
        reached=mass @ reached,
        accepted=mass @ passed,
    )


def full_starts(generated: int, drafts: int) -> int:
    """After how many of `generated` tokens a round finds all its drafts and its bonus within the text."""
    return max(0, generated - drafts - 1)


def expect(documents: Sequence[Sequence[Floats]], *, level: float = 0.95) -> Expectation:
    """Walks every stretch of every document; a document is what is resampled for the intervals.

    Raises ValueError where no stretch is long enough for one round.
    """
    kept = [[accept for accept in stretches if len(accept)] for stretches in documents]
    kept = [stretches for stretches in kept if stretches]
    if not kept:
        raise ValueError("no generated stretch is long enough for a round")
    walks = [_sum([walk(accept) for accept in stretches]) for stretches in kept]
    rounds = [each.rounds for each in walks]
    every = np.concatenate([accept for stretches in kept for accept in stretches])
    drafts = range(every.shape[1])
    return Expectation(
        tokens_per_round=bootstrap_ratio([each.tokens for each in walks], rounds, level=level),
        conditional=tuple(_share(walks, j, [each.reached[j] for each in walks], level) for j in drafts),
        unconditional=tuple(_share(walks, j, rounds, level) for j in drafts),
        product_of_marginals=1.0 + float(np.cumprod(every.mean(axis=0)).sum()),
        uniform_joint=1.0 + float(np.cumprod(every, axis=1).mean(axis=0).sum()),
        rounds=sum(rounds),
        documents=len(kept),
    )


def _sum(walks: Sequence[Walk]) -> Walk:
    return Walk(
        rounds=sum(each.rounds for each in walks),
        tokens=sum(each.tokens for each in walks),
        reached=np.sum([each.reached for each in walks], axis=0),
        accepted=np.sum([each.accepted for each in walks], axis=0),
    )


def _share(walks: Sequence[Walk], position: int, of: Sequence[float], level: float) -> Interval:
    if not sum(of) > 0:
        return Interval(value=0.0, low=None, high=None, level=level)  # no round came so far
    return bootstrap_ratio([float(each.accepted[position]) for each in walks], of, level=level)
