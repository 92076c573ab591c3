"""Prompt lookup (n-gram speculation) as vLLM does it: what followed the end of a text where it stood before.

It is a drafter without weights, so that its expectation needs no states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shakedown.acceptance.rounds import Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """`shortest` to `longest` tokens must match; `drafts` tokens are proposed at most."""

    shortest: int
    longest: int
    drafts: int

    def propose(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Of the longest match the earliest in the text; () where nothing matches."""
        count = len(tokens)
        for length in range(min(self.longest, count - 1), self.shortest - 1, -1):
            suffix = tuple(tokens[count - length :])
            for start in range(count - length):
                if tuple(tokens[start : start + length]) == suffix:
                    return tuple(tokens[start + length : start + length + self.drafts])
        return ()


def walk_lookup(lookup: Lookup, prompt: Sequence[int], generated: Sequence[int]) -> tuple[Placed, ...]:
    """The rounds over a text; a step for which nothing was proposed is no round and emits one token.

    Rounds that the text's end could cut short are left out, as in `expect.walk`.
    """
    text = [*prompt, *generated]
    rounds, start = [], 0
    while start < len(generated) - lookup.drafts - 1:
        at = len(prompt) + start + 1
        accepted, proposed = 0, lookup.propose(text[:at])
        while accepted < len(proposed) and proposed[accepted] == text[at + accepted]:
            accepted += 1
        if proposed:
            rounds.append(Placed(start=start, accepted=accepted))
        start += accepted + 1
    return tuple(rounds)


def place_lookups(
    lookup: Lookup, prompt: Sequence[int], generated: Sequence[int], accepted: Sequence[int]
) -> tuple[Placed, ...] | None:
    """An engine's rounds at the places where something is proposed; None where there are more or fewer.

    Rounds that the text's end could cut may be missing.
    """
    text = [*prompt, *generated]

    def next_place(start: int) -> int:
        while start < len(generated) and not lookup.propose(text[: len(prompt) + start + 1]):
            start += 1
        return start

    rounds, start = [], 0
    for each in accepted:
        start = next_place(start)
        if start >= len(generated):
            return None
        rounds.append(Placed(start=start, accepted=each))
        start += each + 1
    return None if next_place(start) < len(generated) - lookup.drafts - 1 else tuple(rounds)
