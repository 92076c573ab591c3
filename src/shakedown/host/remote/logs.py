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
        """A copy that cannot be written is no reason to end a watch: it ends there."""
        if offset != self.offset or not data or self._full:
            return
        self._full = after > LOG_BYTES
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            handle = os.open(self._path, flags, 0o600)
        except OSError:
            self._full = True
            return
        try:
            os.write(handle, data + _FULL * self._full)
        except OSError:
            self._full = True
        finally:
            os.close(handle)
        self.offset = after
