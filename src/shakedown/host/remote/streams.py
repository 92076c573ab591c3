"""One TCP connection inside a wire: what a socket says goes out as frames, frames go in.

It never holds up the wire: a socket that does not read only fills its own queue.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable

from shakedown.errors import ShakedownError
from shakedown.host.remote.wire import Kind, Wire

_READ_BYTES = 1 << 16


class Stream:
    """Either end of a tunnel. `done` is called once, when nothing more will come out of the socket."""

    def __init__(
        self,
        wire: Wire,
        number: int,
        connected: socket.socket,
        done: Callable[[], None],
        rewrite: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._wire, self._number, self._socket = wire, number, connected
        self._done, self._rewrite = done, rewrite
        self.started = False
        self._inbound: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def start(self) -> None:
        self.started = True
        for work in (self._pump_out, self._pump_in):
            threading.Thread(target=work, name="shakedown-tunnel", daemon=True).start()

    def feed(self, data: bytes) -> None:
        self._inbound.put(data)

    def finish(self) -> None:
        """The other end has no more to say, or never came about."""
        self._inbound.put(None)
        if not self.started:
            self._socket.close()

    def break_off(self) -> None:
        """The wire is gone: whoever holds the other end of the socket sees the connection break."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.finish()

    def _pump_out(self) -> None:
        with contextlib.suppress(OSError):  # either side went away: the frame below or the wire's end tells
            while data := self._socket.recv(_READ_BYTES):
                self._wire.send(Kind.DATA, self._number, data)
        with contextlib.suppress(OSError):
            self._wire.send(Kind.SHUT, self._number)
        self._done()

    def _pump_in(self) -> None:
        try:
            with contextlib.suppress(
                OSError, ShakedownError
            ):  # it went away; or a key cannot be read any more
                while (data := self._inbound.get()) is not None:
                    self._socket.sendall(self._rewrite(data))
        finally:  # whoever waits for an answer sees the connection break
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
