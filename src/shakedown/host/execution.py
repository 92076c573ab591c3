"""Run a short program to its end or to its deadline, in a session of its own.

It never waits for a program that will not die, and never holds more of its output than the cap.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from shakedown.core import Execution

OUTPUT_BYTES = 4 << 20
_AFTER_EXIT_S = 0.2  # what a child left behind may still hold the pipe
_READ_BYTES = 65536


def execute(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: str, deadline_s: float
) -> Execution:
    """Raises OSError where the program cannot be started. Output beyond 4 MiB a stream is dropped."""
    began = time.monotonic()
    process = subprocess.Popen(
        argv,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = _converse(process, stdin.encode("utf-8", "surrogateescape"), began + deadline_s)
    finally:
        timed_out = not _has_exited(process)
        _end_group(process)
    return Execution(
        code=None if timed_out else process.returncode,
        stdout=out.decode("utf-8", "replace"),
        stderr=err.decode("utf-8", "replace"),
        timed_out=timed_out,
        seconds=time.monotonic() - began,
    )


def _converse(process: subprocess.Popen[bytes], stdin: bytes, until: float) -> tuple[bytes, bytes]:
    assert process.stdin
    assert process.stdout
    assert process.stderr
    texts: dict[int, bytearray] = {
        process.stdout.fileno(): bytearray(),
        process.stderr.fileno(): bytearray(),
    }
    unsent = memoryview(stdin)
    with selectors.DefaultSelector() as ready:
        for stream in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(stream.fileno(), False)
            ready.register(stream, selectors.EVENT_WRITE if stream is process.stdin else selectors.EVENT_READ)
        while ready.get_map() and time.monotonic() < until:
            if _has_exited(process):
                until = min(until, time.monotonic() + _AFTER_EXIT_S)
            for key, _ in ready.select(min(0.1, max(0.0, until - time.monotonic()))):
                if key.fileobj is process.stdin:
                    unsent = _send(process.stdin.fileno(), unsent)
                    if not unsent:
                        ready.unregister(process.stdin)
                        process.stdin.close()
                elif not _receive(key.fd, texts[key.fd]):
                    ready.unregister(key.fileobj)
    out, err = texts.values()
    while not _has_exited(process) and time.monotonic() < until:
        time.sleep(0.01)
    return bytes(out), bytes(err)


def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Without reaping: while the zombie stands, its number names no other group."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _send(descriptor: int, unsent: memoryview) -> memoryview:
    try:
        return unsent[os.write(descriptor, unsent[:_READ_BYTES]) :] if unsent else unsent
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        return memoryview(b"")


def _receive(descriptor: int, text: bytearray) -> bool:
    try:
        piece = os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return True
    text += piece[: max(0, OUTPUT_BYTES - len(text))]
    return bool(piece)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the group it leads, helpers it left behind included, and let go of its pipes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream and not stream.closed:
            try:
                stream.close()
            except BrokenPipeError:
                continue
    try:
        process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:  # stuck in the kernel: left to be reaped when it can be
        return
