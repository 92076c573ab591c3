"""Causes that stand on no command line: values in the model's config, and what was compiled earlier.

It opens nothing: what the folders hold is handed in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shakedown.core import Cache, Command, ConfigValue, Experiment, Factor, FactorKind, Mark

_DEAR_CACHE, _DEAR_CONFIG = 0, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A cache that holds something: its folder as shown, and an empty one to put in its place."""

    cache: Cache
    folder: str
    fresh: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What a launch depends on besides its command. `marks` are those stated for it."""

    marks: frozenset[Mark] = frozenset()
    filled: tuple[Filled, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


def outside_factors(
    command: Command, device: str, inside: Sequence[Factor], outside: Outside
) -> tuple[Factor, ...]:
    """Factors of the caches and of the config's suspicious values; `inside` are those of the command."""
    filled = (it for it in outside.filled if device in it.cache.devices)
    caches = [_cache(it, command, inside) for it in filled]
    values = [_config(value, outside.config) for value in command.engine.config_values]
    return tuple(factor for factor in (*caches, *values) if factor is not None)


def config_changes(factors: Iterable[Factor], experiment: Experiment) -> dict[str, Any]:
    """What an experiment overrides of the model's config: dotted keys and values."""
    kept = experiment.kept
    return {
        key: json.loads(text)
        for factor in factors
        if factor.name not in kept
        for key, text in factor.add_config
    }


def overridden(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changed keys alone, whole: of an object also what stays as it was."""
    found: dict[str, Any] = {}
    for key, value in changes.items():
        outer, _, inner = key.partition(".")
        if not inner:
            found[outer] = value
        else:
            before = found.get(outer, config.get(outer))
            found[outer] = {**(before if isinstance(before, dict) else {}), inner: value}
    return found


def _cache(filled: Filled, command: Command, inside: Sequence[Factor]) -> Factor | None:
    cache = filled.cache
    needs: frozenset[str] = frozenset()
    if cache.of:
        switch = next(switch for switch in command.engine.switches if switch.feature == cache.of)
        needs = frozenset(factor.name for factor in inside if factor.add_argv == switch.argv)
        if not needs:
            return None  # nothing fills it: the feature is off
    return Factor(
        name=f"what is cached ({cache.variable})",
        kind=FactorKind.CACHE,
        was=f"compiled earlier, in {filled.folder}",
        now=f"an empty cache, {cache.variable}={filled.fresh}",
        drop_argv=tuple(at for name, _, at in command.assigned if name == cache.variable),
        drop_env=(cache.variable,),
        add_env=((cache.variable, filled.fresh),),
        needs=needs,
        dear=_DEAR_CACHE,
    )


def _config(value: ConfigValue, config: Mapping[str, Any]) -> Factor | None:
    outer, _, inner = value.key.partition(".")
    here = config.get(outer)
    if inner:
        here = here.get(inner) if isinstance(here, dict) else None
    plain = json.loads(value.plain)
    if here is None or here == plain or here in value.usual_words or config.get(value.unless_off) is False:
        return None
    if value.usual is not None and isinstance(here, int | float) and value.usual[0] <= here <= value.usual[1]:
        return None
    shown = json.dumps(here)
    return Factor(
        name=f"config.json {value.key}",
        kind=FactorKind.CONFIG,
        was=f"{value.key}: {shown if len(shown) <= 60 else shown[:59] + '…'} in config.json",
        now=f"overridden by {value.plain}",
        add_config=((value.key, value.plain),),
        dear=_DEAR_CONFIG,
    )
