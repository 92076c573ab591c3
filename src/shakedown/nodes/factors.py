"""Factors across nodes: what all nodes have alike is one factor, what one has alone is a factor of that node.

It never decides which of them to try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from shakedown.core import Experiment, Factor


@dataclass(frozen=True, slots=True, kw_only=True)
class JointFactors:
    """The factors of the whole launch, and what each is called on each node (by rank)."""

    factors: tuple[Factor, ...]
    names: Mapping[str, Mapping[int, str]]

    @classmethod
    def of(cls, nodes: Sequence[tuple[str, Sequence[Factor]]]) -> Self:
        """From each node's name and own factors. Changing a shared factor changes it on every node."""
        places: dict[tuple[object, ...], dict[int, Factor]] = {}
        for rank, (_, factors) in enumerate(nodes):
            for factor in factors:
                places.setdefault(_key(factor), {})[rank] = factor
        called: dict[tuple[int, str], str] = {}
        names: dict[str, Mapping[int, str]] = {}
        drafts: list[tuple[str, dict[int, Factor]]] = []
        for found in places.values():
            some = next(iter(found.values()))
            if len(found) == len(nodes):
                name = some.name
            else:
                name = f"{' and '.join(nodes[rank][0] for rank in found)}: {some.name}"
            names[name] = {rank: factor.name for rank, factor in found.items()}
            called.update({(rank, factor.name): name for rank, factor in found.items()})
            drafts.append((name, found))
        return cls(factors=tuple(_joint(name, found, called) for name, found in drafts), names=names)

    def experiment_of(self, rank: int, experiment: Experiment) -> Experiment:
        """What an experiment with the whole launch is for one node."""
        other = dict(experiment.substitutes)
        return replace(
            experiment,
            kept=frozenset(
                own[rank] for name, own in self.names.items() if name in experiment.kept and rank in own
            ),
            substitutes=tuple(
                (own[rank], other[name]) for name, own in self.names.items() if name in other and rank in own
            ),
        )


def _key(factor: Factor) -> tuple[object, ...]:
    """What must be alike on two nodes for a factor to be one; where its words stand does not matter."""
    return (factor.name, factor.kind, factor.was, factor.now, factor.add_argv, factor.add_env)


def _joint(name: str, found: Mapping[int, Factor], called: Mapping[tuple[int, str], str]) -> Factor:
    """Positions and variables are each node's own business: the joint factor has none."""
    some = next(iter(found.values()))
    needs = frozenset(
        called[rank, need]
        for rank, factor in found.items()
        for need in factor.needs
        if (rank, need) in called
    )
    on = name.removesuffix(some.name)
    return Factor(
        name=name,
        kind=some.kind,
        was=on + some.was,
        now=some.now,
        drop_env=("*",) if some.drop_env else (),
        drop_argv=(0,) if some.drop_argv else (),
        add_argv=some.add_argv,
        add_env=some.add_env,
        needs=needs - {name},
        dear=max(factor.dear for factor in found.values()),
        safe=all(factor.safe for factor in found.values()),
    )
