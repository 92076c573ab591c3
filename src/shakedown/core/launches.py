"""A launch and how its command reads once parsed.

It never starts one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shakedown.core.engines import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The container that a launch makes. `client` talks to whoever runs it: `("docker",)`.

    `ports` are (address, port of this machine, port inside), () where it shares this machine's network.
    `id_file` is where the client writes the container's ID; None before it is known where.
    """

    client: tuple[str, ...]
    ports: tuple[tuple[str, int, int], ...] = ()
    shares_network: bool = False
    id_file: Path | None = None

    def outside(self, port: int) -> tuple[str, int] | None:
        """(address, port) of this machine that lead to a port inside; None where nothing does."""
        if self.shares_network:
            return "", port
        return next(((address, outer) for address, outer, inner in self.ports if inner == port), None)

    def address_of(self, port: int) -> str:
        """Where a port of this machine that leads inside is listened on; "" for any address."""
        return next((address for address, outer, _ in self.ports if outer == port), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One command as a user would start it.

    `argv` is verbatim, wrappers (`env K=V`, `numactl`, `nohup` …) included. `env` is the complete
    environment the process gets, secrets included; it therefore never appears in `repr`.
    `container` is set on its way to a host, which ends the container with the processes.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path
    container: Container | None = None


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
    it cannot be told. `assigned` are variables set by an `env K=V` wrapper or by a container's `-e`:
    (name, value, position), once for each position.
    """

    launch: Launch
    engine: Engine
    interpreter: tuple[str, ...]
    uses: tuple[FlagUse, ...]
    assigned: tuple[tuple[str, str, int], ...] = ()
    unset: tuple[tuple[str, tuple[int, ...]], ...] = ()  # by `env -u K`: (name, positions)
    container: Container | None = None

    @property
    def env(self) -> Mapping[str, str]:
        """The environment as the server sees it, wrappers applied; of a container, what it is given."""
        if self.container:
            return {name: value for name, value, _ in self.assigned}
        gone = {name for name, _ in self.unset}
        kept = {name: value for name, value in self.launch.env.items() if name not in gone}
        return kept | {name: value for name, value, _ in self.assigned}

    def value(self, *names: str) -> str | None:
        """The value of the last use of any of these flags ("" for a bare one), or None."""
        found = [use for use in self.uses if use.name in names]
        return (found[-1].values[-1] if found[-1].values else "") if found else None
