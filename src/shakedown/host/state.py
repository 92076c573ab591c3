"""What a run's folder tells about it: `state.json`, written by the supervisor, read by everybody else.

It never holds a command of the launch, a variable or a line of output.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shakedown.host.procfs import ShmObject

FILE = "state.json"
VISITED, DISARMED = "visited", "disarmed"
_SPARE = "state.spare"  # room for the last words on a disk that others fill
_SPARE_BYTES = 64 << 10
_SCHEMA = 1


@dataclass(slots=True, kw_only=True)
class ContainerState:
    """`ports`: (port of this machine, port inside). `first`: its first process, 0 until seen from here."""

    client: list[str]
    id_file: str
    ports: list[tuple[int, int]]
    first: int = 0
    gone: bool = False  # seen to be, after the run was ended


@dataclass(slots=True, kw_only=True)
class RunState:
    """Identities are (pid, started ticks) and hold within one boot."""

    boot_id: str
    supervisor: tuple[int, int]
    started_s: float
    leader: tuple[int, int] = (0, 0)
    cgroup: str | None = None
    armed: bool = True  # end the run when the tool dies
    patience_s: float = 0.0  # how long after that, unless a visitor comes
    owned: list[tuple[int, int]] = field(default_factory=list)
    shm: list[ShmObject] = field(default_factory=list)
    exit: tuple[int | None, int | None] | None = None  # (code, signal) of the leader
    exited_s: float | None = None
    ended: str | None = None  # why the run was ended, once it has
    end_seconds: float = 0.0
    left: list[tuple[int, int]] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)
    forced: bool = False
    problem: str | None = None
    container: ContainerState | None = None


def visit(folder: Path, *, disarm: bool = False) -> None:
    """Tell the supervisor of a run without its tool that somebody is there, or that nobody need be."""
    path = folder / (DISARMED if disarm else VISITED)
    with contextlib.suppress(OSError):  # the folder is gone with the run
        path.touch(mode=0o600)


def last_visit(folder: Path) -> int:
    """A number that changes with every visit, 0 before the first; -1 once nobody need to come."""
    try:
        if (folder / DISARMED).exists():
            return -1
        return (folder / VISITED).stat().st_mtime_ns
    except OSError:
        return 0


def save_room(folder: Path) -> None:
    """Keep room for `write_state`. Raises OSError where there is none left."""
    handle = os.open(folder / _SPARE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(handle, 0, _SPARE_BYTES)
    finally:
        os.close(handle)


def give_room(folder: Path) -> bool:
    """Whether there was any left to give."""
    try:
        (folder / _SPARE).unlink()
    except OSError:
        return False
    return True


def write_state(folder: Path, state: RunState) -> None:
    """Replace the file at once: a reader sees the old or the new, never a half. Raises OSError."""
    fields = {name: getattr(state, name) for name in RunState.__slots__}
    fields["container"] = asdict(state.container) if state.container else None
    new = folder / f"{FILE}.new"
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:  # whole or not: a nearly full disk takes a part without an error
        file.write(json.dumps({"schema": _SCHEMA} | fields).encode())
    new.replace(folder / FILE)


def read_state(folder: Path) -> RunState | None:
    """None where there is no run, or not one that this version can read."""
    try:
        fields: dict[str, Any] = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    if fields.pop("schema", None) != _SCHEMA:
        return None
    for name in ("supervisor", "leader", "exit"):
        fields[name] = tuple(fields[name]) if fields[name] is not None else None
    for name in ("owned", "left"):
        fields[name] = [(pid, ticks) for pid, ticks in fields[name]]
    fields["shm"] = [ShmObject(*it) for it in fields["shm"]]
    if container := fields.get("container"):
        fields["container"] = ContainerState(**container)
    return RunState(**fields)
