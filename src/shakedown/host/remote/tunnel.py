"""Ports of this machine that lead to servers of another one, through the connection that is there anyway.

They listen on loopback only and lead nowhere but where they were made for.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from shakedown.errors import HostProblem
from shakedown.host.remote.link import Link, Lost


class Tunnels:
    """`linked` gives the connection of the moment, and waits for one where it is lost."""

    def __init__(self, linked: Callable[[], Link]) -> None:
        self._linked = linked
        self._ports: dict[tuple[str, int], socket.socket] = {}

    def reach(self, url: str) -> str:
        """The same URL by a port of ours."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        there = (parts.hostname or "127.0.0.1", port)
        if there not in self._ports:
            listening = socket.create_server(("127.0.0.1", 0))
            self._ports[there] = listening
            threading.Thread(
                target=self._accept, args=(listening, *there), name="shakedown-port", daemon=True
            ).start()
        here = self._ports[there].getsockname()[1]
        return parts._replace(netloc=f"127.0.0.1:{here}").geturl()

    def close(self) -> None:
        for listening in self._ports.values():
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
            listening.close()
        self._ports.clear()

    def _accept(self, listening: socket.socket, address: str, port: int) -> None:
        with contextlib.suppress(OSError):  # closed by us
            while True:
                connected, _ = listening.accept()
                threading.Thread(
                    target=self._lead, args=(connected, address, port), name="shakedown-port", daemon=True
                ).start()

    def _lead(self, connected: socket.socket, address: str, port: int) -> None:
        """Where there is no connection now, it waits for one; whoever asks has a deadline of its own."""
        try:
            self._linked().tunnel(address, port, connected)
        except (Lost, HostProblem):
            connected.close()
