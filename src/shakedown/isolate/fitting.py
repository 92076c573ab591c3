"""Whether what makes the model fit, and so stayed throughout a search, is part of the cause it found.

It never asks for an experiment itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from shakedown.core import Factor, FactorKind
from shakedown.isolate.arena import Arena
from shakedown.isolate.closure import Names
from shakedown.isolate.judge import Showing

FITTING = (FactorKind.FIT, FactorKind.CONFIG)


def fits_in(arena: Arena, members: Names, factors: Mapping[str, Factor]) -> tuple[str, ...]:
    """What of the floor makes the model fit and is not needed by the cause."""
    alone = arena.alone(members)
    return tuple(
        name
        for name in sorted(arena.floor)
        if factors[name].kind in FITTING and members <= arena.needs.without(alone, {name})
    )


def parts_of(arena: Arena, members: Names, fits: tuple[str, ...], shows: Callable[[Names], Showing]) -> Names:
    """Those of `fits` without which the cause alone no longer fails: one launch where there are none."""
    alone = arena.alone(members)
    if not fits or shows(arena.needs.without(alone, fits)) is not Showing.SERVES:
        return frozenset()
    if len(fits) == 1:
        return frozenset(fits)
    return frozenset(name for name in fits if shows(arena.needs.without(alone, {name})) is Showing.SERVES)


def freed(arena: Arena, parts: Names) -> Arena:
    """The same search with these among what may be removed."""
    return replace(arena, floor=arena.needs.without(arena.floor, parts))
