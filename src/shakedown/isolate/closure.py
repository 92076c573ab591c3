"""Which sets of factors a launch can keep, given what needs what.

It never decides which of them to try.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shakedown.core import Factor

Names = frozenset[str]


class Dependencies:
    """The `needs` of all factors, followed to their ends. Needs that are no factor are always met."""

    def __init__(self, factors: Sequence[Factor]) -> None:
        names = {factor.name for factor in factors}
        direct = {factor.name: frozenset(factor.needs & names - {factor.name}) for factor in factors}
        self.needs: dict[str, Names] = {name: _followed(name, direct) for name in sorted(direct)}

    def with_needs(self, names: Iterable[str]) -> Names:
        """The names and all they need: the least a launch keeps that keeps these."""
        wanted = frozenset(names)
        return wanted.union(*(self.needs[name] for name in wanted))

    def without(self, kept: Iterable[str], dropped: Iterable[str]) -> Names:
        """`kept` less `dropped` and less all that needs any of them."""
        gone = frozenset(dropped)
        return frozenset(name for name in kept if name not in gone and not self.needs[name] & gone)

    def closed(self, kept: Iterable[str]) -> Names:
        """`kept` less the factors whose needs are not among them."""
        names = frozenset(kept)
        return frozenset(name for name in names if self.needs[name] <= names)

    def core(self, names: Iterable[str]) -> Names:
        """The names that no other of them implies: no launch can tell the set and its core apart."""
        wanted = frozenset(names)
        return frozenset(name for name in wanted if not any(self.implies(by, name) for by in wanted))

    def implies(self, by: str, name: str) -> bool:
        """Whether keeping `by` always keeps `name`; of two that need each other the first name stays."""
        if by == name or name not in self.needs[by]:
            return False
        return by not in self.needs[name] or by < name


def _followed(name: str, direct: dict[str, Names]) -> Names:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for need in direct[waiting.pop()] - found:
            found.add(need)
            waiting.append(need)
    return frozenset(found - {name})
