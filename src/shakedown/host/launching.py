"""Start a supervisor and hand it a launch.

It puts no word of the launch on a command line and leaves our own environment's secrets out.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shakedown
from shakedown.core import Identity, Launch, Run
from shakedown.errors import HostProblem, UsageError
from shakedown.host import procfs

_READY_S = 30.0  # a program on a slow network disk; the supervisor itself needs 0.2 s
_BOOT = "import sys; sys.path.append(sys.argv[1]); from shakedown.host.boot import main; main()"
_ORPHANED = "import os\nif os.fork(): os._exit(0)\n"
_ERRORS = "supervisor.err"
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifeline:
    """The write end of the supervisor's standard input: closed, by death too, it ends the run."""

    descriptor: int

    def order(self, **orders: Any) -> bool:
        """Say something to the supervisor; False where it is gone."""
        try:
            unsent = memoryview(json.dumps(orders).encode() + b"\n")
            while unsent:
                unsent = unsent[os.write(self.descriptor, unsent) :]
        except BrokenPipeError:
            return False
        return True

    def close(self) -> None:
        os.close(self.descriptor)


def check_launch(launch: Launch) -> None:
    """Raise UsageError for a launch that could only fail: no program, no folder to run in."""
    if not launch.argv:
        raise UsageError("no command to launch", "put it behind --, as in: shakedown run -- vllm serve MODEL")
    if not launch.cwd.is_dir():
        raise UsageError(f"the folder to run in does not exist: {launch.cwd}")
    program = launch.argv[0]
    if "/" in program:
        path = launch.cwd / program
        if not path.exists():
            raise UsageError(f"no such program: {path}", "check the path, or activate its environment")
        if not os.access(path, os.X_OK) or path.is_dir():
            raise UsageError(
                f"not an executable program: {path}", "chmod +x it, or put its interpreter in front"
            )
    elif shutil.which(program, path=launch.env.get("PATH", os.defpath)) is None:
        raise UsageError(
            f"no program named {program!r} on the PATH of the launch",
            "activate its environment first, or give the full path",
        )


def start_supervisor(
    launch: Launch,
    folder: Path,
    *,
    detach: bool,
    cgroups: bool,
    log_bytes: int,
    secrets: Iterable[str] = (),
    patience_s: float = 0.0,
    orphaned: bool = False,
) -> tuple[Run, Lifeline]:
    """Raises UsageError for a program the kernel refuses, HostProblem for what the machine refuses."""
    folder = folder.absolute()
    errors = _prepare(folder)
    spec = {
        "argv": list(launch.argv),
        "env": dict(launch.env),
        "cwd": str(launch.cwd.absolute()),
        "folder": str(folder),
        "secrets": list(secrets),
        "detach": detach,
        "cgroups": cgroups,
        "patience_s": patience_s,
        "log_bytes": log_bytes,
        "container": _container(launch),
    }
    orders, lifeline = os.pipe()
    answers, answerer = os.pipe()
    try:
        pid = _spawn(folder, orders, answerer, errors, _ORPHANED + _BOOT if orphaned else _BOOT)
        if orphaned:
            os.waitpid(pid, 0)  # it has forked, and ends at once
    finally:
        for descriptor in (orders, answerer, errors):
            os.close(descriptor)
    line = Lifeline(descriptor=lifeline)
    try:
        line.order(**spec)
        answer = _receive(answers)
    except BaseException:  # Ctrl-C: an end of orders ends the supervisor and all it started
        line.close()
        raise
    finally:
        os.close(answers)
    if answer is None or "problem" in answer:
        line.close()
        _reap_soon(pid)
        raise _explain(answer, launch, folder)
    pid = answer["supervisor"]
    supervisor = Identity(pid=pid, started_ticks=procfs.started_ticks(pid) or 0)
    leader_pid, leader_ticks = answer["leader"]
    leader = Identity(pid=leader_pid, started_ticks=leader_ticks)
    run = Run(folder=folder, supervisor=supervisor, leader=leader, started_s=answer["started_s"])
    return run, line


def _container(launch: Launch) -> dict[str, Any] | None:
    found = launch.container
    if found is None or found.id_file is None:
        return None
    program, *options = found.client
    path = str(launch.cwd / program) if "/" in program else program
    program = shutil.which(path, path=launch.env.get("PATH", os.defpath)) or program
    ports = [(outer, inner) for _, outer, inner in found.ports]
    return {"client": [program, *options], "id_file": str(found.id_file), "ports": ports}


def was_begun(folder: Path) -> bool:
    """Whether a supervisor was, or is just being, started there."""
    return (folder / _ERRORS).exists()


def _prepare(folder: Path) -> int:
    """Make the folder private and open the supervisor's own error file in it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(folder / _ERRORS, flags, 0o600)
    except FileExistsError as problem:
        raise HostProblem(
            f"the run folder was used before: {folder}", "every run needs a new one"
        ) from problem
    except OSError as problem:
        raise HostProblem(f"cannot write to the run folder {folder}: {problem.strerror}") from problem


def _spawn(folder: Path, orders: int, answerer: int, errors: int, boot: str) -> int:
    root = str(Path(shakedown.__file__).parents[1])
    argv = [sys.executable, "-I", "-S", "-X", "utf8", "-c", boot, root, f"shakedown:{folder.name}"]
    env: Mapping[str, str] = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    actions = [
        (os.POSIX_SPAWN_DUP2, orders, 0),
        (os.POSIX_SPAWN_DUP2, answerer, 1),
        (os.POSIX_SPAWN_DUP2, errors, 2),
    ]
    try:
        return os.posix_spawn(sys.executable, argv, env, file_actions=actions, setsid=True)
    except OSError as problem:
        raise HostProblem(f"cannot start the supervisor: {problem.strerror}") from problem


def _receive(answers: int) -> dict[str, Any] | None:
    received, until = b"", time.monotonic() + _READY_S
    while not received.endswith(b"\n"):
        ready, _, _ = select.select([answers], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(answers, 65536) if ready else b""
        if not piece:
            return None
        received += piece
    answer: dict[str, Any] = json.loads(received)
    return answer


def _reap_soon(pid: int) -> None:
    """It has nothing left to do; one that hangs all the same is left to itself."""
    until = time.monotonic() + 1.0
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < until:
            time.sleep(0.01)


def _explain(answer: dict[str, Any] | None, launch: Launch, folder: Path) -> HostProblem | UsageError:
    if answer is None:
        return HostProblem(
            f"the supervisor failed, or did not report within {_READY_S:.0f} s", f"see {folder / _ERRORS}"
        )
    said = os.strerror(answer["errno"])
    if answer["problem"] == "folder":
        return HostProblem(f"cannot write to the run folder {folder}: {said}")
    return UsageError(
        f"the system cannot run {launch.argv[0]!r}: {said}",
        "a script needs a first line such as #!/bin/sh, or its interpreter in front",
    )
