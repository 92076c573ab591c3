"""A launch and how its command reads once parsed.

It never starts one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shakedown.core.engines import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One command as a user would start it.

    `argv` is verbatim, wrappers (`env K=V`, `numactl`, `nohup` …) included. `env` is the complete
    environment the process gets, secrets included; it therefore never appears in `repr`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagUse:
    """One flag as the user gave it. `name` is canonical where the table knows the flag (`known`).

    `positions` are the places in `Launch.argv` it occupies (`--a=b` has one, `--a b` two).
    """

    name: str
    spelled: str
    values: tuple[str, ...]
    positions: tuple[int, ...]
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A launch, read: which engine, which flags, and how to run Python in its own interpreter.

    `interpreter` starts that interpreter reading a script from stdin (`(python, "-")`), () where
    it cannot be told. `assigned` are variables set by an `env K=V` wrapper: (name, value, position).
    """

    launch: Launch
    engine: Engine
    interpreter: tuple[str, ...]
    uses: tuple[FlagUse, ...]
    assigned: tuple[tuple[str, str, int], ...] = ()
    unset: tuple[tuple[str, tuple[int, ...]], ...] = ()  # by `env -u K`: (name, positions)

    @property
    def env(self) -> Mapping[str, str]:
        """The environment as the server sees it, wrappers applied."""
        gone = {name for name, _ in self.unset}
        kept = {name: value for name, value in self.launch.env.items() if name not in gone}
        return kept | {name: value for name, value, _ in self.assigned}

    def value(self, *names: str) -> str | None:
        """The value of the last use of any of these flags ("" for a bare one), or None."""
        found = [use for use in self.uses if use.name in names]
        return (found[-1].values[-1] if found[-1].values else "") if found else None
