"""A log on disk of bounded size: how it began and how it ended, with what came between dropped.

It never changes a line, and knows no secret.
"""

from __future__ import annotations

import os
from pathlib import Path

LOG_BYTES = 64 << 20
_HEAD = "launch.log"


class BoundedLog:
    """`launch.log` keeps the first half; then segments named by the offset they begin at, old ones dropped.

    An offset is a place in the whole stream, so it stays true whatever was dropped. `resumed`: it goes on
    where an earlier writer stopped; else there may be none yet. Whatever cannot be written raises OSError.
    """

    def __init__(self, folder: Path, *, limit_bytes: int = LOG_BYTES, resumed: bool = False) -> None:
        self._folder = folder
        self._head_bytes = limit_bytes // 2
        self._segment_bytes = max(1, limit_bytes // 8)
        found = segments_in(folder) if resumed else []
        self._start, path = found[-1] if found else (0, folder / _HEAD)
        self._descriptor = _open(path, 0 if found else os.O_CREAT | os.O_EXCL)
        self._written = self._start + os.fstat(self._descriptor).st_size

    @property
    def has_head(self) -> bool:
        """The first half is written, so a flood cannot push out how it began."""
        return self._start > 0

    def write(self, lines: bytes) -> None:
        room = self._segment_bytes if self._start else self._head_bytes
        if self._written - self._start + len(lines) > room and self._written > self._start:
            self._start_segment()
        view = memoryview(lines)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._written = self._start + os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def _start_segment(self) -> None:
        descriptor = _open(self._folder / f"{_HEAD}.{self._written:015d}", os.O_CREAT | os.O_EXCL)
        os.close(self._descriptor)
        self._start, self._descriptor = self._written, descriptor
        for _, path in segments_in(self._folder)[1:-4]:  # three full ones and this: the tail's half
            path.unlink(missing_ok=True)


def segments_in(folder: Path) -> list[tuple[int, Path]]:
    """Each with the offset it begins at, the first one first."""
    head = folder / _HEAD
    later = [(int(path.suffix[1:]), path) for path in folder.glob(f"{_HEAD}.*")]
    return ([(0, head)] if head.exists() else []) + sorted(later)


def end_of(folder: Path) -> int:
    """The offset after the last byte, 0 where there is no log."""
    found = segments_in(folder)
    return found[-1][0] + found[-1][1].stat().st_size if found else 0


def read_log(folder: Path, offset: int, *, most_bytes: int = 4 << 20) -> tuple[bytes, int]:
    """Whole lines from `offset` on, and the offset to go on from. What was dropped is told in a line."""
    note = b""
    for start, path in segments_in(folder):
        try:
            size = path.stat().st_size
            if offset >= start + size:
                continue
            if offset < start:
                note = f"[shakedown: {start - offset} bytes of log dropped]\n".encode()
                offset = start
            with path.open("rb") as log:
                log.seek(offset - start)
                found = log.read(most_bytes)
        except FileNotFoundError:
            continue  # dropped since we looked: the next one tells
        lines = found[: found.rfind(b"\n") + 1]
        return note + lines, offset + len(lines)
    return b"", offset


def _open(path: Path, flags: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
