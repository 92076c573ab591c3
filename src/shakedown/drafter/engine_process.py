"""An engine in its own interpreter, asked over one connection; it ends with us, and its last words are kept.

It never reads a state, and sends no signal to any process but the one it started and its descendants.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from shakedown.drafter.saying import Say, seldom
from shakedown.errors import EnvironmentProblem, UsageError
from shakedown.redact import Redactor

VERSION_DEADLINE_S = 120.0  # an interpreter on a network disk
SAY_EVERY_S = 30.0
ENDING_S = 30.0
LAST_LINES = 12
LAST_BYTES = 16_384


class EngineProcess:
    """Started by `__enter__`, which returns when the engine is ready; ended by `__exit__`.

    Raises EnvironmentProblem with the engine's last lines where it ends by itself, or is not ready after
    `loading_s`.
    """

    def __init__(
        self,
        python: Path,
        script: str,
        settings: Mapping[str, Any],
        *,
        name: str,
        say: Say,
        loading_s: float,
    ) -> None:
        self._python = python
        self._script = script
        self._settings = settings
        self._name = name
        self._say = say
        self._loading_s = loading_s
        self._silent = False

    def __enter__(self) -> EngineProcess:
        with resources.as_file(resources.files(f"{__package__}.inside")) as folder:
            ours, theirs = Pipe()
            self._connection = ours
            self._log: IO[bytes] = tempfile.TemporaryFile()  # unnamed: it may hold secrets
            argv = [str(self._python), str(folder / self._script), str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*argv, json.dumps(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": path_with(folder), "HF_HUB_OFFLINE": "1"},
            )
            theirs.close()
        try:
            self.receive("loading", patience_s=self._loading_s)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()  # it ends by itself when nobody asks any more
        patience_s = 0.0 if self._silent else ENDING_S if kind is None else ENDING_S / 3
        if not self._waited(patience_s):
            family = list(descendants(self._process.pid))
            self._process.terminate()
            if not self._waited(ENDING_S / 3):
                self._process.kill()
            for each in family:  # its workers, which hang with it and hold the GPUs
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(each, signal.SIGKILL)
                os.close(each)
            if not self._waited(ENDING_S):
                self._say(f"{self._name}: still alive, though killed: process {self._process.pid}")
        self._log.close()

    def _waited(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def send(self, text: str) -> None:
        try:
            self._connection.send_bytes(text.encode())
        except OSError:
            raise self._ended("before it was asked") from None

    def receive(self, doing: str, *, patience_s: float) -> Any:
        """The engine's next answer. Raises EnvironmentProblem where it has ended, or is silent so long."""
        started_s, speak = time.monotonic(), seldom(self._say, SAY_EVERY_S)
        while not self._connection.poll(min(1.0, patience_s)):
            seconds = time.monotonic() - started_s
            if seconds >= patience_s:
                self._silent = True
                told = f"{self._name} has given no answer for {seconds:.0f} s while {doing}: it hangs"
                raise EnvironmentProblem(told, *self._last_lines(LAST_LINES))
            speak(f"{self._name}: {doing} for {seconds:.0f} s  {self._last_lines(1)[0]}")
        try:
            return json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._ended(doing) from None

    def _ended(self, doing: str) -> EnvironmentProblem:
        if not self._waited(ENDING_S):
            return EnvironmentProblem(f"{self._name} closed its connection while {doing} and did not end")
        code = self._process.returncode
        return EnvironmentProblem(
            f"{self._name} ended with exit code {code} while {doing}", *self._last_lines(LAST_LINES)
        )

    def _last_lines(self, count: int) -> Sequence[str]:
        size = self._log.seek(0, os.SEEK_END)
        text = os.pread(self._log.fileno(), LAST_BYTES, max(size - LAST_BYTES, 0)).decode(errors="replace")
        lines = [
            line.strip() for line in text.splitlines() if line.strip(" ^~")
        ]  # no pointers of a traceback
        redactor = Redactor.of(os.environ, [])
        return [redactor.redact_text(line)[:200] for line in lines[-count:]] or [""]


def descendants(pid: int) -> Iterator[int]:
    """Handles of them, which never come to mean another process."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has just ended
            for child in map(int, task.read_text().split()):
                yield os.pidfd_open(child)
                yield from descendants(child)


def path_with(folder: Path) -> str:
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def installed_version(python: Path, module: str) -> str:
    """The version of the distribution that brings `module`, as the interpreter knows it.

    Raises UsageError where there is none.
    """
    code = "import importlib.metadata as m, sys; print(m.version(m.packages_distributions()[sys.argv[1]][0]))"
    try:
        done = subprocess.run(
            [str(python), "-c", code, module], capture_output=True, text=True, timeout=VERSION_DEADLINE_S
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise UsageError(f"{python} cannot be run: {problem}") from None
    if done.returncode != 0:
        raise UsageError(
            f"{python} has no {module}",
            f"say which Python has it: --engine-python, where {module} is installed",
        )
    return done.stdout.strip()
