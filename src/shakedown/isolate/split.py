"""Plain splitting: one minimal cause of whatever shape, where no hypothesis explains what was seen.

It never asks the oracle itself and needs no numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shakedown.isolate.arena import Arena
from shakedown.isolate.closure import Names
from shakedown.isolate.judge import Showing

Settle = Callable[[Names, str], Showing]


def split(arena: Arena, smallest: Names, weights: Mapping[str, float], settle: Settle) -> Names:
    """A set that fails on the floor and of which no member can be spared.

    `smallest` is the least set known to fail. Each round finds one more member: along a chain of
    growing sets, the step at which a pass becomes a failure. k members of n cost about k·log2(n).
    """
    found: Names = frozenset()
    high = smallest
    while True:
        low = arena.alone(found)
        if found and settle(low, "the members found so far alone") is Showing.FAILS:
            return _spared(arena, arena.needs.core(found), settle)
        chain = _chain(arena, high - low, weights)
        if not chain:  # what failed before does not fail now: no minimal set can be told
            return _spared(arena, arena.needs.core(found), settle)
        at, width = _turning_point(low, chain, weights, settle)
        found |= frozenset(chain[at - width : at])
        high = low | frozenset(chain[:at])


def _chain(arena: Arena, names: Names, weights: Mapping[str, float]) -> tuple[str, ...]:
    """Likeliest first, each after what it needs, so that every beginning is a set a launch can keep."""
    ordered: list[str] = []
    for name in sorted(names, key=lambda name: (-weights[name], name)):
        wanted = arena.needs.with_needs({name}) & names - frozenset(ordered)
        ordered += sorted(wanted, key=lambda other: (len(arena.needs.needs[other]), other))
    return tuple(ordered)


def _turning_point(
    low: Names, chain: Sequence[str], weights: Mapping[str, float], settle: Settle
) -> tuple[int, int]:
    """(end, width): chain[:end] fails and chain[:end - width] does not; width 1 if all cuts can be tested."""
    serves, fails = 0, len(chain)
    untestable: set[int] = set()
    while True:
        cuts = [cut for cut in range(serves + 1, fails) if cut not in untestable]
        if not cuts:
            return fails, fails - serves
        half = sum(weights[name] for name in chain[serves:fails]) / 2
        cut = min(cuts, key=lambda cut: (abs(sum(weights[n] for n in chain[serves:cut]) - half), cut))
        showing = settle(low | frozenset(chain[:cut]), f"cuts {fails - serves} suspects at {cut - serves}")
        if showing is Showing.FAILS:
            fails = cut
        elif showing is Showing.SERVES:
            serves = cut
        else:
            untestable.add(cut)


def _spared(arena: Arena, members: Names, settle: Settle) -> Names:
    """The members less those without which it still fails."""
    for name in sorted(members):
        if len(members) > 1 or arena.one_less(members, name) != arena.floor:
            less = arena.one_less(members, name)
            if settle(less, f"the same less {name}") is Showing.FAILS:
                return _spared(arena, arena.needs.core(less - arena.floor), settle)
    return members
