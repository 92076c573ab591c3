"""Is what is said with speculation what is said without? Where greedy texts part, by how likely both were.

It never takes one differing token for a fault: two tokens as likely are both the target's choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Modes of one model in bfloat16 differ by 0.16 nat at most here; a gap between two tokens holds two such
# differences.
TIE_NATS = 0.3
SURE = 0.01  # by chance alone, of engines that are as right as the plain server, one in a hundred is blamed


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """`token`: the first one in which two greedy answers to a question differ. `gap_nats`: by how much the
    plain server finds the other's less likely than its own best; None where it would not say, or has it not
    in its list. `unlisted`: the list goes on beyond a tie, and the other's is not on it."""

    token: int
    gap_nats: float | None
    unlisted: bool = False

    @property
    def tied(self) -> bool:
        return self.gap_nats is not None and self.gap_nats <= TIE_NATS

    @property
    def fault(self) -> bool:
        return self.unlisted or (self.gap_nats is not None and not self.tied)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`partings` of `compared` answers; `own`: those of the plain server with itself after its restart, of
    `own_compared` answers."""

    compared: int
    partings: tuple[Parting, ...]
    own: tuple[Parting, ...] = ()
    own_compared: int = 0

    @property
    def faults(self) -> tuple[Parting, ...]:
        return tuple(each for each in self.partings if each.fault)

    @property
    def altered(self) -> bool:
        """Certainly a larger share of answers part without a tie than the plain server's own from its own."""
        return self._more(lambda each: each.fault)

    @property
    def unproven(self) -> bool:
        """More part than the plain server's own do, and it does not say whether these are ties."""
        return self._more(lambda each: not each.tied)

    def _more(self, counts: Callable[[Parting], bool]) -> bool:
        parted, own = sum(map(counts, self.partings)), sum(map(counts, self.own))
        return chance_of(parted, self.compared, own, self.own_compared) < SURE


def chance_of(first: int, of_first: int, second: int, of_second: int) -> float:
    """How likely the first share is as large as it is, or larger, if both are one (Fisher's exact test)."""
    both, total = first + second, of_first + of_second
    ways = sum(
        math.comb(of_first, k) * math.comb(of_second, both - k)
        for k in range(first, min(both, of_first) + 1)
        if both - k <= of_second
    )
    return ways / math.comb(total, both)


def parting_at(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two texts differ; None where the shorter is how the longer begins."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return None


def gap_between(likeliest: dict[int, float], token: int) -> float | None:
    """By how much `token` is less likely than the best; None where it is not among those listed."""
    if token not in likeliest:
        return None
    return max(likeliest.values()) - likeliest[token]
