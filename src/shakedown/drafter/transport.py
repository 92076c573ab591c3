"""Requests to one server over a kept connection, with patience for what may pass by itself.

It never streams, never follows a redirect, and knows nothing of what it carries.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from shakedown.errors import EnvironmentProblem

REQUEST_S = 1800.0  # silence on one request; two slow cores make 2,000 tokens in less
PATIENCE_S = 60.0  # with a server that refuses connections or says that it is busy
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
BUSY = frozenset({429, 502, 503, 504})
MOST_BYTES = 64 << 20
T = TypeVar("T")


class Refused(Exception):
    """The server will not answer this one request, and says why."""


class ServerLost(EnvironmentProblem):
    """The server answers no request any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """`url` without /v1; `model` is the name the server knows it by."""

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)


class Client:
    """A kept connection to the server: for one thread. `stopped` ends every wait of it."""

    def __init__(self, address: Address, stopped: threading.Event) -> None:
        self.address = address
        self._stopped = stopped
        self._parts = urlsplit(address.url)
        self._connection: http.client.HTTPConnection | None = None

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises Refused, or ServerLost once its patience is spent."""
        data = json.dumps(body).encode()
        until, attempt = time.monotonic() + PATIENCE_S, 0
        while True:
            if self._stopped.is_set():
                raise ServerLost("no more is asked")
            try:
                status, content = self._exchange(path, data)
                said = f"answers {status}: {excerpt(content)}"
            except (OSError, http.client.HTTPException) as problem:
                self.close()
                status, content = 0, b""
                said = f"cannot be asked: {problem or type(problem).__name__}"
            if status == 200:
                return parse(content, path)
            passing = status == 0 or status in BUSY or (status == 500 and attempt < 2)
            if not passing:
                raise Refused(f"{path} {said}")
            if time.monotonic() > until or self._stopped.wait(PAUSES_S[min(attempt, len(PAUSES_S) - 1)]):
                raise ServerLost(f"the server at {self.address.url} {said}")
            attempt += 1

    def _exchange(self, path: str, data: bytes) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"}
        if self.address.api_key is not None:
            headers["authorization"] = f"Bearer {self.address.api_key}"
        if self._connection is None:
            self._connection = connect(self._parts.scheme, self._parts.netloc.rpartition("@")[2])
        self._connection.request("POST", self._parts.path.rstrip("/") + path, data, headers)
        with self._connection.getresponse() as response:
            content = response.read(MOST_BYTES)
            if response.will_close or not response.isclosed():
                self.close()
            return response.status, content

    def cut(self) -> None:
        """From another thread: whatever request is under way ends now."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):  # it ended by itself
                connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def connect(scheme: str, place: str) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(place, timeout=REQUEST_S, context=ssl.create_default_context())
    return http.client.HTTPConnection(place, timeout=REQUEST_S)


def parse(content: bytes, path: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refused(f"{path} answers what is no JSON object: {excerpt(content)}")
    return found


def excerpt(content: bytes) -> str:
    return repr(content[:200].decode(errors="replace"))


def ask_once(address: Address, ask: Callable[[Client], T]) -> T:
    """What `ask` finds out over a connection of its own."""
    client = Client(address, threading.Event())
    try:
        return ask(client)
    finally:
        client.close()
