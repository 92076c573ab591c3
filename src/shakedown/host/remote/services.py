"""What the agent does when it is called: the calls of this machine's host, and what only a far side needs.

It holds no connection, and lets no secret of this machine out.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shakedown.core import Execution, Identity, Launch, Run
from shakedown.errors import HostProblem
from shakedown.host import felling, files, foreign, procfs, reach, shm, stacks, survey
from shakedown.host.attached import AttachedHost
from shakedown.host.foreign import ForeignProcess
from shakedown.host.launching import was_begun
from shakedown.host.local import LocalHost
from shakedown.host.remote.aliases import OWN, hide_env, hide_process, reveal, reveal_env, reveal_launch
from shakedown.host.remote.attached import NOT_ATTACHED
from shakedown.host.state import visit
from shakedown.host.survey import Survey

ONE_BY_ONE = frozenset(
    {"processes", "socket_bytes", "gpu_use", "lock_holders", "listener", "lend_spy", "start", "attached"}
)
_ROOMS = {module.__name__: module for module in (felling, files, foreign, reach, shm, survey)}
_VISIT_S = 5.0
_STARTING_S = 30.0
_HERE = "{run folder}"


class Services:
    def __init__(self) -> None:
        self._host = host = LocalHost()
        self.base: Path | None = None  # the folder for all of ours here
        self._attached: dict[Path, AttachedHost] = {}
        self._visited_s: dict[Path, float] = {}
        self.calls: Mapping[str, Callable[..., Any]] = {
            "hello": self.hello,
            "surroundings": self.surroundings,
            "make_base": self.make_base,
            "start": self.start,
            "attach_run": lambda folder, patience_s: host.attach_run(folder, patience_s=patience_s),
            "processes": self.processes,
            "read_log": self.read_log,
            "exit_of": host.exit_of,
            "stacks": lambda pid, native: host.stacks(pid, native=native),
            "socket_bytes": host.socket_bytes,
            "gpu_use": host.gpu_use,
            "lock_holders": host.lock_holders,
            "listener": host.listener,
            "end": lambda run, grace_s: host.end(run, grace_s=grace_s),
            "disarm": host.disarm,
            "execute": self.execute,
            "ask": self.ask,
            "attach_to": self.attach_to,
            "attached": self.attached,
            "lend_spy": self.lend_spy,
            "take_away": self.take_away,
        }

    def hello(self, base: Path | None, patience_s: float) -> dict[str, Any]:
        """`base`: the folder for run folders that an earlier connection made."""
        self.base = base
        self._host.patience_s = patience_s
        return {
            "node": platform.node(),
            "boot_id": procfs.boot_id(),
            "now_s": time.monotonic(),
            "python": sys.executable,
            "machine": platform.machine(),
        }

    def surroundings(self) -> tuple[dict[str, str], Path]:
        home = Path(os.environ.get("HOME") or "/")
        return hide_env(os.environ, OWN), home if home.is_dir() else Path("/")

    def make_base(self, base: Path | None) -> Path:
        """The folder for all of ours here: the one of an earlier connection, or a new one."""
        self.base = _private(base) if base else self.base or Path(tempfile.mkdtemp(prefix="shakedown-"))
        return self.base

    def start(self, base: Path, launch: Launch, name: str, detach: bool) -> Run:
        """Started once: a run that is there was started just before the connection broke."""
        folder = base / name
        if was_begun(folder):
            return self._host.attach_run(folder, patience_s=_STARTING_S)
        if launch.container and launch.container.id_file:
            argv = tuple(word.replace(_HERE, str(folder)) for word in launch.argv)
            inside = replace(launch.container, id_file=folder / launch.container.id_file.name)
            launch = replace(launch, argv=argv, container=inside)
        return self._host.start(reveal_launch(launch), folder, detach=detach)

    def processes(self, run: Run) -> Any:
        self._visit(run.folder)
        return self._host.processes(run)

    def read_log(self, run: Run, offset: int) -> tuple[bytes, int]:
        self._visit(run.folder)
        return self._host.read_log(run, offset)

    def _visit(self, folder: Path) -> None:
        now = time.monotonic()
        if now - self._visited_s.get(folder, -_VISIT_S) >= _VISIT_S:
            self._visited_s[folder] = now
            if folder.is_dir():
                visit(folder)

    def execute(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: str, deadline_s: float
    ) -> Execution:
        argv, env = [reveal(word) for word in argv], reveal_env(env)
        return self._host.execute(argv, env=env, cwd=cwd, stdin=stdin, deadline_s=deadline_s)

    def ask(self, module: str, name: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """A public function of this room; the secrets of processes stay here."""
        if name.startswith("_"):
            raise HostProblem(f"{name} is nothing to be asked")
        answer = getattr(_ROOMS[module], name)(*arguments, **named)
        if isinstance(answer, ForeignProcess):
            return hide_process(answer)
        if isinstance(answer, Survey):
            return replace(answer, process=hide_process(answer.process))
        return answer

    def attach_to(
        self, base: Path, root: Identity, name: str, log: Path | None, position: int | None
    ) -> tuple[Run, bytes, int, Path | None]:
        """Also the log by a name that outlives its process, for who comes again with a `position`."""
        named = Path(os.path.realpath(log)) if log else None
        if position is not None and named is not None and not os.access(named, os.R_OK):
            log = None
        folder = _private(base / name)
        redactor = survey.redactor_of(foreign.find(root.pid))
        host = AttachedHost(self._host, root, folder, log=log, redactor=redactor, position=position)
        self._attached[folder] = host
        return host.run, host.tail, host.settled, named

    def attached(self, folder: Path, name: str, arguments: Sequence[Any]) -> Any:
        """A reading of a server that we are attached to; of its log also where to go on from one day."""
        host = self._attached.get(folder)
        if host is None or name not in ("processes", "read_log", "exit_of", "listener"):
            raise HostProblem(NOT_ATTACHED)
        answer = getattr(host, name)(*arguments)
        return (*answer, host.settled) if name == "read_log" else answer

    def lend_spy(self, base: Path, program: bytes) -> None:
        spy, new = base / "py-spy", base / "py-spy.new"
        new.write_bytes(program)
        new.chmod(0o700)
        new.replace(spy)
        stacks.lent_spy = spy

    def take_away(self, base: Path, name: str) -> None:
        """A folder of ours there, or with "" all that is left of us; runs that go on keep theirs."""
        if name:
            if host := self._attached.pop(base / name, None):
                host.close()
            shutil.rmtree(base / name, ignore_errors=True)
            return
        (base / "py-spy").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            base.rmdir()


def _private(folder: Path) -> Path:
    """Made for us alone; what somebody else put in its place is refused."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
        raise HostProblem(f"the folder {folder} there is not ours alone", "remove it, and try again")
    return folder
