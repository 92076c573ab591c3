"""When all stacks of a launch are looked at: once in a silence, then again and again once it is suspect.

It never looks.
"""

from __future__ import annotations

from shakedown.watch.situation import Limits

SLOW_ROUND_S = 15.0  # between looks once the first rounds decided nothing


class Rounds:
    """The rounds of looks in one silence; `over` counts those after its budget."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._at_s: list[float] = []
        self._over_s: list[float] = []

    @property
    def count(self) -> int:
        return len(self._at_s)

    @property
    def over(self) -> int:
        return len(self._over_s)

    @property
    def span_s(self) -> float:
        """The time that the rounds after the budget cover."""
        return self._over_s[-1] - self._over_s[0] if self._over_s else 0.0

    def is_due(self, now_s: float, quiet_s: float, budget_s: float) -> bool:
        if quiet_s < self._limits.quiet_s:
            return False
        if not self._at_s:
            return True
        since_s = now_s - self._at_s[-1]
        if quiet_s < budget_s:  # one look is enough to compare with, unless a known failure is looked for
            return self._limits.expected is not None and since_s >= self._limits.quiet_s
        if not self._over_s:
            return True
        settled = self.over >= 2 * self._limits.rounds
        return since_s >= (SLOW_ROUND_S if settled else self._limits.round_s)

    def begin(self, now_s: float, *, over: bool) -> None:
        self._at_s.append(now_s)
        if over:
            self._over_s.append(now_s)

    def forget(self, *, keep: bool) -> None:
        """Something moved. `keep`: it was only a stack, and the next look is not due at once."""
        self._over_s.clear()
        if not keep:
            self._at_s.clear()
