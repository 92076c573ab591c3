"""How a connection begins: a shell is told to start Python, our agent greets, and is sent our rooms.

It starts no program and ends none.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence

from shakedown.errors import HostProblem
from shakedown.host.remote import parcel
from shakedown.host.remote.trouble import Ending, why_not

GREETING_S = 30.0  # an ssh over three jump hosts; a container answers in 0.2 s
_NOISE_BYTES = 64 << 10
_SAID_BYTES = 16 << 10


class Said:
    """What the connection's own program writes to standard error: the last of it, for an error's words."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr
        self._stream = process.stderr
        self._text = b""
        self._thread = threading.Thread(target=self._read, name="shakedown-said", daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        return self._text.decode(errors="replace")

    def settle(self) -> str:
        """All of it, once its writer has ended."""
        self._thread.join(1.0)
        return self.text

    def close(self) -> None:
        self._thread.join(1.0)

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while piece := os.read(self._stream.fileno(), 4096):
                self._text = (self._text + piece)[-_SAID_BYTES:]
        self._stream.close()


def greet(process: subprocess.Popen[bytes], said: Said, words: Sequence[str], python: str) -> None:
    """Raises HostProblem that says what is wrong, and how to mend it."""
    assert process.stdin
    assert process.stdout
    heard = b""

    def trouble(ending: Ending) -> HostProblem:
        if ending is Ending.EXITED:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2.0)
        code = process.poll()
        return why_not(words, ending, code, said.text if code is None else said.settle(), heard)

    with contextlib.suppress(BrokenPipeError):  # it has ended: what it said tells why
        os.write(process.stdin.fileno(), parcel.first_words(python))
    until = time.monotonic() + GREETING_S
    while True:
        found = _greeting_in(heard)
        if found is not None:
            break
        if parcel.NO_PYTHON in heard:
            raise trouble(Ending.NO_PYTHON)
        if len(heard) > _NOISE_BYTES:
            raise trouble(Ending.NOISE)
        left_s = until - time.monotonic()
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, left_s))
        if not ready:
            raise trouble(Ending.SILENT)
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            raise trouble(Ending.EXITED)
        heard += piece
    version = found[1:]
    if tuple(version) < parcel.OLDEST:
        raise trouble(Ending.OLD_PYTHON)
    try:
        unsent = memoryview(parcel.parcel())
        while unsent:
            unsent = unsent[os.write(process.stdin.fileno(), unsent) :]
    except BrokenPipeError:
        raise trouble(Ending.EXITED) from None


def _greeting_in(heard: bytes) -> list[int] | None:
    """(protocol, major, minor), or None while it has not come. Whatever was printed before it is noise."""
    _, mark, rest = heard.partition(parcel.GREETING + b" ")
    line, end, _ = rest.partition(b"\n")
    return [int(word) for word in line.split()] if mark and end else None
