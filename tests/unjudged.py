"""A server that is started, asked and ended whatever it answers: a random model would not pass as serving.

It judges nothing, and keeps the server's log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from shakedown.errors import EnvironmentProblem
from shakedown.host.local import LocalHost
from shakedown.jobs.reading import read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Talk
from shakedown.jobs.serving import named
from shakedown.probe import Target

T = TypeVar("T")
START_S, LOOK_S, END_S = 400.0, 2.0, 20.0


def unjudged(log: Path) -> Callable[[LaunchRequest, Talk, Callable[[Target], T]], T]:
    """In the place of `while_serving`."""

    def serve(request: LaunchRequest, talk: Talk, work: Callable[[Target], T]) -> T:
        target = read_request(request, LocalHost(), talk, live=False).target
        assert target is not None
        with started(request, log) as server:
            return work(answering(target, server, log))

    return serve


@contextmanager
def started(request: LaunchRequest, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        server = subprocess.Popen(
            request.launch.argv,
            env=dict(request.launch.env),
            cwd=request.launch.cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield server
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(server.pid, number)
                server.wait(END_S)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def answering(target: Target, server: subprocess.Popen[bytes], log: Path) -> Target:
    """Raises EnvironmentProblem where it dies, or is not there in time."""
    ends_s = time.monotonic() + START_S
    while True:
        try:
            return named(target)
        except EnvironmentProblem as problem:
            if server.poll() is None and time.monotonic() < ends_s:
                time.sleep(LOOK_S)
                continue
            said = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
            why = said[-1].strip() if said else problem.message
            raise EnvironmentProblem(
                f"the server is not there ({server.poll()}): {why}", f"see {log}"
            ) from None
