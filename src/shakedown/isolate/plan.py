"""The next experiment: the one with the largest expected entropy drop per expected second.

It never asks the oracle. Imports numpy, so import it late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shakedown.core import Purpose
from shakedown.isolate.arena import Reading
from shakedown.isolate.beliefs import Belief, Bools, Floats
from shakedown.isolate.closure import Names
from shakedown.isolate.judge import EPSILON, Showing
from shakedown.isolate.leads import Wanted
from shakedown.isolate.notebook import Costs

MOST_ROWS = 3000  # likeliest hypotheses that score candidates: holds a step at 40 factors under 0.1 s
PROOF = 1.0  # bits a launch is worth that the certificate needs anyway, if its hypothesis is right
# Launches that fail and that pass cost the same unless one takes three times as long: the quicker failure
# draws larger sets, and where two causes are at work those nearly always fail and tell nothing (at half the
# price 17.9 launches against 13.8, and 22 minutes against 19; with one cause there is no difference).
ALIKE = 3.0
LEAST = 1e-4  # bits below which an experiment tells nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    kept: Names
    purpose: Purpose
    reason: str
    bits: float
    fails: float  # predicted probability


def propose(
    belief: Belief,
    readings: Sequence[Reading],
    wanted: Sequence[Wanted],
    hopeless: Callable[[Names], bool],
    costs: Costs,
    seed: int,
    purpose: Purpose,
) -> Proposal | None:
    """The best experiment, or None where none tells anything. What is `hopeless` fails in another way."""
    arena = belief.arena
    proofs = {belief.vector(item.kept).tobytes(): item for item in reversed(wanted)}
    kept = candidates(belief, wanted, np.random.default_rng([seed, len(readings)]))
    kept = usable(kept, belief, proofs, hopeless)
    if not len(kept):
        return None
    scores = _Scores(belief, kept, proofs, readings, costs)
    for _ in range(2):
        flipped = usable(neighbours(kept[scores.best], belief), belief, proofs, hopeless)
        more = _Scores(belief, flipped, proofs, readings, costs) if len(flipped) else scores
        if more.value[more.best] <= scores.value[scores.best]:
            break
        kept, scores = flipped, more
    best = scores.best
    if scores.value[best] * max(costs.fail_s, costs.pass_s) < LEAST:
        return None
    item = proofs.get(kept[best].tobytes())
    names = arena.floor | {name for name, stays in zip(belief.names, kept[best], strict=True) if stays}
    fails = float(scores.fails[best])
    return Proposal(
        kept=names,
        purpose=item.purpose if item else purpose,
        reason=item.reason if item else _why(len(names), len(arena.universe), fails),
        bits=float(scores.bits[best]),
        fails=fails,
    )


def _why(kept: int, all_of: int, fails: float) -> str:
    return f"keeps {kept} of {all_of}; fails if the cause is within them ({fails:.0%} likely)"


class _Scores:
    """Of each candidate: predicted failure, expected entropy drop in bits, value per second."""

    def __init__(
        self,
        belief: Belief,
        kept: Bools,
        proofs: Mapping[bytes, Wanted],
        readings: Sequence[Reading],
        costs: Costs,
    ) -> None:
        rows = np.sort(np.argsort(-np.round(belief.shares, 12), kind="stable")[:MOST_ROWS])
        shares = belief.shares[rows] / belief.shares[rows].sum()
        rates = belief.mean_rates[rows]
        can = belief.contains(kept, rows).astype(np.float64)
        self.fails: Floats = EPSILON + (shares * (rates - EPSILON)) @ can
        noise = entropy(np.array(EPSILON)) + (shares * (entropy(rates) - entropy(np.array(EPSILON)))) @ can
        self.bits: Floats = np.maximum(entropy(self.fails) - noise, 0.0)
        proof = np.array(
            [proofs[row.tobytes()].probability if row.tobytes() in proofs else 0.0 for row in kept]
        )
        fail_s, pass_s = _prices(costs)
        seconds = self.fails * fail_s + (1 - self.fails) * pass_s
        testable = 1 - untestable(belief, kept, readings)
        self.value: Floats = np.round((self.bits + PROOF * proof) * testable / seconds, 9)
        self.best = int(np.argmax(self.value))


def _prices(costs: Costs) -> tuple[float, float]:
    low, high = sorted((costs.fail_s, costs.pass_s))
    return (high, high) if high < ALIKE * low else (costs.fail_s, costs.pass_s)


def entropy(p: Floats) -> Floats:
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)))


def candidates(belief: Belief, wanted: Sequence[Wanted], random: np.random.Generator) -> Bools:
    """Halves of the posterior mass, single factors alone and removed, top hypotheses, random sets."""
    count = len(belief.names)
    order = np.argsort(-np.round(belief.blame(), 12), kind="stable")
    rank = np.empty(count, dtype=np.intp)
    rank[order] = np.arange(count)
    sizes = np.arange(1, count)[:, None]
    likeliest = np.arange(min(4, count))[:, None]
    rows = [
        np.array([belief.vector(item.kept) for item in wanted], dtype=bool).reshape(-1, count),
        rank[None, :] < sizes,
        rank[None, :] >= sizes,
        rank[None, :] == likeliest,
        rank[None, :] != likeliest,
        random.random((96, count)) < np.repeat([0.4, 0.5, 0.6, 0.7, 0.8, 0.9], 16)[:, None],
    ]
    for guess in belief.guesses(6):
        members = belief.vector(frozenset().union(*guess.sets))
        rows += [members[None, :], ~members[None, :]]
    return np.concatenate(rows)


def neighbours(kept: Bools, belief: Belief) -> Bools:
    return np.asarray(kept[None, :] ^ np.eye(len(kept), dtype=bool))


def usable(
    kept: Bools, belief: Belief, proofs: Mapping[bytes, Wanted], hopeless: Callable[[Names], bool]
) -> Bools:
    """The candidates closed over what needs what, each once, less those whose answer is known."""
    needs, names = belief.arena.needs.needs, belief.names
    lacks = np.array([[need in needs[name] for need in names] for name in names], dtype=np.float32)
    closed = kept & ((~kept).astype(np.float32) @ lacks.reshape(len(names), -1).T < 0.5)
    unique, first = np.unique(closed, axis=0, return_index=True)
    rows = []
    for index in np.argsort(first, kind="stable"):
        row = unique[index]
        inside = frozenset(name for name, stays in zip(names, row, strict=True) if stays)
        if row.tobytes() in proofs or not hopeless(belief.arena.floor | inside):
            rows.append(row)
    return np.array(rows, dtype=bool).reshape(-1, len(names))


def untestable(belief: Belief, kept: Bools, readings: Sequence[Reading]) -> Floats:
    """The chance that a candidate fails in another way, from configurations that did.

    Each of those had reasons: something removed, or something kept without something removed. A
    reason present in a configuration that failed as usual or served is refuted; a candidate is as
    suspect as its share of the reasons left.
    """
    chance = np.ones(len(kept))
    others = [belief.vector(r.kept) for r in readings if r.direct and r.showing is Showing.OTHER]
    if not others:
        return 1 - chance
    count = len(belief.names)
    weight = np.append(np.ones(count), max(count / 2, 1.0))[
        :, None
    ]  # the last row: removed, whatever is kept
    refuted = np.zeros((count + 1, count), dtype=bool)
    for reading in readings:
        if reading.direct and reading.showing in (Showing.FAILS, Showing.SERVES):
            seen = belief.vector(reading.kept)
            refuted |= np.outer(np.append(seen, True), ~seen)
    stays = np.column_stack([kept, np.ones(len(kept), dtype=bool)]).astype(np.float64)
    for other in others:
        left = np.where(np.outer(np.append(other, True), ~other) & ~refuted, weight, 0.0)
        if left.sum() > 0:
            share = ((stays @ left) * ~kept).sum(axis=1) / left.sum()
            chance *= 1 - 0.95 * share
    return np.asarray(1 - chance)
