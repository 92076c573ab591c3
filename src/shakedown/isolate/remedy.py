"""The workaround: which values of a culprit serve, and what a user must change.

It never asks the oracle itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shakedown.core import Factor, Workaround
from shakedown.isolate.closure import Names
from shakedown.isolate.factors import describe_changes
from shakedown.isolate.judge import Showing

Tokens = tuple[str, ...]


def mildest_value(
    offered: Sequence[Tokens], most: int, settle: Callable[[Tokens], Showing]
) -> tuple[Tokens | None, Tokens | None]:
    """(the value nearest to the user's that serves, the mildest that does not), in at most `most` looks.

    Numbers are bisected, being ordered mildest first; siblings of an enum are tried in turn. What showed
    nothing is neither.
    """
    bad = (Showing.FAILS, Showing.OTHER)
    worst: Tokens | None = None
    if not all(_number(tokens) for tokens in offered):
        for tokens in offered[:most]:
            if (showing := settle(tokens)) is Showing.SERVES:
                return tokens, worst
            worst = tokens if showing in bad else worst
        return None, worst
    serves, fails = -1, len(offered)
    while fails - serves > 1 and most > 0:
        middle = (serves + fails) // 2
        most -= 1
        if (showing := settle(offered[middle])) is Showing.SERVES:
            serves = middle
        else:
            fails = middle
            worst = offered[middle] if showing in bad else worst
    return offered[serves] if serves >= 0 else None, worst


def value_note(serves: Tokens | None, fails: Tokens | None, was: str) -> str:
    """ "8 works, 16 does not"."""
    if serves is None:
        return f"none of the values tried serves, {_value(fails)} neither" if fails else ""
    return f"{_value(serves)} works, {_value(fails) if fails else was} does not"


def workaround(
    factors: Sequence[Factor], kept: Names, substitutes: Sequence[tuple[str, Tokens]] = ()
) -> Workaround:
    """What a user must change. A substituted factor stays in `kept`: its value is overridden."""
    return Workaround(
        kept=kept,
        changes=describe_changes(factors, kept, substitutes),
        substitutes=tuple(substitutes),
    )


def _number(tokens: Tokens) -> bool:
    try:
        return math.isfinite(float(_value(tokens)))
    except ValueError:
        return False


def _value(tokens: Tokens) -> str:
    return tokens[-1].rpartition("=")[2] if tokens else "nothing"
