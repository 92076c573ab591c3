"""Frames on one byte stream: calls, answers, pings and the bytes of tunnels, each with a number.

It never interprets a body, and never waits for the other side.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import zlib
from dataclasses import dataclass
from enum import IntEnum

PROTOCOL = 1
MOST_BYTES = 256 << 20  # a frame beyond it is no frame of ours
_PACK_ABOVE = 512  # bytes: below it a deflated body is no shorter
_HEAD = struct.Struct(">BBII")  # kind, packed, number, length
_READ_BYTES = 1 << 20
_STUCK_S = 1.0


class Kind(IntEnum):
    CALL = 1
    ANSWER = 2
    PING = 3
    PONG = 4
    OPEN = 5  # a tunnel; its number is the stream's
    DATA = 6
    SHUT = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    kind: Kind
    number: int
    body: bytes


class Garbled(Exception):
    """What came is no frame."""


class Wire:
    """Two descriptors; any thread may send, one reads."""

    def __init__(self, inbox: int, outbox: int) -> None:
        self._inbox, self._outbox = inbox, outbox
        self._sending = threading.Lock()
        self._shut = False

    def send(self, kind: Kind, number: int, body: bytes = b"") -> None:
        """Raises OSError where the other side is gone."""
        packed = kind is not Kind.DATA and len(body) > _PACK_ABOVE
        body = zlib.compress(body, 1) if packed else body
        unsent = memoryview(_HEAD.pack(kind, packed, number, len(body)) + body)
        with self._sending:
            if self._shut:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            while unsent:
                unsent = unsent[os.write(self._outbox, unsent) :]

    def shut(self) -> bool:
        """Sends no more, so that the descriptor can be closed. False where somebody is stuck in sending."""
        if not self._sending.acquire(timeout=_STUCK_S):
            return False
        self._shut = True
        self._sending.release()
        return True

    def receive(self) -> Frame:
        """Raises EOFError at the end of the stream, Garbled or OSError for a broken one."""
        kind, packed, number, length = _HEAD.unpack(self._take(_HEAD.size))
        if length > MOST_BYTES or kind not in Kind._value2member_map_:
            raise Garbled(f"a frame of kind {kind} with {length} bytes")
        body = self._take(length)
        try:
            body = zlib.decompress(body) if packed else body
        except zlib.error as problem:
            raise Garbled(str(problem)) from problem
        return Frame(kind=Kind(kind), number=number, body=body)

    def _take(self, count: int) -> bytes:
        taken = bytearray()
        while len(taken) < count:
            piece = os.read(self._inbox, min(_READ_BYTES, count - len(taken)))
            if not piece:
                raise EOFError
            taken += piece
        return bytes(taken)
