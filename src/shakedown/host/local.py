"""This machine as a `Host`.

It never signals a process that is not provably of the run, and knows no engine.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shakedown.core import (
    Ending,
    Execution,
    Exit,
    GpuUse,
    Identity,
    Launch,
    Listener,
    LockHolder,
    Missing,
    ProcessSample,
    Run,
    StackDump,
)
from shakedown.errors import HostProblem
from shakedown.host import cgroup, execution, foreign, locks, procfs, segments, sockets, stacks
from shakedown.host.attached import AttachedHost
from shakedown.host.ending import (
    ask_supervisor,
    container_left,
    end_without_supervisor,
    is_supervised,
    unwritten,
)
from shakedown.host.foreign import listening_on
from shakedown.host.gpu import GpuReader
from shakedown.host.launching import Lifeline, check_launch, start_supervisor, was_begun
from shakedown.host.machine import Here
from shakedown.host.samples import Sampler
from shakedown.host.state import RunState, read_state, visit
from shakedown.host.survey import redactor_of
from shakedown.redact import Redactor, written_secrets

_POLL_S = 0.02
_GPU_BACK_S = 60.0  # hundreds of GB of pinned and device memory are given back in seconds


@dataclass(slots=True, kw_only=True)
class _Held:
    """What only the process that started a run has."""

    lifeline: Lifeline
    redactor: Redactor


class LocalHost(Here):
    """`patience_s`: how long a run goes on after this process has died, which far away may be a lost line.

    `orphaned`: supervisors are no children of this process, for one that kills its children when it ends.
    """

    def __init__(
        self,
        *,
        cgroups: bool = True,
        log_bytes: int = segments.LOG_BYTES,
        patience_s: float = 0.0,
        orphaned: bool = False,
    ) -> None:
        self._orphaned = orphaned
        self.patience_s = patience_s
        self._cgroups = cgroups
        self._log_bytes = log_bytes
        self._held: dict[Path, _Held] = {}
        self._sampler = Sampler()
        self._sockets = sockets.SocketCounter()
        self._gpu = GpuReader()

    def clock_s(self) -> float:
        return time.monotonic()

    def start(self, launch: Launch, folder: Path, *, detach: bool = False) -> Run:
        """Start the launch under a supervisor. If this process dies, the run is ended, unless `detach`.

        Raises UsageError where the program or its folder does not exist, HostProblem where the run
        folder cannot be used or the supervisor does not start.
        """
        check_launch(launch)
        secrets = written_secrets(launch.env, launch.argv, launch.cwd)  # the supervisor reads no file
        run, lifeline = start_supervisor(
            launch,
            folder,
            detach=detach,
            cgroups=self._cgroups,
            log_bytes=self._log_bytes,
            secrets=secrets,
            patience_s=self.patience_s,
            orphaned=self._orphaned,
        )
        redactor = Redactor.of(launch.env, launch.argv, secrets)
        self._held[run.folder] = _Held(lifeline=lifeline, redactor=redactor)
        return run

    def attach_run(self, folder: Path, *, patience_s: float = 0.0) -> Run:
        """Find a run again from its folder, or one about to start there. Raises HostProblem for none."""
        folder = folder.absolute()
        until = time.monotonic() + patience_s
        while (state := read_state(folder)) is None and was_begun(folder) and time.monotonic() < until:
            time.sleep(_POLL_S)
        if state is None:
            raise HostProblem(f"no run to be found in {folder}")
        if state.boot_id != procfs.boot_id():  # the numbers are other processes' now
            state.supervisor = state.leader = (0, 0)
        return Run(
            folder=folder,
            supervisor=Identity(pid=state.supervisor[0], started_ticks=state.supervisor[1]),
            leader=Identity(pid=state.leader[0], started_ticks=state.leader[1]),
            started_s=state.started_s,
        )

    def attach_to(self, root: Identity, folder: Path, *, log: Path | None) -> AttachedHost:
        """A process that we did not start, as a host of its own. Raises UsageError for an unreadable log."""
        redactor = redactor_of(foreign.find(root.pid))
        return AttachedHost(self, root, folder, log=log, redactor=redactor)

    def processes(self, run: Run) -> tuple[ProcessSample, ...] | Missing:
        state = self._state(run)
        if state is None:
            return Missing(what="processes", why=f"the state of the run cannot be read: {run.folder}")
        if state.container and not state.container.first and state.ended is None:
            return Missing(what="processes", why="those of its container are not seen from here")
        owned = set(state.owned)
        if state.cgroup and state.ended is None:
            grouped = cgroup.pids_in(Path(state.cgroup)) or set()
            fresh = grouped - {pid for pid, _ in owned}
            owned |= {(pid, ticks) for pid in fresh if (ticks := procfs.started_ticks(pid))}
        return self._sample(run, sorted(owned))

    def read_log(self, run: Run, offset: int) -> tuple[bytes, int]:
        """Whole redacted lines from `offset` on (at most 4 MiB), and where to go on."""
        return segments.read_log(run.folder, offset)

    def exit_of(self, run: Run) -> Exit | Missing | None:
        """Missing where the leader lives and its supervisor was killed: nobody takes its output in."""
        supervised = is_supervised(run)  # asked first: the last thing it does is to write its state
        state = self._state(run)
        if state and state.exit:
            return Exit(code=state.exit[0], signal=state.exit[1])
        if supervised:
            return None
        if not procfs.is_alive(run.leader.pid, run.leader.started_ticks):
            return Exit(code=None, signal=None)  # the one who would have seen it is dead too
        if state and state.ended:
            return None
        return Missing(what="exit", why=f"its supervisor (pid {run.supervisor.pid}) was killed")

    def stacks(self, pid: int, *, native: bool = False) -> StackDump | Missing:
        return stacks.dump_stacks(pid, native=native)

    def socket_bytes(self, pids: Sequence[int]) -> Mapping[int, int] | Missing:
        """TCP bytes received and acknowledged per process; they only grow."""
        try:
            return self._sockets.count(list(pids))
        except OSError as problem:
            return Missing(what="sockets", why=f"the kernel does not tell: {problem.strerror or problem}")

    def gpu_use(self, pids: Sequence[int]) -> tuple[GpuUse, ...] | Missing:
        return self._gpu.read(pids)

    def lock_holders(self) -> tuple[LockHolder, ...] | Missing:
        """Who holds lock files, of the run or not; those of other users are seen by root alone."""
        try:
            return locks.read_holders(self._program)
        except OSError as problem:
            return Missing(what="file locks", why=f"the kernel does not tell: {problem.strerror or problem}")

    def listener(self, port: int, run: Run | None = None) -> Listener | None:
        """Who listens on a TCP port of this machine; `ours` only if nobody but the run does."""
        state = self._state(run) if run else None
        inodes = sockets.listening_inodes(port)
        if state and (container := state.container):
            if not container.first:  # nobody held the port before, and more cannot be seen from here
                return Listener(port=port, pid=None, program="a container", ours=True) if inodes else None
            if inner := dict(container.ports).get(port):
                return self._listener_inside(container.first, port, inner)
        if not inodes:
            return None
        owned = {pid for pid, ticks in state.owned if procfs.is_alive(pid, ticks)} if state else set()
        held = {inode: pid for pid in owned for inode in (procfs.socket_inodes(pid) or set()) & inodes}
        ours = held.keys() == inodes
        if not ours:  # name the stranger
            held = {i: pid for i, pid in sockets.holders_of(inodes - held.keys()).items()}
        pid = min(held.values(), default=None)
        return Listener(port=port, pid=pid, program=self._program(pid), ours=ours)

    def _listener_inside(self, first: int, port: int, inner: int) -> Listener | None:
        """On a port that leads into the run's container, in whose network somebody must listen."""
        if inner not in {number for _, number in listening_on(first).values()}:
            return None
        return Listener(port=port, pid=first, program=self._program(first), ours=True)

    def end(self, run: Run, *, grace_s: float) -> Ending:
        """End everything of the run: ask the leader, wait `grace_s`, ask all, kill. Already dead is fine."""
        began = time.monotonic()
        self._gpu.prepare()
        owned = {pid for pid, _ in state.owned} if (state := self._state(run)) else set()
        if is_supervised(run):
            held = self._held.get(run.folder)
            told = held is not None and held.lifeline.order(grace_s=grace_s)
            ask_supervisor(run, grace_s, told=told)
        if run.folder in self._held:
            _reap(run.supervisor.pid)
        state = self._state(run) or unwritten(run)
        if state.ended is None:
            state = end_without_supervisor(run, state, grace_s)
        left = self._sample(run, [(pid, ticks) for pid, ticks in state.left if procfs.is_alive(pid, ticks)])
        if state.container and not state.container.gone:
            left = (*left, container_left(state.container))
        if held := self._held.pop(run.folder, None):
            held.lifeline.close()
        owned |= {pid for pid, _ in state.owned} | {run.leader.pid}
        gone = {pid for pid in owned if procfs.is_gone(pid)}  # a number taken anew is a stranger's
        back = self._gpu.wait_until_free(gone, _GPU_BACK_S)
        seconds = time.monotonic() - began
        return Ending(
            seconds=seconds,
            left=left,
            swept_shm=tuple(state.swept),
            forced=state.forced,
            problem=state.problem or "",
            gpu_back_s=back[0] if back else None,
            gpu_left_bytes=back[1] if back else 0,
        )

    def disarm(self, run: Run) -> None:
        """Let the run go on when this process ends. Raises HostProblem where another process holds it."""
        held = self._held.get(run.folder)
        if held is None:
            state = self._state(run)
            if state is None or not state.armed:
                return
            if not state.patience_s:
                raise HostProblem(f"another process holds the run in {run.folder}")
            visit(run.folder, disarm=True)
        else:
            held.lifeline.order(disarm=True)
        until = time.monotonic() + 5.0
        while is_supervised(run) and time.monotonic() < until:
            if (state := self._state(run)) and not state.armed:
                return
            time.sleep(_POLL_S)
        raise HostProblem(f"the supervisor of the run in {run.folder} does not answer")

    def execute(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str = "",
        deadline_s: float,
    ) -> Execution:
        """Run a short program; known secrets are taken out of what it says. Code 127: it did not start."""
        try:
            done = execution.execute(argv, env=env, cwd=cwd, stdin=stdin, deadline_s=deadline_s)
        except OSError as problem:
            why = f"{argv[0]}: {problem.strerror}"
            return Execution(code=127, stdout="", stderr=why, timed_out=False, seconds=0.0)
        redactor = Redactor.of(env, argv, cwd=cwd)
        return replace(
            done, stdout=redactor.redact_values(done.stdout), stderr=redactor.redact_values(done.stderr)
        )

    def _state(self, run: Run) -> RunState | None:
        """What is written of a run; after a reboot nothing of it lives."""
        state = read_state(run.folder)
        if state and state.boot_id != procfs.boot_id():
            state.owned, state.left, state.cgroup, state.container = [], [], None, None
            state.ended = state.ended or "the machine was restarted"
        return state

    def _sample(self, run: Run, owned: Sequence[tuple[int, int]]) -> tuple[ProcessSample, ...]:
        held = self._held.get(run.folder)
        redactor = held.redactor if held else Redactor()
        found = (self._sampler.sample(pid, ticks, redactor) for pid, ticks in owned)
        return tuple(sample for sample in found if sample)

    def _program(self, pid: int | None) -> str:
        ticks = procfs.started_ticks(pid) if pid else None
        sample = self._sampler.sample(pid, ticks, Redactor()) if pid and ticks else None
        return sample.name if sample else "a process of another user"


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
