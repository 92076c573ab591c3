"""`shakedown run --detach`: the watch goes on in a process of ours that no terminal can end.

Nothing of the launch is handed over on a command line or in a file: the watcher is a fork.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from shakedown.errors import Defect, HostProblem, ShakedownError
from shakedown.jobs.machines import machine_at, on
from shakedown.jobs.reading import read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import ExitCode, JobResult, Progress, Talk
from shakedown.jobs.run import result_of, run_job, watch
from shakedown.jobs.trials import told_ledger
from shakedown.ledger import Kind, Ledger
from shakedown.redact import Redactor
from shakedown.report.again import ours

ERRORS = "watcher.err"  # in the run folder: what a foreground run would have said on standard error
Tell = Callable[[bool | ShakedownError], bool]  # whether anybody heard it


class StartTalk:
    """Nobody listens to a watcher; its first progress says that the launch was started."""

    def __init__(self, started: Callable[[], object]) -> None:
        self._started: Callable[[], object] | None = started

    def say(self, text: str) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        if self._started is not None:
            self._started()
            self._started = None


def detach_job(request: LaunchRequest, talk: Talk, *, keep: bool) -> JobResult:
    """Returns once the launch is started, or with what forbade it. Raises as `run_job` does."""
    if request.dry_run:
        return run_job(request, talk, keep=keep)
    with closing(machine_at(request.host, request.via, talk)) as machine:  # no connection survives a fork
        request = on(machine, request)
        reading = read_request(request, machine, talk, live=False)
    with Ledger.open(request.ledger) as ledger:
        trial_id = ledger.new_id(Kind.TRIAL)
        folder = ledger.folder_of(trial_id)
        request = replace(request, ledger=ledger.path)

    def work(tell: Tell) -> None:
        nobody = StartTalk(lambda: tell(True))
        try:
            with closing(machine_at(request.host, request.via, nobody)) as machine:
                again = replace(reading, machine=machine)
                watch(again, request, nobody, machine, keep=keep, detached_as=trial_id)
            tell(False)
        except Exception as unforeseen:  # noqa: BLE001  (told to whoever asked, or written down)
            problem = unforeseen if isinstance(unforeseen, ShakedownError) else Defect.of(unforeseen)
            if not tell(problem):
                write_down(problem, request, folder / ERRORS)

    if not in_background(work):  # it was over before it began: the port was held
        with Ledger.open(request.ledger) as ledger:
            return result_of(ledger.trial(trial_id))
    document = {
        "schema": "shakedown/1",
        "command": "run",
        "verdict": None,
        "trial": trial_id,
        "id": trial_id,  # the name that it had before it was called as in a `run` that is not detached
        "state": "open",
    }
    lines = [
        f"{trial_id} is started and watched in the background",
        f"  see it   {ours('show', trial_id, told_ledger(request.ledger))} --follow",
        f"  end it   {ours('stop', trial_id, told_ledger(request.ledger))}",
    ]
    return JobResult(document=document, lines=lines, exit_code=ExitCode.GOOD)


def in_background(work: Callable[[Tell], None]) -> bool:
    """Forks a process that does `work`, and returns the first thing it tells; an error is raised here.

    Must be called before this process has threads or an open ledger: neither survives a fork.
    """
    listening, telling = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        become_watcher(work, telling)
    telling.close()
    try:
        told: bool | ShakedownError = listening.recv()
    except EOFError:
        os.waitpid(pid, 0)
        raise HostProblem(
            "the process that was to watch the launch died before it started anything"
        ) from None
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)  # our child, not yet waited for: it cleans up as we would
        os.waitpid(pid, 0)
        raise
    if isinstance(told, ShakedownError):
        raise told
    return told


def become_watcher(work: Callable[[Tell], None], telling: Connection) -> NoReturn:
    """Its own session, no terminal, no pipe of the caller's; TERM cleans up as Ctrl-C would in a terminal."""

    def tell(what: bool | ShakedownError) -> bool:
        if telling.closed:
            return False
        with telling, suppress(BrokenPipeError):  # whoever asked was killed just now
            telling.send(what)
        return True

    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.closerange(3, telling.fileno())
        os.closerange(telling.fileno() + 1, 1 << 16)
        work(tell)
    finally:
        os._exit(0)


def write_down(problem: ShakedownError, request: LaunchRequest, file: Path) -> None:
    """Where the ledger could not be written, this is all that is left of a verdict."""
    redactor = Redactor.of(request.launch.env, request.launch.argv, cwd=request.launch.cwd)
    text = redactor.redact_text("\n".join((problem.message, *problem.hints)))
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as errors:
        errors.write(text + "\n")
