"""What a search believes: hypotheses (base, one, two, three factors, two apart) and flake rates.

It never chooses an experiment. Imports numpy, so import it late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from shakedown.isolate.arena import Arena, Reading, Tally
from shakedown.isolate.closure import Dependencies, Names
from shakedown.isolate.doubt import Doubt
from shakedown.isolate.judge import EPSILON, ERROR, Showing

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# An assumption until a ledger refits it: base, one, two, three factors, two causes of one factor each.
BASE, ONE, TWO, THREE, APART = 0.20, 0.52, 0.17, 0.05, 0.06
RATES = (0.99, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
# Clues are followed, ignored or turned round: a stack often names what waits, not what is waited for.
FOLLOWED, IGNORED, TURNED = 0.65, 0.1, 0.25
DOUBT = 0.01  # prior probability that no hypothesis holds
MOST_FOR_THREES = 40  # beyond, sets of three are drawn from the likeliest 40 only: 9,880 of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """One hypothesis: no set (base), one set (a cause), two sets (two causes, each enough alone)."""

    sets: tuple[Names, ...]
    probability: float


class Belief:
    """A posterior over hypotheses and rates, updated by readings of one arena."""

    def __init__(self, arena: Arena, weights: Mapping[str, float], rates: Sequence[float]) -> None:
        """`rates` are the prior probabilities of `RATES`."""
        self.arena = arena
        self.names = arena.variables
        shares = np.array([weights[name] for name in self.names])
        self._members, self._apart, prior = _hypotheses(
            arena, shares / shares.sum() if len(shares) else shares
        )
        self._log = np.log(prior)[:, None] + np.log(np.array(rates))[None, :]
        self._unexplained = np.zeros(len(prior), dtype=bool)
        self._doubt = Doubt()
        self._seen = 0
        self._begun = False
        self._refresh()

    def update(self, readings: Sequence[Reading]) -> None:
        """Take in the readings not taken in yet (they only grow at the end).

        The first failure of everything tells nothing: without it there would be no search.
        """
        for reading in readings[self._seen :]:
            failed = reading.showing is Showing.FAILS
            if not failed and reading.showing is not Showing.SERVES:
                continue
            self._doubt.observe(reading.kept, failed)
            if failed and not self._begun and reading.kept == self.arena.universe:
                self._begun = True
            else:
                self._observe(self.vector(reading.kept), failed)
        if len(readings) > self._seen:
            self._seen = len(readings)
            self._refresh()

    def vector(self, kept: Names) -> Bools:
        return np.array([name in kept for name in self.names], dtype=bool)

    def contains(self, kept: Bools, rows: NDArray[np.intp] | None = None) -> Bools:
        """Which hypotheses (rows, ascending) say that which configurations (columns) can fail."""
        members, apart = self._members, self._apart
        if rows is not None:
            joint = len(members)
            members, apart = members[rows[rows < joint]], apart[rows[rows >= joint] - joint]
        with np.errstate(all="ignore"):  # of noughts and ones; BLAS kernels raise flags that mean nothing
            whole = (members @ (~kept).T.astype(np.float32)) < 0.5
        return np.concatenate([whole, kept.T[apart[:, 0]] | kept.T[apart[:, 1]]])

    @property
    def rates(self) -> tuple[tuple[float, float], ...]:
        """(rate, probability) pairs: how often the failure shows where it can."""
        return tuple(zip(RATES, (float(share) for share in self._rate_shares), strict=True))

    @property
    def rate(self) -> float:
        return float(np.dot(RATES, self._rate_shares))

    def carries(self, kept: Names) -> float:
        """The probability that a configuration can fail, by all that was seen anywhere."""
        return float(self.shares @ self.contains(self.vector(kept)[None, :])[:, 0])

    def decide(self, kept: Names, seen: Tally) -> Showing:
        """What a configuration shows: its own looks must agree with what is believed of it."""
        carries = self.carries(kept)
        if seen.fails and carries >= 1 - ERROR:
            return Showing.FAILS
        return Showing.SERVES if seen.serves and carries <= ERROR else Showing.UNKNOWN

    @property
    def unexplained(self) -> float:
        """The probability of the hypotheses that leave some failure unexplained."""
        return float(self.shares[self._unexplained].sum())

    @property
    def misfit(self) -> float:
        """The probability that no hypothesis holds, against `Doubt`, which only expects monotony."""
        return float(DOUBT / (DOUBT + (1 - DOUBT) * np.exp(self._evidence - self._doubt.log)))

    def guesses(self, count: int) -> tuple[Guess, ...]:
        """The likeliest hypotheses, likeliest first; ties in order of name."""
        order = np.argsort(-np.round(self.shares, 12), kind="stable")[:count]
        return tuple(self._guess(int(row)) for row in order)

    def blame(self) -> Floats:
        """For each variable, the probability that it is part of a cause."""
        joint = len(self._members)
        blame = self.shares[:joint] @ self._members
        np.add.at(blame, self._apart.ravel(), np.repeat(self.shares[joint:], 2))
        return np.asarray(blame, dtype=np.float64)

    def _observe(self, kept: Bools, failed: bool) -> None:
        can = self.contains(kept[None, :])[:, 0]
        rates = np.array(RATES)
        if failed:
            self._log += np.where(can[:, None], np.log(rates)[None, :], np.log(EPSILON))
            self._unexplained |= ~can
        else:
            self._log += np.where(can[:, None], np.log(1 - rates)[None, :], np.log(1 - EPSILON))

    def _refresh(self) -> None:
        top = self._log.max()
        joint = np.exp(self._log - top)
        self._evidence = float(top + np.log(joint.sum()))
        joint /= joint.sum()
        self.shares: Floats = joint.sum(axis=1)
        self._rate_shares: Floats = joint.sum(axis=0)
        self.mean_rates: Floats = (joint @ np.array(RATES)) / np.maximum(self.shares, 1e-300)

    def _guess(self, row: int) -> Guess:
        probability = float(self.shares[row])
        if row < len(self._members):
            members = frozenset(self.names[column] for column in np.flatnonzero(self._members[row]))
            return Guess(sets=(members,) if members else (), probability=probability)
        pair = self._apart[row - len(self._members)]
        return Guess(sets=tuple(frozenset({self.names[column]}) for column in pair), probability=probability)


def expected(sure: float) -> list[float]:
    """The prior of `RATES` where the failure shows (nearly) every time with probability `sure`; the others
    are the likelier the higher, as it showed when it was reproduced."""
    return [sure, *((1 - sure) * rate / sum(RATES[1:]) for rate in RATES[1:])]


def doubted(sure: float) -> list[float]:
    """The same with every other rate as likely."""
    return [sure, *((1 - sure) / len(RATES[1:]) for _ in RATES[1:])]


def _hypotheses(arena: Arena, shares: Floats) -> tuple[NDArray[np.float32], NDArray[np.intp], Floats]:
    """Rows of joint members (first the empty one: base), pairs apart, and their prior.

    Sets in which one member implies another are left out: no launch can tell them from their core.
    """
    names, needs = arena.variables, arena.needs
    count = len(names)
    implied = np.array([[needs.implies(by, name) for name in names] for by in names], dtype=bool)
    implied = implied.reshape(count, count)
    related = implied | implied.T
    twin = np.array([any(_same(by, name, needs) for by in names) for name in names], dtype=bool)
    ones = np.flatnonzero(~twin)
    twos = np.array(list(combinations(ones, 2)), dtype=np.intp).reshape(-1, 2)
    twos = twos[~related[twos[:, 0], twos[:, 1]]]
    likeliest = np.sort(ones[np.argsort(-shares[ones], kind="stable")[:MOST_FOR_THREES]])
    threes = np.array(list(combinations(likeliest, 3)), dtype=np.intp).reshape(-1, 3)
    a, b, c = threes.T
    threes = threes[~(related[a, b] | related[a, c] | related[b, c])]
    kinds = [(ONE, ones[:, None]), (TWO, twos), (THREE, threes)]
    members = np.zeros((1 + sum(len(rows) for _, rows in kinds), count), dtype=np.float32)
    prior, at = [np.array([BASE])], 1
    for kind, rows in kinds:
        members[np.arange(at, at + len(rows))[:, None], rows] = 1
        prior.append(_spread(kind, shares[rows].prod(axis=1)))
        at += len(rows)
    prior.append(_spread(APART, shares[twos].prod(axis=1)))
    joined = np.concatenate(prior)
    return members, twos, joined / joined.sum()


def _same(first: str, name: str, needs: Dependencies) -> bool:
    """Whether `name` and an earlier factor need each other."""
    return first < name and name in needs.needs[first] and first in needs.needs[name]


def _spread(total: float, products: Floats) -> Floats:
    if not len(products):
        return products
    turned = 1 / products
    followed = FOLLOWED * products / products.sum() + TURNED * turned / turned.sum()
    return np.asarray(total * (followed + IGNORED / len(products)))
