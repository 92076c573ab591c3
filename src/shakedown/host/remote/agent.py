"""The far end of a connection: serves this machine's `LocalHost` over standard input and output.

It is sent over the connection, runs on the standard library of any Python from 3.10 on, and is gone with the
connection; what it started goes on under its own supervisor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from shakedown.errors import HostProblem, ShakedownError
from shakedown.host import procfs
from shakedown.host.remote.aliases import MARK, reveal
from shakedown.host.remote.codec import decode, encode
from shakedown.host.remote.services import ONE_BY_ONE, Services
from shakedown.host.remote.streams import Stream
from shakedown.host.remote.wire import Garbled, Kind, Wire

_AT_ONCE = 16
_CONNECT_S = 5.0


class Agent:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._services = Services()
        self._streams: dict[int, Stream] = {}
        self._locks = {name: threading.Lock() for name in ONE_BY_ONE}
        self._pool = ThreadPoolExecutor(_AT_ONCE)

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
            with self._locks.get(name, contextlib.nullcontext()):
                answer = encode(("ok", self._services.calls[name](*arguments)))
        except ShakedownError as problem:
            answer = encode((type(problem).__name__, problem.message, *problem.hints))
        except OSError as problem:
            what = f"{problem.filename}: " if problem.filename else ""
            answer = encode((HostProblem.__name__, f"{what}{problem.strerror or problem}"))
        except Exception:  # noqa: BLE001  ours to mend, or a machine at its limits: say where, not nothing
            where = traceback.format_exc().strip().splitlines()
            answer = encode((HostProblem.__name__, f"our agent there failed: {where[-1]} ({where[-3:-1]})"))
        with contextlib.suppress(OSError):  # nobody listens any more
            self._wire.send(Kind.ANSWER, number, answer)

    def _open(self, number: int, address: str, port: int) -> None:
        try:
            connected = socket.create_connection((address, port), timeout=_CONNECT_S)
        except (OSError, ValueError, OverflowError):  # refused; or no address, or no port
            with contextlib.suppress(OSError):
                self._wire.send(Kind.SHUT, number)
            return
        connected.settimeout(None)

        def done() -> None:
            self._streams.pop(number, None)

        self._streams[number] = stream = Stream(self._wire, number, connected, done, _reveal_bytes)
        try:
            self._wire.send(Kind.OPEN, number)
            stream.start()
        except (OSError, RuntimeError):  # no connection, or no thread to be had
            stream.break_off()
            with contextlib.suppress(OSError):
                self._wire.send(Kind.SHUT, number)

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
        if self._services.base is not None:
            with contextlib.suppress(OSError):
                self._services.base.rmdir()


def _reveal_bytes(data: bytes) -> bytes:
    """The key in the head of a request; everything else passes as it came.

    So does a key that cannot be read any more: the server itself says that it is wrong.
    """
    if MARK.encode() not in data:
        return data
    head, gap, body = data.partition(b"\r\n\r\n")
    try:
        return reveal(head.decode("latin-1")).encode("latin-1", "replace") + gap + body
    except HostProblem:
        return data


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
