"""Another machine as a `Machine`: every call goes to our agent there.

It knows nothing of how the connection is made and kept: `line` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from shakedown.core import (
    Ending,
    Execution,
    Exit,
    Gap,
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
from shakedown.host import stacks
from shakedown.host.machine import FOLDER_FACT, Here
from shakedown.host.remote.attached import FarAttached
from shakedown.host.remote.line import QUICK_S, Line
from shakedown.host.remote.link import TooLate
from shakedown.host.remote.logs import HomeLog
from shakedown.host.remote.tunnel import Tunnels

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_S = 600.0  # how long a run goes on over there without us; as long we try to come back
ENDING_S = 90.0  # beyond the grace: the ladder's own limits and a full disk


class RemoteHost(Here):
    """`words` give a shell over there; `title` is how the user calls the machine.

    `base`: the folder over there that an earlier connection made for run folders, None before there is one.
    `keeps`: facts by which a record finds the machine again.
    """

    def __init__(
        self,
        words: Sequence[str],
        title: str,
        *,
        say: Callable[[str], None],
        keeps: Mapping[str, str],
        base: Path | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.name = title
        self._say = say
        self._keeps = dict(keeps)
        self._base_stands = False
        self._logs: dict[Path, HomeLog] = {}
        self._spy_lent = False
        self._attached: list[FarAttached] = []
        self._line = Line(words, title, say=say, patience_s=patience_s)
        self._line.base = base
        self._line.linked()
        self._tunnels = Tunnels(self._line.linked)

    def call(self, name: str, *arguments: Any, deadline_s: float = QUICK_S) -> Any:
        """Raises HostProblem where there is no answer in time, or no connection within the patience."""
        try:
            return self._line.call(name, *arguments, deadline_s=deadline_s)
        except TooLate:
            raise HostProblem(f"{self.name} did not answer `{name}` within {deadline_s:.0f} s") from None

    def close(self) -> None:
        """Leaves nothing over there that was only for this connection."""
        self._line.hurry()
        try:
            if (base := self._line.base) is not None:
                for name in (*(name for each in self._attached for name in each.names), ""):
                    self.call("take_away", base, name)
        except HostProblem:
            pass  # the machine clears its temporary folder itself one day
        self._tunnels.close()
        self._line.close()

    # --- what a machine is asked ---------------------------------------------------------------------------

    def clock_s(self) -> float:
        return self._line.clock_s()

    def gaps(self) -> tuple[Gap, ...]:
        return self._line.gaps()

    def ask(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = self.call(
            "ask", question.__module__, question.__name__, args, kwargs, deadline_s=ENDING_S
        )
        return answer

    def surroundings(self) -> tuple[Mapping[str, str], Path]:
        env, home = self.call("surroundings")
        return env, home

    def facts(self) -> Mapping[str, str]:
        """Known before anything is started there, so that whoever comes later finds it."""
        return {"host": str(self._line.told["node"]), **self._keeps, FOLDER_FACT: str(self._folder())}

    def python(self) -> str:
        return str(self._line.told["python"])

    def place(self, folder: Path) -> Path:
        return self._folder() / folder.name

    def reach(self, url: str) -> str:
        return self._tunnels.reach(url)

    # --- the host ------------------------------------------------------------------------------------------

    def attach_to(self, root: Identity, folder: Path, *, log: Path | None) -> FarAttached:
        """A process that we did not start, as a host of its own. Raises UsageError for an unreadable log."""
        attached = FarAttached(self, self.call, self._folder(), root, folder, log=log)
        self._attached.append(attached)
        return attached

    def start(self, launch: Launch, folder: Path, *, detach: bool = False) -> Run:
        """The log comes home into `folder`."""
        if launch.container and launch.container.id_file:
            argv = tuple(word.replace(str(folder), "{run folder}") for word in launch.argv)
            launch = replace(launch, argv=argv)
        run = self.call("start", self._folder(), launch, folder.name, detach, deadline_s=ENDING_S)
        return self._home(run, folder)

    def attach_run(self, folder: Path, *, patience_s: float = 0.0) -> Run:
        if self._line.base is None:
            raise HostProblem(f"no run to be found on {self.name}: none was started there")
        run = self.call(
            "attach_run", self._folder() / folder.name, patience_s, deadline_s=QUICK_S + patience_s
        )
        return self._home(run, folder)

    def processes(self, run: Run) -> tuple[ProcessSample, ...] | Missing:
        found: tuple[ProcessSample, ...] | Missing = self._reading("processes", self._there(run))
        return found

    def read_log(self, run: Run, offset: int) -> tuple[bytes, int]:
        data, after = self.call("read_log", self._there(run), offset)
        self._log(run.folder).add(data, offset, after)
        return data, after

    def exit_of(self, run: Run) -> Exit | Missing | None:
        found: Exit | Missing | None = self.call("exit_of", self._there(run))
        return found

    def stacks(self, pid: int, *, native: bool = False) -> StackDump | Missing:
        dump: StackDump | Missing = self._reading("stacks", pid, native)
        if isinstance(dump, Missing) and dump.why == stacks.NO_SPY and self._lend_spy():
            dump = self._reading("stacks", pid, native)
        return dump

    def socket_bytes(self, pids: Sequence[int]) -> Mapping[int, int] | Missing:
        found: Mapping[int, int] | Missing = self._reading("socket_bytes", list(pids))
        return found

    def gpu_use(self, pids: Sequence[int]) -> tuple[GpuUse, ...] | Missing:
        found: tuple[GpuUse, ...] | Missing = self._reading("gpu_use", list(pids))
        return found

    def lock_holders(self) -> tuple[LockHolder, ...] | Missing:
        found: tuple[LockHolder, ...] | Missing = self._reading("lock_holders")
        return found

    def listener(self, port: int, run: Run | None = None) -> Listener | None:
        found: Listener | None = self.call("listener", port, self._there(run) if run else None)
        return found

    def end(self, run: Run, *, grace_s: float) -> Ending:
        """Ends it there, brings the rest of its log home and takes its folder away, unless that is the only
        one to hold how the log ends.
        """
        ending: Ending = self.call("end", self._there(run), grace_s, deadline_s=grace_s + ENDING_S)
        log = self._log(run.folder)
        while True:
            data, after = self.call("read_log", self._there(run), log.offset)
            if not data:
                break
            log.add(data, log.offset, after)
        if log.problem:
            there = self._folder() / run.folder.name
            self._say(f"the log could not be copied here ({log.problem}): it stays on {self.name} in {there}")
        elif not ending.left:
            self.call("take_away", self._folder(), run.folder.name)
        return ending

    def disarm(self, run: Run) -> None:
        self.call("disarm", self._there(run))

    def execute(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str = "",
        deadline_s: float,
    ) -> Execution:
        done: Execution = self.call(
            "execute", list(argv), dict(env), cwd, stdin, deadline_s, deadline_s=deadline_s + QUICK_S
        )
        return done

    # --- inside -------------------------------------------------------------------------------------------

    def _reading(self, name: str, *arguments: Any) -> Any:
        """A failed reading is a value; a lost connection is not."""
        try:
            return self._line.call(name, *arguments)
        except TooLate:
            return Missing(what=name, why=f"{self.name} did not answer within {QUICK_S:.0f} s")

    def _folder(self) -> Path:
        """For all of ours over there, made once."""
        if self._line.base is None or not self._base_stands:
            self._line.base = self.call("make_base", self._line.base)
            self._base_stands = True
        assert self._line.base is not None
        return self._line.base

    def _there(self, run: Run) -> Run:
        return replace(run, folder=self._folder() / run.folder.name)

    def _home(self, run: Run, folder: Path) -> Run:
        """Its start on our clock, which has stood still now and then."""
        return replace(run, folder=folder, started_s=run.started_s - self._line.unseen_s)

    def _log(self, folder: Path) -> HomeLog:
        if folder not in self._logs:
            self._logs[folder] = HomeLog(folder)
        return self._logs[folder]

    def _lend_spy(self) -> bool:
        """Sends our own py-spy, which is one file, where the machine is of the same kind."""
        own = stacks.find_spy()
        if self._spy_lent or own is None or os.uname().machine != self._line.told["machine"]:
            return False
        self._spy_lent = True
        self.call("lend_spy", self._folder(), Path(own).read_bytes(), deadline_s=ENDING_S)
        return True
