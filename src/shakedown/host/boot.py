"""The process of a supervisor: takes one launch from standard input, answers, and supervises it.

It never leaves a server behind that nobody supervises.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import sys
from typing import Any

from shakedown.host.supervisor import Supervisor

_PR_SET_CHILD_SUBREAPER = 36


def _read_spec() -> dict[str, Any]:
    """One line of JSON. Nothing may follow it until we have answered."""
    pieces: list[bytes] = []
    while not pieces or not pieces[-1].endswith(b"\n"):
        piece = os.read(0, 1 << 20)
        if not piece:
            sys.exit("no orders")
        pieces.append(piece)
    spec: dict[str, Any] = json.loads(b"".join(pieces))
    return spec


def _raise_open_files() -> tuple[int, int]:
    """A pidfd per process of the run may exceed the usual 1,024. The server gets the user's limit back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def _answer(answer: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # our tool died just now: standard input ends as well
        os.write(1, json.dumps(answer).encode() + b"\n")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def main() -> None:
    """Standard input: the spec as one line of JSON, then orders, one a line."""
    os.chdir("/")
    os.closerange(3, 1 << 16)  # a pipe of the terminal's or the CI's that we held open would keep it waiting
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spec = _read_spec()
    spec["open_files"] = _raise_open_files()
    try:
        supervisor = Supervisor(spec)
    except OSError as problem:
        _answer({"problem": "folder", "errno": problem.errno})
        return
    try:
        answer = supervisor.start(spec)
        _answer(answer)
        if "problem" not in answer:
            supervisor.run()
    except BaseException as failure:
        supervisor.abandon(failure)
        raise
