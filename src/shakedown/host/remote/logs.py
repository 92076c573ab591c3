"""The copy of a far run's log that comes home while it is read: redacted over there, bounded here as there.

It never changes what was written.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from shakedown.host.segments import LOG_BYTES, BoundedLog, end_of


class HomeLog:
    """Appends what is news, by its offset in the far log; what was read twice is written once.

    A copy that cannot be written is no reason to end a watch: it ends with a `problem`, and reading goes on.
    """

    def __init__(self, folder: Path, *, limit_bytes: int = LOG_BYTES) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self.problem = ""
        self.offset = end_of(folder)

    def add(self, data: bytes, offset: int, after: int) -> None:
        if offset != self.offset or not data:
            return
        self.offset = after
        if self.problem:
            return
        try:
            log = BoundedLog(self._folder, limit_bytes=self._limit_bytes, resumed=True)
            with contextlib.closing(log):
                log.write(data)
        except OSError as problem:
            self.problem = problem.strerror or str(problem)
