"""Rounds of speculation as an engine counted them, and the tokens a round that follow from them.

It asks nobody: what an engine said is handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shakedown.acceptance.statistics import Interval, bootstrap_ratio


class Source(StrEnum):
    """Where the count comes from, the best first."""

    ROUNDS = "every round of each request"
    HISTOGRAM = "a histogram for each request"
    COUNTERS = "the server's counters before and after each request, or block of them"
    NONE = "nothing that the server tells"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Rounds of one request: `accepted[j]` of `rounds` had draft j accepted (so all drafts before it, too).

    The bonus token is in `tokens`, the token of the prefill is not.
    """

    rounds: int
    accepted: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return self.rounds + sum(self.accepted)

    @classmethod
    def of_histogram(cls, counts: Sequence[int], drafts: int) -> Tally:
        """`counts[a]` rounds had a drafts accepted."""
        above = [sum(counts[position + 1 :]) for position in range(drafts)]
        return cls(rounds=sum(counts), accepted=tuple(above))

    @classmethod
    def of_rounds(cls, accepted: Sequence[int], drafts: int) -> Tally:
        return cls(
            rounds=len(accepted),
            accepted=tuple(sum(each > position for each in accepted) for position in range(drafts)),
        )

    @classmethod
    def total(cls, tallies: Sequence[Tally]) -> Tally:
        """Of several requests with as many drafts a round."""
        accepted = zip(*(each.accepted for each in tallies), strict=True)
        return cls(rounds=sum(each.rounds for each in tallies), accepted=tuple(map(sum, accepted)))

    def less(self, before: Tally) -> Tally:
        accepted = zip(self.accepted, before.accepted, strict=True)
        return Tally(rounds=self.rounds - before.rounds, accepted=tuple(a - b for a, b in accepted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A round that began after generated token `start` (0: the token of the prefill)."""

    start: int
    accepted: int


def rounds_of_pieces(pieces: Sequence[int], histogram: Sequence[int]) -> tuple[int, ...] | None:
    """Drafts accepted in each round of a streamed answer, `pieces` being the tokens that came at a time.

    The first piece is the token of the prefill, each other one a round, unless some came together: None then.
    The limit of tokens cuts the last piece; the histogram, which counts every round whole, says what it was.
    """
    if len(pieces) != sum(histogram) + 1 or pieces[0] != 1:
        return None
    whole = [piece - 1 for piece in pieces[1:-1]]
    left = [count - whole.count(accepted) for accepted, count in enumerate(histogram)]
    if min(left, default=0) < 0 or sum(left) != 1 or left.index(1) < pieces[-1] - 1:
        return None
    return (*whole, left.index(1))


def place_rounds(accepted: Sequence[int], generated: int) -> tuple[Placed, ...] | None:
    """Where each round of a request began; None where steps without a round lie between them.

    A round emits what it accepted and one token more; the last one may be cut by the limit of tokens.
    """
    placed, start = [], 0
    for each in accepted:
        placed.append(Placed(start=start, accepted=each))
        start += each + 1
    if not placed:
        return None
    reached = placed[-1].start + 1
    return tuple(placed) if reached <= generated - 1 < start + 1 else None


def whole_rounds(placed: Sequence[Placed], generated: int, drafts: int) -> tuple[Placed, ...]:
    """Those whose drafts and bonus all lie within the text: what a walk over the text counts, too."""
    return tuple(each for each in placed if each.start < generated - drafts - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """`tokens_per_round` with the bonus, 1 to k + 1; per position as in `expect.Expectation`."""

    tokens_per_round: Interval
    conditional: tuple[Interval, ...]
    unconditional: tuple[Interval, ...]
    rounds: int
    requests: int


def acceptance_of(tallies: Sequence[Tally], *, level: float = 0.95) -> Acceptance | None:
    """None where no round was counted. A request is what is resampled for the intervals."""
    tallies = [tally for tally in tallies if tally.rounds]
    if not tallies:
        return None
    rounds = [tally.rounds for tally in tallies]
    conditional, unconditional, reached = [], [], rounds
    for position in range(len(tallies[0].accepted)):
        accepted = [tally.accepted[position] for tally in tallies]
        unconditional.append(bootstrap_ratio(accepted, rounds, level=level))
        conditional.append(
            bootstrap_ratio(accepted, reached, level=level)
            if sum(reached)
            else Interval(value=0.0, low=None, high=None, level=level)
        )
        reached = accepted
    return Acceptance(
        tokens_per_round=bootstrap_ratio([tally.tokens for tally in tallies], rounds, level=level),
        conditional=tuple(conditional),
        unconditional=tuple(unconditional),
        rounds=sum(rounds),
        requests=len(tallies),
    )
