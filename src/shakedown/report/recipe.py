"""The command that serves: what it is whole, and where it differs from the user's.

It never composes one: it reads the trial that proved it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from shakedown.core import Cause, Conclusion, SearchRecord, TrialRecord
from shakedown.report.shell import WIDTH, command


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """`env` holds the recorded variables it runs with, `changed` those not as the user had them."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    changed: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()

    @classmethod
    def between(cls, search: SearchRecord, argv: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> Self:
        """A launch with `argv` and the recorded variables `env`, seen from the user's own (redacted both)."""
        theirs, ours = dict(search.env), dict(env)
        return cls(
            argv=argv,
            env=env,
            changed=tuple((name, value) for name, value in env if theirs.get(name) != value),
            unset=tuple(name for name in theirs if name not in ours),
        )

    @property
    def argv_alone(self) -> tuple[str, ...]:
        """`argv` that also takes away the variables that must go."""
        cleared = tuple(word for name in self.unset for word in ("-u", name))
        return ("env", *cleared, *self.argv) if cleared else self.argv

    def lines(self, *, width: int = WIDTH) -> list[str]:
        return command(self.argv, env=self.env, unset=self.unset, width=width)


def first_cause(conclusion: Conclusion | None) -> Cause | None:
    return conclusion.causes[0] if conclusion and conclusion.causes else None


def proven_recipe(search: SearchRecord, trials: Sequence[TrialRecord]) -> Recipe | None:
    """The launch of the trial that showed the first cause's workaround to serve, or None."""
    cause = first_cause(search.conclusion)
    check = dict(cause.certificate).get("workaround_serves") if cause else None
    if check is None or check.value is not True:
        return None
    shown = [trial for trial in trials if trial.id in check.trial_ids]
    return Recipe.between(search, shown[-1].argv, shown[-1].env) if shown else None
