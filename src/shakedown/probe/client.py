"""One HTTP request to the server under test, cut at a wall deadline; whatever happens is a value.

It never raises for what a server does, never follows a redirect, never keeps more than `MOST_BYTES`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx

from shakedown.core import LogprobStyle

MOST_BYTES = 4 << 20  # logprobs of 800 tokens are 0.2 MB; a server may send for ever
LEFT_OPEN_S = 2.0  # after the last word of an answer; its [DONE] takes milliseconds
LOOK_S = 0.1
LEAVE_S = 0.2  # what a cut request gets to end its thread tidily; after that it is left behind
_LAST_WORD = re.compile(rb'"finish_reason"\s*:\s*"|"choices"\s*:\s*\[\s*\].*"completion_tokens"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server to ask: where, under which name and with which key. `base_url` includes a root path.

    `health_path` None: the engine has none. `health_is_named`: a user named it, so that only a 2xx of it
    means ready. `token_only`: what it answers means nothing (random weights)
    or does not matter now. `by_proxy`: the environment's proxies lead there, as to a URL on another machine
    that a user typed; never to a launch or a process of ours, whose key a proxy must not see.
    """

    base_url: str
    model: str | None
    api_key: str | None = field(repr=False)
    logprobs: LogprobStyle
    health_path: str | None
    engine: str
    health_is_named: bool = False
    token_only: bool = False
    by_proxy: bool = False

    def url(self, path: str) -> str:
        return self.base_url.rstrip("/").removesuffix("/v1") + path


class Failure(StrEnum):
    """Why there is no whole answer."""

    REFUSED = "connection refused"  # nobody listens: the server is dead, or not yet there
    UNREACHABLE = "cannot be reached"  # no such host, no route, TLS refused, not a URL
    CONNECT_TIMEOUT = "connect timed out"  # the backlog is full: saturated, not dead
    CUT = "no complete answer before the deadline"
    BROKEN = "the connection broke"
    TOO_BIG = f"an answer of more than {MOST_BYTES >> 20} MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. `pieces` are (seconds since the request was sent, bytes), also of a cut answer."""

    status: int | None
    pieces: tuple[tuple[float, bytes], ...]
    failure: Failure | None
    detail: str
    seconds: float

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.pieces)

    @property
    def ok(self) -> bool:
        return self.failure is None and self.status == 200


def send(target: Target, path: str, body: Mapping[str, Any] | None = None, *, deadline_s: float) -> Answer:
    """GET, or POST `body` as JSON, and wait at most `deadline_s` seconds in all.

    httpx counts its timeouts per read, so a server that drips a byte a second would never be cut:
    the request runs in a thread of its own, which is cut off from its socket and left behind.
    """
    exchange = _Exchange(target, path, body, deadline_s)
    thread = threading.Thread(target=exchange.run, name="shakedown-probe", daemon=True)
    ends = time.monotonic() + deadline_s
    thread.start()
    while thread.is_alive() and not exchange.is_left_open() and (left_s := ends - time.monotonic()) > 0:
        thread.join(min(left_s, LOOK_S))
    if thread.is_alive():
        exchange.cut()
        thread.join(LEAVE_S)
    return exchange.answer()


class _Exchange:
    """The request while it runs. Only `cut` and `answer` are called from outside its thread."""

    def __init__(self, target: Target, path: str, body: Mapping[str, Any] | None, deadline_s: float) -> None:
        self._target, self._url, self._body = target, target.url(path), body
        self._deadline_s = max(0.001, deadline_s)
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None  # a duplicate: ours to shut down, whoever wraps the other
        self._connected = self._was_cut = self._ended = False
        self._status: int | None = None
        self._pieces: list[tuple[float, bytes]] = []
        self._failure, self._detail, self._seconds = Failure.BROKEN, "", 0.0
        self._whole = False
        self._last_word_s: float | None = None

    def run(self) -> None:
        try:
            self._exchange()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
            self._fail(_classify(error, connected=self._connected), _words(error))
        finally:
            with self._lock:
                self._ended = True
                self._seconds = time.monotonic() - self._started
                if self._socket is not None:
                    self._socket.close()
                    self._socket = None

    def cut(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._was_cut = True
            self._whole = self._last_word_s is not None
            self._failure = Failure.CUT if self._connected else Failure.CONNECT_TIMEOUT
            self._seconds = time.monotonic() - self._started
            if self._socket is not None:
                with contextlib.suppress(OSError):  # the server closed it first
                    self._socket.shutdown(socket.SHUT_RDWR)

    def is_left_open(self) -> bool:
        """All was said a while ago, and the server does not end the stream."""
        with self._lock:
            said_s = self._last_word_s
            return said_s is not None and time.monotonic() - self._started - said_s > LEFT_OPEN_S

    def answer(self) -> Answer:
        with self._lock:
            return Answer(
                status=self._status,
                pieces=tuple(self._pieces),
                failure=None if self._whole else self._failure,
                detail=self._detail,
                seconds=self._seconds,
            )

    def _exchange(self) -> None:
        headers = {b"accept-encoding": b"identity", b"connection": b"close"}
        if self._body is not None:
            headers[b"content-type"] = b"application/json"
        if self._target.api_key is not None:
            headers[b"authorization"] = b"Bearer " + self._target.api_key.encode()
        local = _is_loopback(self._url)
        with (
            httpx.Client(
                verify=_tls(self._url, local=local),
                trust_env=self._target.by_proxy and not local,
                timeout=self._deadline_s,
            ) as client,
            client.stream(
                "GET" if self._body is None else "POST",
                self._url,
                content=None if self._body is None else json.dumps(self._body).encode(),
                headers=headers,
                extensions={"trace": self._trace},
            ) as response,
        ):
            with self._lock:
                self._status = response.status_code
            self._read(response)

    def _read(self, response: httpx.Response) -> None:
        size, tail = 0, b""
        for data in response.iter_raw():
            size += len(data)
            if size > MOST_BYTES:
                self._fail(Failure.TOO_BIG, "")
                return
            with self._lock:
                if self._was_cut:
                    return
                now_s = time.monotonic() - self._started
                self._pieces.append((now_s, data))
                self._last_word_s = now_s if _LAST_WORD.search(tail + data) else None
            tail = (tail + data)[-512:]
            if tail.rstrip().endswith(b"data: [DONE]"):  # some servers keep the stream open after it
                break
        with self._lock:
            self._whole = self._whole or not self._was_cut

    def _fail(self, failure: Failure, detail: str) -> None:
        with self._lock:
            if not self._was_cut:
                self._failure, self._detail = failure, detail

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event != "connection.connect_tcp.complete":
            return
        with self._lock:
            self._connected = True
            opened = info["return_value"].get_extra_info("socket")
            if isinstance(opened, socket.socket):
                self._socket = opened.dup()
                if self._was_cut:
                    self._socket.shutdown(socket.SHUT_RDWR)


def _is_loopback(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(url: str, *, local: bool) -> ssl.SSLContext:
    """A launch on this machine may have a certificate it signed itself; any other must be valid."""
    if url.startswith("https:") and not local:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # no authorities to load: 50 ms less a request
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _classify(error: Exception, *, connected: bool) -> Failure:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ConnectionRefusedError):
            return Failure.REFUSED
        seen = seen.__cause__ or seen.__context__
    if isinstance(error, httpx.ConnectTimeout):
        return Failure.CONNECT_TIMEOUT if not connected else Failure.CUT
    if isinstance(error, httpx.TimeoutException):
        return Failure.CUT
    return Failure.BROKEN if connected and not isinstance(error, httpx.ConnectError) else Failure.UNREACHABLE


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
