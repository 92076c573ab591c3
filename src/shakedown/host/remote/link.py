"""One live connection to an agent: opened by the words of a user, greeted, sent our rooms, and spoken to.

It never opens another one by itself and never signals a process that it did not start.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shakedown import errors
from shakedown.errors import HostProblem, ShakedownError
from shakedown.host.remote.codec import decode, encode
from shakedown.host.remote.greeting import Said, greet
from shakedown.host.remote.streams import Stream
from shakedown.host.remote.wire import Frame, Garbled, Kind, Wire

SILENCE_S = 20.0  # without a sign of life while somebody waits: the line is dead
_PING_S = 5.0


class Lost(Exception):
    """The connection is gone; what was asked may or may not have been done."""


class TooLate(Exception):
    """The other side lives and has not answered within the deadline."""


@dataclass(slots=True, kw_only=True)
class _Waiting:
    came: threading.Event = field(default_factory=threading.Event)
    answer: bytes | None = None


class Link:
    """`lost_s` is the moment of this clock from which nothing more was heard, once it is lost."""

    def __init__(self, process: subprocess.Popen[bytes], said: Said) -> None:
        assert process.stdin
        assert process.stdout
        self._process, self._said = process, said
        self._wire = Wire(process.stdout.fileno(), process.stdin.fileno())
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._streams: dict[int, Stream] = {}
        self._heard_s = time.monotonic()
        self._closing = threading.Lock()
        self.lost_s: float | None = None
        self._listener = threading.Thread(target=self._listen, name="shakedown-link", daemon=True)
        self._listener.start()

    @classmethod
    def open(cls, words: Sequence[str], python: str) -> Link:
        """Raises HostProblem that says what is wrong, and how to mend it."""
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C is for us: we end the run over this very line
            )
        except OSError as problem:
            raise HostProblem(f"{words[0]} cannot be run: {problem.strerror}") from problem
        said = Said(process)
        try:
            greet(process, said, words, python)
        except BaseException:
            _end(process)
            said.close()
            _close_output(process)
            raise
        return cls(process, said)

    def call(self, name: str, *arguments: Any, deadline_s: float) -> Any:
        """Raises Lost, TooLate, or the error of ours that the far side raised."""
        number, waiting = next(self._numbers), _Waiting()
        self._waiting[number] = waiting
        try:
            self._send(Kind.CALL, number, encode((name, arguments)))
            self._wait(waiting, deadline_s)
        finally:
            self._waiting.pop(number, None)
        if waiting.answer is None:
            raise Lost
        try:
            verdict, *told = decode(waiting.answer)
        except ValueError as problem:
            raise HostProblem(f"the answer of the far side cannot be read: {problem}") from problem
        if verdict == "ok":
            return told[0]
        kind = getattr(errors, verdict, HostProblem)
        raise kind(*told) if issubclass(kind, ShakedownError) else HostProblem(*told)

    def tunnel(self, address: str, port: int, end: socket.socket) -> None:
        """Leads `end` to an address of the other side; refused there, it breaks off. Raises Lost."""
        number = next(self._numbers)

        def done() -> None:
            self._streams.pop(number, None)

        self._streams[number] = Stream(self._wire, number, end, done)
        self._send(Kind.OPEN, number, encode((address, port)))

    def close(self) -> None:
        """Ends the connection, not what was started over it."""
        with self._closing:
            if self.lost_s is None:
                self.lost_s = time.monotonic()
            if not self._wire.shut():  # a line that takes nothing any more
                _kill(self._process)
                self._wire.shut()
            _end(self._process)
            self._said.close()
            self._listener.join(1.0)
            if not self._listener.is_alive():  # else its number would be another file's under a reader
                _close_output(self._process)

    def _send(self, kind: Kind, number: int, body: bytes = b"") -> None:
        if self.lost_s is not None:
            raise Lost
        try:
            self._wire.send(kind, number, body)
        except (OSError, ValueError):
            self._lose()
            raise Lost from None

    def _wait(self, waiting: _Waiting, deadline_s: float) -> None:
        asked = time.monotonic()
        until = asked + deadline_s
        while not waiting.came.wait(max(0.0, min(_PING_S, until - time.monotonic()))):
            now = time.monotonic()
            if now - max(self._heard_s, asked) > SILENCE_S:
                self._lose()
                raise Lost
            if now >= until:
                raise TooLate
            self._send(Kind.PING, next(self._numbers))

    def _listen(self) -> None:
        try:
            while True:
                frame = self._wire.receive()
                self._heard_s = time.monotonic()
                self._take(frame)
        except (EOFError, OSError, ValueError, Garbled):
            self._lose()

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.ANSWER and (waiting := self._waiting.get(frame.number)):
            waiting.answer = frame.body
            waiting.came.set()
        elif stream := self._streams.get(frame.number):
            if frame.kind is Kind.OPEN:
                stream.start()
            elif frame.kind is Kind.DATA:
                stream.feed(frame.body)
            elif frame.kind is Kind.SHUT:
                self._streams.pop(frame.number, None)
                stream.finish()

    def _lose(self) -> None:
        if self.lost_s is None:
            self.lost_s = self._heard_s if self._waiting else time.monotonic()
        for waiting in list(self._waiting.values()):
            waiting.came.set()
        for stream in list(self._streams.values()):
            stream.break_off()


def _close_output(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout
    process.stdout.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """The end of our words is the agent's sign to go; a program that does not mind it is killed."""
    assert process.stdin
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout=2.0)
    except subprocess.TimeoutExpired:
        _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # the head of its own session, not yet waited for
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
