"""What every host of a server that we did not start has in common: it looks on, through another host.

It refuses to start, end or let go of anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from shakedown.core import Ending, Execution, GpuUse, Host, Launch, LockHolder, Missing, Run, StackDump
from shakedown.errors import HostProblem


class Onlooker:
    """`host` is that of the machine the server runs on."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def stacks(self, pid: int, *, native: bool = False) -> StackDump | Missing:
        return self._host.stacks(pid, native=native)

    def socket_bytes(self, pids: Sequence[int]) -> Mapping[int, int] | Missing:
        return self._host.socket_bytes(pids)

    def gpu_use(self, pids: Sequence[int]) -> tuple[GpuUse, ...] | Missing:
        return self._host.gpu_use(pids)

    def lock_holders(self) -> tuple[LockHolder, ...] | Missing:
        return self._host.lock_holders()

    def start(self, launch: Launch, folder: Path, *, detach: bool = False) -> Run:
        refuse("started")

    def end(self, run: Run, *, grace_s: float) -> Ending:
        refuse("ended")

    def disarm(self, run: Run) -> None:
        refuse("let go of")

    def execute(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str = "",
        deadline_s: float,
    ) -> Execution:
        return self._host.execute(argv, env=env, cwd=cwd, stdin=stdin, deadline_s=deadline_s)


def refuse(what: str) -> NoReturn:
    """Raises HostProblem: it is not ours."""
    raise HostProblem(f"a server that we are only attached to is never {what}")
