"""The far end of a connection: serves this machine's `LocalHost` over standard input and output.

It is sent over the connection, runs on the standard library of any Python from 3.10 on, and is gone with the
connection; what it started goes on under its own supervisor.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from shakedown.core import Execution, Identity, Launch, Run
from shakedown.errors import HostProblem, ShakedownError
from shakedown.host import felling, files, foreign, procfs, reach, shm, stacks, survey
from shakedown.host.attached import AttachedHost
from shakedown.host.foreign import ForeignProcess
from shakedown.host.launching import was_begun
from shakedown.host.local import LocalHost, signal_process
from shakedown.host.remote.aliases import (
    MARK,
    OWN,
    hide_env,
    hide_process,
    reveal,
    reveal_env,
    reveal_launch,
)
from shakedown.host.remote.attached import NOT_ATTACHED
from shakedown.host.remote.codec import decode, encode
from shakedown.host.remote.streams import Stream
from shakedown.host.remote.wire import Garbled, Kind, Wire
from shakedown.host.state import visit
from shakedown.host.survey import Survey

_ROOMS = {module.__name__: module for module in (felling, files, foreign, reach, shm, survey)}
_AT_ONCE = 16
_CONNECT_S = 5.0
_VISIT_S = 5.0
_STARTING_S = 30.0


class Agent:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._host = LocalHost()
        self._base: Path | None = None
        self._attached: dict[Path, AttachedHost] = {}
        self._streams: dict[int, Stream] = {}
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._visited_s: dict[Path, float] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._calls: Mapping[str, Callable[..., Any]] = {
            "hello": self.hello,
            "surroundings": self.surroundings,
            "make_base": self.make_base,
            "start": self.start,
            "attach_run": lambda folder, patience_s: self._host.attach_run(folder, patience_s=patience_s),
            "processes": self.processes,
            "read_log": self.read_log,
            "exit_of": self._host.exit_of,
            "stacks": lambda pid, native: self._host.stacks(pid, native=native),
            "socket_bytes": self._host.socket_bytes,
            "gpu_use": self._host.gpu_use,
            "listener": self._host.listener,
            "end": lambda run, grace_s: self._host.end(run, grace_s=grace_s),
            "disarm": self._host.disarm,
            "execute": self.execute,
            "ask": self.ask,
            "attach_to": self.attach_to,
            "attached": self.attached,
            "lend_spy": self.lend_spy,
            "take_away": self.take_away,
            "signal": signal_process,
        }

    # --- the conversation --------------------------------------------------------------------------------

    def serve(self) -> None:
        """Until the connection ends."""
        while True:
            frame = self._wire.receive()
            match frame.kind:
                case Kind.PING:
                    self._wire.send(Kind.PONG, frame.number)
                case Kind.CALL:
                    self._pool.submit(self._answer, frame.number, frame.body)
                case Kind.OPEN:
                    self._pool.submit(self._open, frame.number, *decode(frame.body))
                case Kind.DATA if stream := self._streams.get(frame.number):
                    stream.feed(frame.body)
                case Kind.SHUT if stream := self._streams.get(frame.number):
                    stream.finish()

    def _answer(self, number: int, body: bytes) -> None:
        try:
            name, arguments = decode(body)
            lock = self._locks[name] if name in _ONE_BY_ONE else contextlib.nullcontext()
            with lock:
                answer = encode(("ok", self._calls[name](*arguments)))
        except ShakedownError as problem:
            answer = encode((type(problem).__name__, problem.message, *problem.hints))
        except OSError as problem:
            what = f"{problem.filename}: " if problem.filename else ""
            answer = encode((HostProblem.__name__, f"{what}{problem.strerror or problem}"))
        except (ValueError, TypeError, KeyError, AttributeError):  # ours to mend: say where
            where = traceback.format_exc().strip().splitlines()
            answer = encode((HostProblem.__name__, f"our agent there failed: {where[-1]} ({where[-3:-1]})"))
        with contextlib.suppress(OSError):  # nobody listens any more
            self._wire.send(Kind.ANSWER, number, answer)

    def _open(self, number: int, address: str, port: int) -> None:
        try:
            connected = socket.create_connection((address, port), timeout=_CONNECT_S)
        except OSError:
            with contextlib.suppress(OSError):
                self._wire.send(Kind.SHUT, number)
            return
        connected.settimeout(None)

        def done() -> None:
            self._streams.pop(number, None)

        self._streams[number] = stream = Stream(self._wire, number, connected, done, _reveal_bytes)
        self._wire.send(Kind.OPEN, number)
        stream.start()

    # --- what is more than a call of the host -------------------------------------------------------------

    def hello(self, base: Path | None, patience_s: float) -> dict[str, Any]:
        """`base`: the folder for run folders that an earlier connection made."""
        self._base = base
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
        self._base = _private(base) if base else self._base or Path(tempfile.mkdtemp(prefix="shakedown-"))
        return self._base

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
    ) -> tuple[Run, bytes, int]:
        folder = _private(base / name)
        redactor = survey.redactor_of(foreign.find(root.pid))
        host = AttachedHost(self._host, root, folder, log=log, redactor=redactor, position=position)
        self._attached[folder] = host
        return host.run, host.tail, host.settled

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

    # --- the end -------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Ends the programs that were run for a connection that is no more; supervisors go on."""
        own = os.getpid()
        for pid in procfs.list_pids():
            seen = procfs.read_stat(pid)
            if seen is None or seen.ppid != own or procfs.read_cmdline(pid)[-1:] == []:
                continue
            if not procfs.read_cmdline(pid)[-1].startswith("shakedown:"):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # ours, not yet waited for, and head of its own group
        if self._base is not None:
            with contextlib.suppress(OSError):
                self._base.rmdir()


_ONE_BY_ONE = frozenset({"processes", "socket_bytes", "gpu_use", "listener", "lend_spy", "start", "attached"})
_HERE = "{run folder}"


def _reveal_bytes(data: bytes) -> bytes:
    """The key in the head of a request; everything else passes as it came."""
    if MARK.encode() not in data:
        return data
    head, gap, body = data.partition(b"\r\n\r\n")
    return reveal(head.decode("latin-1")).encode("latin-1", "replace") + gap + body


def _private(folder: Path) -> Path:
    """Made for us alone; what somebody else put in its place is refused."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
        raise HostProblem(f"the folder {folder} there is not ours alone", "remove it, and try again")
    return folder


def main() -> NoReturn:
    """Standard input and output are the connection; whatever else would print, prints to standard error."""
    inbox, outbox = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY) if os.isatty(outbox) else 2, 1)  # a terminal has one way out
    if os.isatty(outbox):
        os.dup2(1, 2)
    os.set_inheritable(inbox, False)
    os.set_inheritable(outbox, False)
    agent = Agent(Wire(inbox, outbox))
    try:
        agent.serve()
    except (EOFError, OSError, Garbled):
        agent.leave()
    finally:
        os._exit(0)
