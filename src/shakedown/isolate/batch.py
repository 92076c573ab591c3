"""Several experiments to run at once: the set whose joint outcome tells the most.

It never asks the oracle, and puts nothing beside a proof. Imports numpy, so import it late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shakedown.isolate.arena import Arena, Reading
from shakedown.isolate.beliefs import Belief, Bools, Floats, expected
from shakedown.isolate.certify import Evidence, by_wald
from shakedown.isolate.closure import Names
from shakedown.isolate.judge import EPSILON, Showing
from shakedown.isolate.leads import Wanted
from shakedown.isolate.plan import candidates, entropy, neighbours, untestable, usable

MOST_ROWS = 2000  # likeliest hypotheses that score candidates
MOST_PATTERNS = 64  # likeliest joint outcomes of those chosen so far: holds a choice of 16 under 1 s
LEAST_GAIN = 0.05  # bits below which one more launch is not worth its GPUs
# Bits that a proof is worth beyond what it tells: it is a round that is needed anyway, if its guess is right.
# At 1 two workers take 6.3 rounds, at 2 to 4 they take 6.0, and fewer launches the higher it is.
PROOF = 3.0
SURE_STARTING = 0.8  # that a failure shows every time, before it was seen
FLIPS = 2  # times that the best candidate is bettered by changing one factor


def plan_batch(
    belief: Belief, evidence: Evidence, lacking: Sequence[Wanted], most: int, seed: int, least: int = 2
) -> list[tuple[Names, str]]:
    """At most `most` sets to keep, each with its reason; none where a launch by itself is worth more.

    Greedy: each is the one that adds most to the expected entropy drop of the joint outcome.
    """
    random = np.random.default_rng([seed, len(evidence.readings), most])
    pool = usable(candidates(belief, (), random), belief, {}, evidence.hopeless)
    joint, chosen, gains = Joint(belief), list[Bools](), list[float]()
    while len(chosen) < most:
        best, gain = _best(joint, pool, belief, evidence, chosen)
        if best is None or gain < LEAST_GAIN:
            break
        joint.take(best)
        chosen.append(best)
        gains.append(gain)
    if len(chosen) < least or sum(gains) <= worth_alone(belief, lacking):
        return []
    arena, names = belief.arena, belief.names
    kept = [arena.floor | {name for name, stays in zip(names, row, strict=True) if stays} for row in chosen]
    return [
        (
            each,
            f"keeps {len(each)} of {len(arena.universe)}, one of {len(kept)} at once; adds {gain:.2f} bits",
        )
        for each, gain in zip(kept, gains, strict=True)
    ]


def first_guesses(
    arena: Arena, weights: Mapping[str, float], most: int, seed: int
) -> list[tuple[Names, str]]:
    """What to launch beside the launch as given and safe mode, before anything is known to fail."""
    belief = Belief(arena, weights, expected(SURE_STARTING))
    foretold = (
        Reading(kept=arena.universe, showing=Showing.FAILS, trial_id=""),
        Reading(kept=arena.floor, showing=Showing.SERVES, trial_id=""),
    )
    belief.update(foretold)
    chosen = plan_batch(belief, Evidence(foretold, by_wald(belief.rates)), (), most, seed, least=1)
    return [(kept, f"a guess beside the launch as given: keeps {len(kept)}") for kept, _ in chosen]


def worth_alone(belief: Belief, lacking: Sequence[Wanted]) -> float:
    """Bits that the best of the proofs that are lacking is worth: none of them has company."""
    if not lacking:
        return 0.0
    bits = Joint(belief).gains(np.array([belief.vector(item.kept) for item in lacking]))
    return float(max(bits + PROOF * np.array([item.probability for item in lacking])))


class Joint:
    """The joint outcomes of what was taken so far: rows of how likely each is, with each hypothesis."""

    def __init__(self, belief: Belief) -> None:
        self._belief = belief
        self._rows = np.sort(np.argsort(-np.round(belief.shares, 12), kind="stable")[:MOST_ROWS])
        shares = belief.shares[self._rows]
        self._rates = belief.mean_rates[self._rows]
        self._patterns: Floats = (shares / shares.sum())[None, :]

    def gains(self, kept: Bools) -> Floats:
        """Bits that each configuration (a row) would add."""
        fails = self._fails(kept)
        before = self._patterns.sum(axis=1)
        share = np.clip(self._patterns @ fails / before[:, None], 0.0, 1.0)
        noise = self._patterns.sum(axis=0) @ entropy(fails)
        return np.asarray(np.maximum(before @ entropy(share) - noise, 0.0))

    def take(self, kept: Bools) -> None:
        fails = self._fails(kept[None, :])[:, 0]
        both = np.concatenate([self._patterns * fails, self._patterns * (1 - fails)])
        self._patterns = both[np.argsort(-both.sum(axis=1), kind="stable")[:MOST_PATTERNS]]

    def _fails(self, kept: Bools) -> Floats:
        can = self._belief.contains(kept, self._rows)
        return np.asarray(EPSILON + (self._rates - EPSILON)[:, None] * can)


def _best(
    joint: Joint, pool: Bools, belief: Belief, evidence: Evidence, chosen: Sequence[Bools]
) -> tuple[Bools | None, float]:
    """The configuration that adds most to those chosen, and how much; None where none adds anything."""
    best, most = None, 0.0
    for _ in range(1 + FLIPS):
        if not len(pool):
            break
        gains = joint.gains(pool) * (1 - untestable(belief, pool, evidence.readings))
        for row in chosen:
            gains[(pool == row).all(axis=1)] = 0.0
        at = int(np.argmax(np.round(gains, 9)))
        if gains[at] <= most:
            break
        best, most = pool[at], float(gains[at])
        pool = usable(neighbours(best, belief), belief, {}, evidence.hopeless)
    return best, most
