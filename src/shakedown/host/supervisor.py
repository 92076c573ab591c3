"""The small program between us and the server: starts it, owns what descends from it, ends it, outlives us.

It never reads its orders from a command line, never blocks the server, and never signals what is not a
descendant. It runs isolated (`-I -S`) and imports the standard library and this room only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from shakedown.host import cgroup, procfs
from shakedown.host.child import fork_server
from shakedown.host.container import ContainerRun, is_of
from shakedown.host.duties import Duties
from shakedown.host.family import Family
from shakedown.host.ladder import bring_down
from shakedown.host.output import RawOutput, RedactedLog, drain
from shakedown.host.scrub import Scrubber
from shakedown.host.shm import ShmWatch, sweep
from shakedown.host.state import ContainerState, RunState, give_room, last_visit, save_room, write_state
from shakedown.redact import Redactor

_PR_SET_CHILD_SUBREAPER = 36
_DRAIN_S = 0.1
_LOOK_S = 0.5
_CLIENT_S = 1.0  # a client ends by itself once its container is gone
_SEEK_S = 1.0  # between questions for the container's first process, until it runs
_LOOK_AGAIN_S = 5.0  # every process judged anew
_GRACE_S = 15.0  # where nobody said another: a healthy SGLang needs 5-8 s
_ORPHANED_GRACE_S = 0.3  # nobody waits for a gentle end any more; granted twice, to the leader and to all
_DRAIN_BYTES = 1 << 20  # of output a turn, so that a flood keeps no signal waiting


class Supervisor:
    def __init__(self, spec: dict[str, Any]) -> None:
        self._folder = Path(spec["folder"])
        self._grace_s = _GRACE_S
        self._asked = 0  # SIGTERMs received
        self._abandoned = False  # our tool died while it waited for the end
        self._why: str | None = None
        own_ticks = procfs.started_ticks(os.getpid()) or 0
        self._group = cgroup.make(f"shakedown-{os.getpid()}-{own_ticks}") if spec["cgroups"] else None
        redactor = Redactor.of(spec["env"], spec["argv"], spec["secrets"])
        save_room(self._folder)
        self._raw = RawOutput(self._folder)
        self._log_bytes = int(spec["log_bytes"])
        self._log = RedactedLog(self._folder, Scrubber(redactor), limit_bytes=self._log_bytes)
        self._shm = ShmWatch()
        self._family = Family(root=os.getpid(), group=self._group)
        self._state = RunState(
            boot_id=procfs.boot_id(),
            supervisor=(os.getpid(), own_ticks),
            started_s=time.monotonic(),
            cgroup=str(self._group) if self._group else None,
            armed=not spec["detach"],
            patience_s=float(spec["patience_s"]),
        )
        self._container: ContainerRun | None = None
        if given := spec["container"]:
            self._state.container = ContainerState(**given)
            self._container = ContainerRun(given["client"], Path(given["id_file"]), spec["env"])
        self._orders = b""
        self._behind = False  # more output waits
        self._alone_s: float | None = None  # since when nobody looked after an armed run
        self._visit = 0
        self._duties = Duties()
        self._looked_s = self._judged_s = self._sought_s = 0.0
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)

    def start(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Start the server. What to answer: the leader, or why there is none."""
        self._listen_to_signals()
        pid, refused = fork_server(spec, self._raw.descriptor, self._group)
        if refused:
            if self._group:
                cgroup.remove(self._group)
            return {"problem": "exec", "errno": refused}
        self._state.leader = (pid, procfs.started_ticks(pid) or 0)
        self._look(thorough=True)
        self._save()
        return {
            "supervisor": os.getpid(),
            "leader": self._state.leader,
            "started_s": self._state.started_s,
        }

    def run(self) -> None:
        """Watch over the run until asked to end it, or until nobody who could ask is left."""
        while not self._why:
            self._turn(_DRAIN_S)
            with self._duties.optional("the search for its container"):
                self._seek_container()
            self._miss_visitors()
            if not self._family.members and not self._state.armed and self._state.exit:
                self._look(thorough=True)
                self._why = None if self._family.members else "everything exited"
        self._end(self._why)

    def _end(self, why: str) -> None:
        began = time.monotonic()
        self._turn(0.0)  # the patience we are asked to have may wait to be read
        self._look(thorough=True)
        self._sample_shm()
        grace_s = self._grace_s
        if self._container:  # its client may be deaf, or gone: the container is asked itself
            self._container.end(grace_s, self._turn, self._is_hurried)
            grace_s = min(grace_s, _CLIENT_S)
        fall = bring_down(
            self._family, self._state.leader[0], grace_s, turn=self._turn, hurried=self._is_hurried
        )
        if self._container and self._state.container:
            self._state.container.gone = self._container.end_surely(self._turn)
        self._reap()
        self._sweep()
        self._drain(most_bytes=2 * self._log_bytes)
        self._finish_line()
        if self._group:
            cgroup.remove(self._group)
        self._state.left = [(member.pid, member.started_ticks) for member in fall.left]
        self._state.owned = list(self._state.left)
        self._state.forced = fall.forced
        self._state.end_seconds = time.monotonic() - began
        self._state.ended = why
        self._save()
        give_room(self._folder)

    def _miss_visitors(self) -> None:
        """Our tool is gone and may come back, over a new connection: for so long the run goes on alone."""
        if self._alone_s is None or not self._state.armed:
            return
        seen, now = last_visit(self._folder), time.monotonic()
        if seen < 0:
            self._state.armed = False
            self._save()
        elif seen != self._visit:
            self._visit, self._alone_s = seen, now
        elif now - self._alone_s > self._state.patience_s:
            self._why = self._why or f"nobody came back for {self._state.patience_s:.0f} s"
            self._grace_s = _ORPHANED_GRACE_S

    def _is_hurried(self) -> bool:
        return self._asked > 1 or self._abandoned

    def _seek_container(self) -> None:
        """Its processes descend from whoever runs containers here, not from us: they are told, and proven."""
        seen, now = self._state.container, time.monotonic()
        if not self._container or not seen or seen.first or now - self._sought_s < _SEEK_S:
            return
        self._sought_s = now
        first = self._container.first_process(self._turn, lambda: self._why is not None)
        known = first is not None and self._family.find(first) is not None  # podman's descend from its client
        if first and (known or (is_of(first, self._container.id or "-") and self._family.adopt(first))):
            seen.first = first
            self._look(thorough=True)
            self._save()

    def abandon(self, failure: BaseException) -> None:
        """We are broken: leave no server without a supervisor."""
        with self._duties.optional("the end of its container"):
            if self._container:
                self._container.end(0.0, time.sleep, lambda: True)
        fall = bring_down(self._family, self._state.leader[0], 0.0, turn=time.sleep, hurried=lambda: True)
        self._state.left = [(member.pid, member.started_ticks) for member in fall.left]
        self._state.ended, self._state.forced = "the supervisor failed", fall.forced
        self._state.problem = self._state.problem or f"its supervisor failed: {type(failure).__name__}"
        self._sweep()
        self._save()

    def _turn(self, wait_s: float) -> None:
        """One round of every duty; wakes early for orders and signals."""
        for descriptor, _ in self._poll.poll(0 if self._behind else wait_s * 1000):
            if descriptor == 0:
                self._take_orders()
            else:
                _swallow(descriptor)
        self._behind = self._drain(most_bytes=_DRAIN_BYTES) >= _DRAIN_BYTES
        changed = self._reap()
        if changed:  # whoever learns of the exit finds the last words in the log
            self._drain(most_bytes=self._log_bytes)
        now = time.monotonic()
        if changed or now - self._looked_s >= _LOOK_S:  # who lives on without the leader is news too
            changed |= self._look(thorough=now - self._judged_s >= _LOOK_AGAIN_S)
            changed |= self._sample_shm(only_when_due=True)
        if self._state.exit and not self._family.members:
            self._finish_line()
        if self._log.problem and self._log.problem != self._state.problem:
            self._state.problem = self._log.problem
            changed = True
        if changed:
            self._save()

    def _drain(self, *, most_bytes: int) -> int:
        moved = -1
        with self._duties.optional("its output"):
            moved = drain(self._raw, self._log, most_bytes=most_bytes, skip_above_bytes=self._log_bytes)
        if moved < 0:  # what was taken is lost
            self._log.problem = self._log.problem or "its log ends early: it could not be taken in"
        return moved

    def _finish_line(self) -> None:
        with self._duties.optional("its output"):
            self._log.finish_line()

    def _look(self, *, thorough: bool = False) -> bool:
        changed = False
        with self._duties.optional("the look at its processes"):
            changed = self._family.look(thorough=thorough)
        self._looked_s = time.monotonic()
        self._judged_s = self._looked_s if thorough else self._judged_s
        if changed:
            self._state.owned = [(member.pid, member.started_ticks) for member in self._family.members]
        return changed

    def _sample_shm(self, *, only_when_due: bool = False) -> bool:
        found = False
        with self._duties.optional("the watch on /dev/shm"):
            pids = [member.pid for member in self._family.members]
            found = self._shm.sample(pids, now=not only_when_due)
        if found:
            self._state.shm = sorted(self._shm.seen)
        return found

    def _sweep(self) -> None:
        with self._duties.optional("the sweep of /dev/shm"):
            self._state.swept = sweep(self._state.shm)

    def _reap(self) -> bool:
        changed = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return changed
            if pid == 0:
                return changed
            if pid == self._state.leader[0] and self._state.exit is None:
                killed = os.WIFSIGNALED(status)
                self._state.exit = (
                    None if killed else os.WEXITSTATUS(status),
                    os.WTERMSIG(status) if killed else None,
                )
                self._state.exited_s = time.monotonic()
                changed = True

    def _take_orders(self) -> None:
        received = os.read(0, 65536)
        if not received:
            self._poll.unregister(0)
            if self._state.armed and self._state.patience_s and not self._why:
                self._alone_s = time.monotonic()
            elif self._state.armed:
                self._abandoned = self._why is not None
                self._why, self._grace_s = self._why or "our tool died", _ORPHANED_GRACE_S
            return
        *lines, self._orders = (self._orders + received).split(b"\n")
        for order in map(json.loads, lines):
            self._grace_s = float(order.get("grace_s", self._grace_s))
            if order.get("disarm"):
                self._state.armed = False
                self._save()

    def _listen_to_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll.register(woken, select.POLLIN)

    def _ask(self, number: int, _frame: object) -> None:
        """The handler of SIGTERM: the second one ends all patience."""
        self._asked += 1
        self._why = self._why or "asked to"

    def _save(self) -> None:
        try:
            write_state(self._folder, self._state)
        except OSError as problem:  # the folder is gone or full: what is ours must be ended all the same
            if give_room(self._folder):
                self._state.problem = self._state.problem or f"its state: {problem.strerror}"
                self._save()


def _swallow(descriptor: int) -> None:
    try:
        os.read(descriptor, 4096)
    except BlockingIOError:
        return


def _read_spec() -> dict[str, Any]:
    """One line of JSON. Nothing may follow it until we have answered."""
    pieces: list[bytes] = []
    while not pieces or not pieces[-1].endswith(b"\n"):
        piece = os.read(0, 1 << 20)
        if not piece:
            sys.exit("no orders")
        pieces.append(piece)
    spec: dict[str, Any] = json.loads(b"".join(pieces))
    return spec


def _raise_open_files() -> tuple[int, int]:
    """A pidfd per process of the run may exceed the usual 1,024. The server gets the user's limit back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def _answer(answer: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # our tool died just now: standard input ends as well
        os.write(1, json.dumps(answer).encode() + b"\n")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def main() -> None:
    """Standard input: the spec as one line of JSON, then orders, one a line."""
    os.chdir("/")
    os.closerange(3, 1 << 16)  # a pipe of the terminal's or the CI's that we held open would keep it waiting
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spec = _read_spec()
    spec["open_files"] = _raise_open_files()
    try:
        supervisor = Supervisor(spec)
    except OSError as problem:
        _answer({"problem": "folder", "errno": problem.errno})
        return
    try:
        answer = supervisor.start(spec)
        _answer(answer)
        if "problem" not in answer:
            supervisor.run()
    except BaseException as failure:
        supervisor.abandon(failure)
        raise
