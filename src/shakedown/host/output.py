"""Take in a run's raw output and keep a redacted copy of bounded size.

The raw bytes never have a name on disk; nobody who writes them can be blocked by us.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from shakedown.host.scrub import Scrubber
from shakedown.host.segments import LOG_BYTES, BoundedLog

_READ_BYTES = 1 << 20
_BLOCK_BYTES = 4096
_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02


class RawOutput:
    """An unlinked, append-only file: the server's stdout and stderr."""

    def __init__(self, folder: Path) -> None:
        self.descriptor = _open_nameless(folder)
        self._consumed = 0
        self._punched = 0
        self._can_punch = False
        self._size = 0
        self._last = b""  # what was consumed since the last hole
        self._fallocate = ctypes.CDLL(None, use_errno=True).fallocate
        self._fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

    def waiting_bytes(self) -> int:
        size = os.fstat(self.descriptor).st_size
        if size != self._size:
            if size < self._consumed or self._is_rewritten():
                self._consumed = self._punched = 0
                self._last = b""
            self._size = size
        return size - self._consumed

    def take(self) -> bytes:
        """The next bytes, at most 1 MiB. Their blocks go back to the file system."""
        taken = os.pread(self.descriptor, _READ_BYTES, self._consumed) if self.waiting_bytes() else b""
        self._last += taken
        self._advance(len(taken))
        return taken

    def skip(self, count: int) -> None:
        self._last = b""
        self._advance(count)

    def _is_rewritten(self) -> bool:
        """Whether the file was emptied and written anew, as `echo … > /dev/stderr` in a start script does."""
        if self._can_punch and self._punched and _first_data(self.descriptor) < self._punched:
            return True
        before = os.pread(self.descriptor, len(self._last), self._consumed - len(self._last))
        return before != self._last

    def _advance(self, count: int) -> None:
        self._consumed += count
        done = self._consumed // _BLOCK_BYTES * _BLOCK_BYTES
        if done > self._punched:
            self._fallocate(self.descriptor, _KEEP_SIZE_PUNCH_HOLE, self._punched, done - self._punched)
            self._punched = done
            self._can_punch = _first_data(self.descriptor) >= done
        self._last = self._last[-(self._consumed - done) :] if self._consumed > done else b""


class RedactedLog:
    """What the scrubber lets through, in a log of bounded size: its offsets are of the redacted stream."""

    def __init__(self, folder: Path, scrubber: Scrubber, *, limit_bytes: int = LOG_BYTES) -> None:
        self._scrubber = scrubber
        self._log = BoundedLog(folder, limit_bytes=limit_bytes)
        self.problem: str | None = None

    @property
    def has_head(self) -> bool:
        return self._log.has_head

    def add(self, raw: bytes) -> None:
        self._write(self._scrubber.feed(raw))

    def finish_line(self) -> None:
        self._write(self._scrubber.flush())

    def note_gap(self, missing_bytes: int) -> None:
        """Say that output was skipped, and let no torn line follow."""
        self._scrubber.skip()
        note = f"[shakedown: {missing_bytes} bytes left out, they came faster than can be redacted]\n"
        self._write(note.encode())

    def _write(self, lines: bytes) -> None:
        if not lines or self.problem:  # what came after a gap would be read as if there were none
            return
        try:
            self._log.write(lines)
        except OSError as problem:  # disk full: the run must be supervised to its end all the same
            self.problem = f"its log ends early: {problem.strerror}"


def _first_data(descriptor: int) -> int:
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError:  # ENXIO: nothing but a hole
        return sys.maxsize


def drain(raw: RawOutput, log: RedactedLog, *, most_bytes: int, skip_above_bytes: int) -> int:
    """Move up to `most_bytes` from raw to log. A backlog beyond any hope is skipped, and said so."""
    backlog = raw.waiting_bytes()
    if backlog > skip_above_bytes and log.has_head:
        missing = backlog - skip_above_bytes // 2
        raw.skip(missing)
        log.note_gap(missing)
    moved = 0
    while moved < most_bytes and (taken := raw.take()):
        log.add(taken)
        moved += len(taken)
    return moved


def _open_nameless(folder: Path) -> int:
    """On the run's own disk if that knows nameless files, else in the folder for temporary ones."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    for place in (str(folder), os.environ.get("TMPDIR", "/tmp"), "/dev/shm"):
        try:
            return os.open(place, flags | os.O_TMPFILE, 0o600)
        except OSError:
            continue
    name = folder / "unnamed"  # named for a moment, while it is still empty
    handle = os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    name.unlink()
    return handle
