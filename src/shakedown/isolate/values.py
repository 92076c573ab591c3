"""Other values a culprit could have: numbers between the user's and a safe one, siblings of a choice,
and what costs less than a default's off-switch.

It never tries one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from shakedown.core import Command, Factor, FactorKind, Flag, FlagTable, FlagUse
from shakedown.isolate.remedy import Tokens
from shakedown.isolate.settings import device_of

SINGLE = frozenset({FactorKind.FLAG, FactorKind.FIT, FactorKind.BACKEND})
MOST_SIBLINGS = 6
MOST_STEPS = 64  # of halving or doubling: as far as a whole number of a machine goes
FLOOR = 1.0  # numbers without a known default are halved down to here


def values_of(
    factors: Iterable[Factor], command: Command, table: FlagTable | None
) -> Mapping[str, tuple[Tokens, ...]]:
    """For each factor that is one flag with one value: what to try in its place, safest first."""
    flags = {name: flag for flag in (table.flags if table else ()) for name in flag.names}
    siblings = {
        it.flag: it.values for it in command.engine.siblings if device_of(command, table) in it.devices
    }
    offered: dict[str, tuple[Tokens, ...]] = {}
    for factor in factors:
        use = _only_use(factor, command)
        if use is None:
            offered[factor.name] = _milder(factor, command, flags)
        else:
            values = _values(use, flags.get(use.name), siblings.get(use.name, ()), factor)
            offered[factor.name] = tuple((use.spelled, value) for value in values)
    return {name: values for name, values in offered.items() if values}


def _milder(factor: Factor, command: Command, flags: Mapping[str, Flag]) -> tuple[Tokens, ...]:
    """What may do in place of the off-switch; nothing that the user has set, or that the engine lacks."""
    if factor.kind is not FactorKind.DEFAULT:
        return ()
    used = {use.name for use in command.uses}
    offered = [tokens for it in command.engine.switches if it.argv == factor.add_argv for tokens in it.milder]
    return tuple(tokens for tokens in dict.fromkeys(offered) if tokens[0] in flags.keys() - used)


def _only_use(factor: Factor, command: Command) -> FlagUse | None:
    """The last of the uses a factor drops: an earlier one of the same flag is without effect."""
    if factor.kind not in SINGLE:
        return None
    uses = [use for use in command.uses if set(use.positions) <= set(factor.drop_argv)]
    same = {use.name for use in uses}
    return uses[-1] if len(same) == 1 and len(uses[-1].values) == 1 else None


def _values(use: FlagUse, flag: Flag | None, known: tuple[str, ...], factor: Factor) -> list[str]:
    value = use.values[0]
    if (number := _number(value)) is not None:
        safe = _number(factor.add_argv[-1]) if factor.add_argv else None
        default = _number(flag.default) if flag else None
        return _between(number, safe if safe is not None else default)
    accepted = flag.choices if flag else ()
    choices = [choice for choice in known if not accepted or choice in accepted] or list(accepted)
    usual = flag.default if flag else None
    choices.sort(key=lambda choice: choice != usual)
    return [choice for choice in choices if choice != value][:MOST_SIBLINGS]


def _between(number: float, safe: float | None) -> list[str]:
    """Halves from the user's number towards the safe one, or doubles where the safe one is larger."""
    if number <= 0:
        return []
    if safe is not None and safe > number:
        steps = [step for at in range(1, MOST_STEPS + 1) if (step := number * 2.0**at) < safe]
    else:
        floor = max(safe or 0.0, FLOOR)
        steps = [step for at in range(1, MOST_STEPS + 1) if (step := number / 2.0**at) > floor]
    whole = number == int(number)
    texts = [str(int(step)) if whole else f"{step:g}" for step in reversed(steps)]
    return list(dict.fromkeys(texts))


def _number(text: str | None) -> float | None:
    """None for what is no number, and for those that nothing lies half way to: inf and nan."""
    try:
        found = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None
