"""The container of one run, through the client that made it: found, stopped, removed, by its ID alone.

It never waits for a client without a limit, nor touches a container whose ID the run did not write down.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shakedown.host import procfs

_ID = re.compile(r"[0-9a-f]{12,64}")
_LOOK_S = 5.0
_REMOVE_S = 15.0  # a client kills and waits for 10 s itself
_BEYOND_GRACE_S = 5.0
_STEP_S = 0.05
_MOST_BYTES = 1 << 16

Turn = Callable[[float], None]  # does the caller's other duties for so many seconds


class ContainerRun:
    """`env` is what the client finds its engine by; `id_file` comes into being with the container."""

    def __init__(self, client: Sequence[str], id_file: Path, env: Mapping[str, str]) -> None:
        self._client = tuple(client)
        self._id_file = id_file
        self._env = dict(env)

    @property
    def id(self) -> str | None:
        """None while there is no container, or where what the file says is no ID."""
        try:
            text = self._id_file.read_text().strip()
        except (OSError, ValueError):
            return None
        return text if _ID.fullmatch(text) else None

    def first_process(self, turn: Turn, enough: Callable[[], bool]) -> int | None:
        """The pid of the container's first process as its engine tells it; None before it runs."""
        if (own := self.id) is None:
            return None
        told = self._ask(
            "inspect", "--format", "{{.State.Pid}}", own, limit_s=_LOOK_S, turn=turn, enough=enough
        )
        number = told.strip()
        return int(number) if number.isdecimal() and int(number) > 1 else None

    def end(self, grace_s: float, turn: Turn, hurried: Callable[[], bool]) -> None:
        """Stop it within the grace, then kill and remove it, where there is one."""
        if (own := self.id) is None:
            return
        if grace_s >= 1:
            limit_s = grace_s + _BEYOND_GRACE_S
            self._ask("stop", "--time", str(round(grace_s)), own, limit_s=limit_s, turn=turn, enough=hurried)
        self._ask("kill", own, limit_s=_LOOK_S, turn=turn)  # podman's `rm --force` would ask for 10 s first
        self._ask("rm", "--force", own, limit_s=_REMOVE_S, turn=turn)

    def is_gone(self, turn: Turn) -> bool:
        """Whether the client says so; silence is no answer."""
        own = self.id
        return own is None or "no such" in self._ask("inspect", own, limit_s=_LOOK_S, turn=turn).lower()

    def end_surely(self, turn: Turn) -> bool:
        """Says whether it is gone; one that came up meanwhile is ended now."""
        if not self.is_gone(turn):
            self.end(0.0, turn, lambda: True)
            return self.is_gone(turn)
        return True

    def _ask(
        self, *words: str, limit_s: float, turn: Turn, enough: Callable[[], bool] = lambda: False
    ) -> str:
        """What the client says, both streams; cut off at the limit, or once it is `enough`."""
        said = os.memfd_create("said")
        try:
            pid = os.posix_spawn(
                self._client[0],
                [*self._client, *words],
                self._env,
                file_actions=[(os.POSIX_SPAWN_DUP2, said, 1), (os.POSIX_SPAWN_DUP2, said, 2)],
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
            self._wait(pid, time.monotonic() + limit_s, turn, enough)
            os.lseek(said, 0, os.SEEK_SET)
            return os.read(said, _MOST_BYTES).decode(errors="replace")
        except OSError as problem:  # the client was removed meanwhile
            return str(problem)
        finally:
            os.close(said)

    def _wait(self, pid: int, until: float, turn: Turn, enough: Callable[[], bool]) -> None:
        """Our own child, not yet reaped by us or by a turn: its number is nobody else's until then."""
        ticks = procfs.started_ticks(pid) or 0
        while procfs.is_alive(pid, ticks):
            if time.monotonic() > until or enough():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                break
            turn(_STEP_S)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def is_of(pid: int, container: str) -> bool:
    """Whether the kernel itself has the process in this container, and at the head of a session of its own.

    A client that talks to another machine tells numbers that may be anybody's here.
    """
    seen = procfs.read_stat(pid)
    return seen is not None and seen.session == pid and container in procfs.read_cgroups(pid)
