"""The small program between us and the server: starts it, owns what descends from it, ends it, outlives us.

It never reads its orders from a command line, never blocks the server, and never signals what is not a
descendant. It runs isolated (`-I -S`) and imports the standard library and this room only.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from shakedown.host import cgroup, procfs
from shakedown.host.child import fork_server
from shakedown.host.container import ContainerRun, is_of
from shakedown.host.duties import Duties
from shakedown.host.family import Family
from shakedown.host.ladder import bring_down
from shakedown.host.orders import Orders
from shakedown.host.output import RawOutput, RedactedLog, drain
from shakedown.host.scrub import Scrubber
from shakedown.host.shm import ShmWatch, named_in, sweep
from shakedown.host.state import ContainerState, RunState, give_room, save_room, write_state
from shakedown.redact import Redactor

_DRAIN_S = 0.1
_LOOK_S = 0.5
_CLIENT_S = 1.0  # a client ends by itself once its container is gone
_SEEK_S = 1.0  # between questions for the container's first process, until it runs
_LOOK_AGAIN_S = 5.0  # every process judged anew
_DRAIN_BYTES = 1 << 20  # of output a turn, so that a flood keeps no signal waiting


class Supervisor:
    def __init__(self, spec: dict[str, Any]) -> None:
        self._folder = Path(spec["folder"])
        own_ticks = procfs.started_ticks(os.getpid()) or 0
        self._group = cgroup.make(f"shakedown-{os.getpid()}-{own_ticks}") if spec["cgroups"] else None
        redactor = Redactor.of(spec["env"], spec["argv"], spec["secrets"])
        save_room(self._folder)
        self._raw = RawOutput(self._folder)
        self._log_bytes = int(spec["log_bytes"])
        self._log = RedactedLog(self._folder, Scrubber(redactor), limit_bytes=self._log_bytes)
        self._shm = ShmWatch(named_in((*spec["argv"], *spec["env"].values(), spec["cwd"])))
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
        self._orders = Orders(self._folder, self._state)
        self._behind = False  # more output waits
        self._duties = Duties()
        self._looked_s = self._judged_s = self._sought_s = 0.0

    def start(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Start the server. What to answer: the leader, or why there is none."""
        self._orders.listen_to_signals()
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
        while not self._orders.why:
            self._turn(_DRAIN_S)
            with self._duties.optional("the search for its container"):
                self._seek_container()
            if self._orders.miss_visitors():
                self._save()
            if not self._family.members and not self._state.armed and self._state.exit:
                self._look(thorough=True)
                self._orders.why = None if self._family.members else "everything exited"
        self._end(self._orders.why)

    def _end(self, why: str) -> None:
        began = time.monotonic()
        self._turn(0.0)  # the patience we are asked to have may wait to be read
        self._look(thorough=True)
        self._sample_shm()
        grace_s = self._orders.grace_s
        if self._container:  # its client may be deaf, or gone: the container is asked itself
            self._container.end(grace_s, self._turn, self._orders.is_hurried)
            grace_s = min(grace_s, _CLIENT_S)
        fall = bring_down(
            self._family, self._state.leader[0], grace_s, turn=self._turn, hurried=self._orders.is_hurried
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

    def _seek_container(self) -> None:
        """Its processes descend from whoever runs containers here, not from us: they are told, and proven."""
        seen, now = self._state.container, time.monotonic()
        if not self._container or not seen or seen.first or now - self._sought_s < _SEEK_S:
            return
        self._sought_s = now
        first = self._container.first_process(self._turn, lambda: self._orders.why is not None)
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
        if self._orders.wait(0.0 if self._behind else wait_s):
            self._save()
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

    def _save(self) -> None:
        try:
            write_state(self._folder, self._state)
        except OSError as problem:  # the folder is gone or full: what is ours must be ended all the same
            if give_room(self._folder):
                self._state.problem = self._state.problem or f"its state: {problem.strerror}"
                self._save()
