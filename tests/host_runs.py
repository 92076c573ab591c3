"""What the host tests share: starting a misbehaving program, and asking /proc who is alive."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from shakedown.core import Identity, Launch
from shakedown.host import procfs

BAD_SERVERS = Path(__file__).parent / "bad_servers"


def launch_of(program: str, *arguments: object, env: Mapping[str, str] | None = None) -> Launch:
    argv = (sys.executable, str(BAD_SERVERS / program), *map(str, arguments))
    return Launch(argv=argv, env={**os.environ, **(env or {})}, cwd=Path.cwd())


def wait_for(condition: Callable[[], object], limit_s: float = 20.0) -> object:
    until = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < until, f"still waiting for {condition}"
        time.sleep(0.02)
    return found


def identity(pid: int) -> Identity:
    ticks = procfs.started_ticks(pid)
    assert ticks is not None
    return Identity(pid=pid, started_ticks=ticks)


def is_alive(process: Identity) -> bool:
    return procfs.is_alive(process.pid, process.started_ticks)


def family_in(folder: Path) -> dict[str, Identity]:
    """The processes of proc_family.py, once all four stand."""
    wait_for(lambda: len(list(folder.glob("[a-z]*"))) == 4)
    return {path.name: identity(int(path.read_text())) for path in folder.glob("[a-z]*")}
