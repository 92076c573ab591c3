"""Other values a culprit could have: numbers between the user's and a safe one, siblings of a choice.

It never tries one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shakedown.core import Command, Factor, FactorKind, Flag, FlagTable, FlagUse
from shakedown.isolate.remedy import Tokens

SINGLE = frozenset({FactorKind.FLAG, FactorKind.FIT, FactorKind.BACKEND})
MOST_SIBLINGS = 6
FLOOR = 1.0  # numbers without a known default are halved down to here


def values_of(
    factors: Iterable[Factor], command: Command, table: FlagTable | None
) -> Mapping[str, tuple[Tokens, ...]]:
    """For each factor that is one flag with one value: what to try in its place, safest first."""
    flags = {name: flag for flag in (table.flags if table else ()) for name in flag.names}
    offered = {}
    for factor in factors:
        use = _only_use(factor, command)
        if use is not None and (values := _values(use, flags.get(use.name), factor)):
            offered[factor.name] = tuple((use.spelled, value) for value in values)
    return offered


def _only_use(factor: Factor, command: Command) -> FlagUse | None:
    """The last of the uses a factor drops: an earlier one of the same flag is without effect."""
    if factor.kind not in SINGLE:
        return None
    uses = [use for use in command.uses if set(use.positions) <= set(factor.drop_argv)]
    same = {use.name for use in uses}
    return uses[-1] if len(same) == 1 and len(uses[-1].values) == 1 else None


def _values(use: FlagUse, flag: Flag | None, factor: Factor) -> list[str]:
    value = use.values[0]
    if (number := _number(value)) is not None:
        safe = _number(factor.add_argv[-1]) if factor.add_argv else None
        default = _number(flag.default) if flag else None
        return _between(number, safe if safe is not None else default)
    if flag is None:
        return []
    siblings = [choice for choice in flag.choices if choice != value]
    siblings.sort(key=lambda choice: choice != flag.default)
    return siblings[:MOST_SIBLINGS]


def _between(number: float, safe: float | None) -> list[str]:
    """Halves from the user's number towards the safe one, or doubles where the safe one is larger."""
    if number <= 0:
        return []
    steps = []
    step = number
    if safe is not None and safe > number:
        while (step := step * 2) < safe:
            steps.append(step)
    else:
        floor = max(safe or 0.0, FLOOR)
        while (step := step / 2) > floor:
            steps.append(step)
    whole = number == int(number)
    texts = [str(int(step)) if whole else f"{step:g}" for step in reversed(steps)]
    return list(dict.fromkeys(texts))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
