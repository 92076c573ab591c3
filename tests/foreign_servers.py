"""Servers that Shakedown did not start, for tests of what it does with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from host_runs import BAD_SERVERS, wait_for


@contextmanager
def foreign_server(
    folder: Path, program: str, *arguments: object, env: Mapping[str, str] | None = None, up: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """`program` of bad_servers, its output in folder/server.log, once the line `up` is in there.

    All of it is killed in the end.
    """
    argv = [sys.executable, str(BAD_SERVERS / program), *map(str, arguments)]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, stdout=output, stderr=output, env={**os.environ, **(env or {})}, start_new_session=True
        )
    try:
        wait_for(lambda: up.encode() in log.read_bytes())
        yield process
    finally:
        for each in (*children(process.pid), psutil.Process(process.pid)):
            each.kill()
        process.wait()


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def is_up(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is None and psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE


def stop_for_a_while(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
