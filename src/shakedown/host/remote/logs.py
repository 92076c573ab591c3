"""The copy of a far run's log that comes home while it is read: redacted over there, bounded here.

It never changes what was written.
"""

from __future__ import annotations

import os
from pathlib import Path

from shakedown.host.output import LOG_BYTES

_NAME = "launch.log"
_FULL = b"[shakedown: the rest of this log stayed on its machine]\n"


class HomeLog:
    """Appends what is news, by its offset in the far log; what was read twice is written once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._full = False
        self.offset = self._path.stat().st_size if self._path.is_file() else 0

    def add(self, data: bytes, offset: int, after: int) -> None:
        """A copy that cannot be written is no reason to end a watch: it ends there, and reading goes on."""
        if offset != self.offset or not data:
            return
        self.offset = after
        if not self._full:
            self._full = not self._write(data, last=after > LOG_BYTES) or after > LOG_BYTES

    def _write(self, data: bytes, *, last: bool) -> bool:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(self._path, flags, 0o600)
        except OSError:
            return False
        try:
            os.write(handle, data + _FULL * last)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True
