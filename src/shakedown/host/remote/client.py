"""Another machine as a `Machine`: every call goes to our agent there, and comes back over a lost connection.

It never takes a lost connection for news of the launch: its clock stands still while nothing can be seen.
"""

from __future__ import annotations

import os
import threading
import time
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
    Missing,
    ProcessSample,
    Run,
    StackDump,
)
from shakedown.errors import EnvironmentProblem, HostProblem
from shakedown.host import stacks
from shakedown.host.machine import FOLDER_FACT, Here
from shakedown.host.remote.attached import FarAttached
from shakedown.host.remote.link import Link, Lost, TooLate
from shakedown.host.remote.logs import HomeLog
from shakedown.host.remote.tunnel import Tunnels

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_S = 600.0  # how long a run goes on over there without us; as long we try to come back
QUICK_S = 45.0  # a reading; a GPU driver may take 13 s until it is given up there
ENDING_S = 90.0  # beyond the grace: the ladder's own limits and a full disk
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 15.0  # between attempts to connect anew
LAST_WORDS_S = 20.0  # to come back for a clean-up after we gave up once


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
        self._words, self._say, self._keeps = tuple(words), say, dict(keeps)
        self._patience_s = patience_s
        self._base, self._base_stands = base, False
        self._link: Link | None = None
        self._linking = threading.RLock()
        self._told: dict[str, Any] = {}  # what the agent said of its machine
        self._ahead_s = 0.0  # its clock minus ours
        self._unseen_s = 0.0
        self._gaps: list[Gap] = []
        self._gave_up = self._closed = False
        self._hurry = threading.Event()
        self._logs: dict[Path, HomeLog] = {}
        self._tunnels = Tunnels(self._linked)
        self._spy_lent = False
        self._attached: list[FarAttached] = []
        self._linked()

    # --- the connection ----------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Any, deadline_s: float = QUICK_S) -> Any:
        """Asked again after a lost connection: everything here may be done twice, and is then done once.

        Raises HostProblem where there is no answer in time, or no connection within the patience.
        """
        try:
            return self._ask(name, *arguments, deadline_s=deadline_s)
        except TooLate:
            raise HostProblem(f"{self.name} did not answer `{name}` within {deadline_s:.0f} s") from None

    def _ask(self, name: str, *arguments: Any, deadline_s: float) -> Any:
        while True:
            try:
                return self._linked().call(name, *arguments, deadline_s=deadline_s)
            except Lost:
                continue
            except KeyboardInterrupt:  # what follows is a clean-up, for which nobody waits ten minutes
                self._hurry.set()
                raise

    def _linked(self) -> Link:
        with self._linking:
            if self._closed:
                raise HostProblem(f"the connection to {self.name} was closed")
            if self._link is None:
                self._link = self._open()
            elif self._link.lost_s is not None:
                self._link = self._regain(self._link, self._link.lost_s)
            return self._link

    def _open(self) -> Link:
        link = Link.open(self._words, os.environ.get("SHAKEDOWN_FAR_PYTHON") or "python3")
        try:
            asked = time.monotonic()
            told = link.call("hello", self._base, self._patience_s, deadline_s=QUICK_S)
        except (Lost, TooLate):
            link.close()
            raise HostProblem(f"the connection to {self.name} broke while it was made") from None
        except BaseException:
            link.close()
            raise
        if self._told.get("boot_id") != told["boot_id"]:  # else its clock has gone on as ours has
            self._ahead_s = told["now_s"] - (asked + time.monotonic()) / 2
        self._told = told
        return link

    def _regain(self, link: Link, lost_s: float) -> Link:
        """Connects again and again, at longer and longer intervals, for as long as the run goes on alone."""
        link.close()
        self._say(f"the connection to {self.name} is lost; what runs there goes on, trying again")
        wait_s = FIRST_WAIT_S
        until = time.monotonic() + (LAST_WORDS_S if self._gave_up else self._patience_s)
        while True:
            if self._hurry.is_set():
                until = min(until, time.monotonic() + LAST_WORDS_S)
                self._hurry.clear()
            try:
                again = self._open()
                break
            except EnvironmentProblem as problem:
                if time.monotonic() + wait_s > until:
                    self._gave_up = True
                    raise HostProblem(
                        f"the connection to {self.name} was lost and not regained: {problem.message}",
                        f"its supervisor ends what runs there {self._patience_s:.0f} s after the loss, "
                        "unless it was detached or kept",
                        *problem.hints,
                    ) from problem
            self._hurry.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        self._gave_up = False
        seconds = time.monotonic() - lost_s
        self._gaps.append(Gap(at_s=lost_s + self._ahead_s - self._unseen_s, seconds=seconds))
        self._unseen_s += seconds
        self._say(f"connected to {self.name} again after {seconds:.1f} s, which count for nothing")
        return again

    def close(self) -> None:
        """Leaves nothing over there that was only for this connection."""
        self._gave_up = True  # nobody waits long for a line to tidy up over
        try:
            if self._base is not None:
                for name in (*(name for each in self._attached for name in each.names), ""):
                    self.call("take_away", self._base, name)
        except HostProblem:
            pass  # the machine clears its temporary folder itself one day
        with self._linking:
            self._closed = True
            self._tunnels.close()
            if self._link is not None:
                self._link.close()

    # --- what a machine is asked ---------------------------------------------------------------------------

    def clock_s(self) -> float:
        """The clock over there, less the time in which nobody could see it."""
        link = self._link
        now = time.monotonic() if link is None or link.lost_s is None else link.lost_s
        return now + self._ahead_s - self._unseen_s

    def gaps(self) -> tuple[Gap, ...]:
        """Also the one that has begun just now."""
        link = self._link
        if link is None or link.lost_s is None:
            return tuple(self._gaps)
        begun = Gap(at_s=self.clock_s(), seconds=time.monotonic() - link.lost_s)
        return (*self._gaps, begun)

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
        return {"host": str(self._told["node"]), **self._keeps, FOLDER_FACT: str(self._folder())}

    def python(self) -> str:
        return str(self._told["python"])

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
        if self._base is None:
            raise HostProblem(f"no run to be found on {self.name}: none was started there")
        run = self.call("attach_run", self._base / folder.name, patience_s, deadline_s=QUICK_S + patience_s)
        return self._home(run, folder)

    def processes(self, run: Run) -> tuple[ProcessSample, ...] | Missing:
        found: tuple[ProcessSample, ...] | Missing = self._reading("processes", self._there(run))
        return found

    def read_log(self, run: Run, offset: int) -> tuple[bytes, int]:
        data, after = self.call("read_log", self._there(run), offset)
        self._log(run.folder).add(data, offset, after)
        return data, after

    def exit_of(self, run: Run) -> Exit | None:
        found: Exit | None = self.call("exit_of", self._there(run))
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

    def listener(self, port: int, run: Run | None = None) -> Listener | None:
        found: Listener | None = self.call("listener", port, self._there(run) if run else None)
        return found

    def end(self, run: Run, *, grace_s: float) -> Ending:
        """Ends it there, brings the rest of its log home and takes its folder away."""
        ending: Ending = self.call("end", self._there(run), grace_s, deadline_s=grace_s + ENDING_S)
        log = self._log(run.folder)
        while True:
            data, after = self.call("read_log", self._there(run), log.offset)
            if not data:
                break
            log.add(data, log.offset, after)
        if not ending.left and self._base is not None:
            self.call("take_away", self._base, run.folder.name)
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

    def signal(self, process: Identity, number: int) -> None:
        self.call("signal", process, number)

    # --- inside -------------------------------------------------------------------------------------------

    def _reading(self, name: str, *arguments: Any) -> Any:
        """A failed reading is a value; a lost connection is not."""
        try:
            return self._ask(name, *arguments, deadline_s=QUICK_S)
        except TooLate:
            return Missing(what=name, why=f"{self.name} did not answer within {QUICK_S:.0f} s")

    def _folder(self) -> Path:
        """For all of ours over there, made once."""
        if self._base is None or not self._base_stands:
            self._base = self.call("make_base", self._base)
            self._base_stands = True
        assert self._base is not None
        return self._base

    def _there(self, run: Run) -> Run:
        assert self._base is not None, "a run without a folder over there"
        return replace(run, folder=self._base / run.folder.name)

    def _home(self, run: Run, folder: Path) -> Run:
        """Its start on our clock, which has stood still now and then."""
        return replace(run, folder=folder, started_s=run.started_s - self._unseen_s)

    def _log(self, folder: Path) -> HomeLog:
        if folder not in self._logs:
            self._logs[folder] = HomeLog(folder)
        return self._logs[folder]

    def _lend_spy(self) -> bool:
        """Sends our own py-spy, which is one file, where the machine is of the same kind."""
        own = stacks.find_spy()
        if self._spy_lent or own is None or os.uname().machine != self._told["machine"]:
            return False
        self._spy_lent = True
        self.call("lend_spy", self._folder(), Path(own).read_bytes(), deadline_s=ENDING_S)
        return True
