"""What of a launch can be changed, and the launch that a choice of changes makes.

It starts nothing and knows no engine: flags, groups and safe values come from the tables it is handed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shakedown.core import Command, Engine, Experiment, Factor, FactorKind, FlagTable, Launch
from shakedown.isolate.outside import Outside, outside_factors
from shakedown.isolate.settings import device_of
from shakedown.isolate.sorting import Sorting

__all__ = [
    "apply",
    "close",
    "describe_changes",
    "device_of",
    "factors_of",
    "with_debug_logging",
]


def factors_of(
    command: Command, table: FlagTable | None, outside: Outside | None = None
) -> tuple[Factor, ...]:
    """Every factor of a launch, disjoint in the tokens they touch.

    In safe mode (all changed but those that are `safe`) optional settings are gone, default-on features
    off, backends conservative. `outside`: what the launch depends on besides its command.
    """
    outside = outside or Outside()
    inside = Sorting(command, table, outside.marks).factors()
    return inside + outside_factors(command, device_of(command, table), inside, outside)


def close(factors: Iterable[Factor], kept: Iterable[str]) -> frozenset[str]:
    """Of `kept`, what still means something: a factor whose need is changed is changed with it."""
    known = {factor.name: factor.needs for factor in factors}
    left = frozenset(kept) & known.keys()
    while True:
        alive = frozenset(name for name in left if (known[name] & known.keys()) <= left)
        if alive == left:
            return left
        left = alive


def apply(launch: Launch, factors: tuple[Factor, ...], experiment: Experiment) -> Launch:
    """The launch of an experiment: what is kept stands verbatim, every other factor is changed.

    A substitute's tokens take the place of the factor's own change; `K=V` of a variable sets it.
    """
    substitutes = dict(experiment.substitutes)
    kept = close(factors, experiment.kept | substitutes.keys())
    dropped: set[int] = set()
    added: list[str] = []
    env = dict(launch.env)
    for factor in factors:
        if factor.name in kept and factor.name not in substitutes:
            continue
        dropped.update(factor.drop_argv)
        for name in factor.drop_env:
            env.pop(name, None)
        tokens, variables = factor.add_argv, factor.add_env
        if factor.name in kept:
            tokens, variables = _substituted(factor, substitutes[factor.name])
        added += tokens
        env.update(variables)
    argv = tuple(token for at, token in enumerate(launch.argv) if at not in dropped) + tuple(added)
    return replace(launch, argv=argv, env=env)


def with_debug_logging(launch: Launch, engine: Engine) -> Launch:
    """The same launch, telling more: evidence only, for it may change timing."""
    return replace(launch, argv=launch.argv + engine.debug_argv, env={**launch.env, **dict(engine.debug_env)})


def describe_changes(
    factors: Iterable[Factor],
    kept: Iterable[str],
    substitutes: Iterable[tuple[str, tuple[str, ...]]] = (),
) -> tuple[str, ...]:
    """Each change in words a user reads: "--max-num-seqs 8: removed"."""
    factors = tuple(factors)
    other = dict(substitutes)
    alive = close(factors, frozenset(kept) | other.keys())
    lines = []
    for factor in factors:
        if factor.name in alive and factor.name in other:
            lines.append(f"{factor.was}: replaced by {' '.join(other[factor.name])}")
        elif factor.name not in alive:
            stated = factor.was if factor.drop_argv or factor.drop_env else factor.name
            lines.append(f"{stated}: {factor.now}")
    return tuple(lines)


def _substituted(
    factor: Factor, tokens: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    if factor.drop_env or factor.kind is FactorKind.ENV:
        pairs = [token.partition("=") for token in tokens]
        return (), tuple((name, value) for name, _, value in pairs)
    return tokens, ()
