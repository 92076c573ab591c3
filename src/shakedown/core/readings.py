"""What is read off a running launch, and the `Host` that reads it.

It never reads anything itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shakedown.core.launches import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A reading that could not be taken: a value, not an exception."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """One process of the launch at one moment. Counters only grow; `pid` + `started_ticks` identify it."""

    pid: int
    started_ticks: int
    ppid: int
    name: str
    state: str  # one letter of /proc/PID/stat: R S D T Z …
    wchan: str
    cpu_s: float
    children_cpu_s: float  # of reaped children
    rss_bytes: int
    minor_faults: int
    read_bytes: int  # rchar: includes the page cache, excludes recv()
    written_bytes: int
    threads: int
    disk_bytes: int = 0  # what the block devices had to give, also for mapped files


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStack:
    """Frames of one thread, innermost first."""

    name: str
    active: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDump:
    pid: int
    threads: tuple[ThreadStack, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What one process of ours holds on one GPU, and what that GPU does at the moment.

    `utilisation_percent` is the process's own share of the multiprocessors, as far as the driver tells.
    The rest are of the GPU as a whole: `busy_percent` of the last moments with any kernel running,
    `memory_percent` with its memory read or written. None: the driver does not tell.
    """

    pid: int
    used_bytes: int
    utilisation_percent: int | None
    gpu: int = 0
    busy_percent: int | None = None
    memory_percent: int | None = None
    power_w: int | None = None
    clock_mhz: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Who holds a lock file, and what it and its descendants have done since they began."""

    path: str
    pid: int
    name: str
    cpu_s: float
    io_bytes: int  # read and written by system calls; 0 where we may not look


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of the server's output, redacted and free of escape codes; seconds since start."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How the leader ended. `signal` is the number that ended it, else None."""

    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who listens on a TCP port. `ours`: provably a process of the run asked about."""

    port: int
    pid: int | None
    program: str
    ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A process for good: a pid alone may be handed out again."""

    pid: int
    started_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A started launch: its folder (log, state), its supervisor and its leader."""

    folder: Path
    supervisor: Identity
    leader: Identity
    started_s: float  # host clock at start


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What stopping left: processes that would not die, and shared memory that was swept.

    `problem`: what was not recorded of the run, as where the disk was full; "" where all was.
    `not_ended`: why nobody saw it end, as where its machine is out of reach; "" where somebody did.
    `gpu_back_s`: from the last process's end until the driver counted no GPU memory of theirs any more;
    None where they held none. `gpu_left_bytes`: what it still counted when we waited no longer.
    """

    seconds: float
    left: tuple[ProcessSample, ...]
    swept_shm: tuple[str, ...]
    forced: bool  # a KILL was needed
    problem: str = ""
    not_ended: str = ""
    gpu_back_s: float | None = None
    gpu_left_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A time in which the machine was out of sight. `at_s`: the host's clock, which stood still meanwhile."""

    at_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A short program run to its end (or to its deadline) on the host."""

    code: int | None
    stdout: str
    stderr: str
    timed_out: bool
    seconds: float


class Host(Protocol):
    """Acting on a machine. Every call has a deadline of its own and returns `Missing` rather than raise."""

    def clock_s(self) -> float: ...
    def start(self, launch: Launch, folder: Path, *, detach: bool = False) -> Run: ...
    def processes(self, run: Run) -> tuple[ProcessSample, ...] | Missing: ...
    def read_log(self, run: Run, offset: int) -> tuple[bytes, int]: ...
    def exit_of(self, run: Run) -> Exit | Missing | None: ...
    def stacks(self, pid: int, *, native: bool = False) -> StackDump | Missing: ...
    def socket_bytes(self, pids: Sequence[int]) -> Mapping[int, int] | Missing: ...
    def gpu_use(self, pids: Sequence[int]) -> tuple[GpuUse, ...] | Missing: ...
    def lock_holders(self) -> tuple[LockHolder, ...] | Missing: ...
    def listener(self, port: int, run: Run | None = None) -> Listener | None: ...
    def end(self, run: Run, *, grace_s: float) -> Ending: ...
    def disarm(self, run: Run) -> None: ...
    def execute(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str = "",
        deadline_s: float,
    ) -> Execution: ...
