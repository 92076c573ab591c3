"""The reading half of a `Host` for a running server that we did not start.

It never starts, signals or ends anything, and reads the server's log from where it ended when we came.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from shakedown.core import (
    Exit,
    Host,
    Identity,
    Listener,
    Missing,
    ProcessSample,
    Run,
)
from shakedown.errors import UsageError
from shakedown.host import procfs, segments
from shakedown.host.family import Family
from shakedown.host.foreign import listening_on
from shakedown.host.onlooker import Onlooker
from shakedown.host.output import RedactedLog
from shakedown.host.samples import Sampler
from shakedown.host.scrub import Scrubber
from shakedown.redact import Redactor

TAIL_BYTES = 64 << 10  # of the log before we came: kept for the report, never taken for news
_READ_BYTES = 1 << 20


class AttachedHost(Onlooker):
    """A foreign tree as a run: its folder holds a redacted copy of the log's tail and what comes after.

    `log` None: its output goes where we cannot read it. Times count from the moment of attaching.
    `position`: where news begin for one who was here before; None for one who comes now.
    """

    def __init__(
        self,
        local: Host,
        root: Identity,
        folder: Path,
        *,
        log: Path | None,
        redactor: Redactor,
        position: int | None = None,
    ) -> None:
        super().__init__(local)
        self._redactor = redactor
        self._sampler = Sampler()
        self._family = Family(root=None, group=None, known=[(root.pid, root.started_ticks)])
        self._handle = _open(log) if log else None
        self._copy = RedactedLog(folder, Scrubber(redactor))
        self._position = self._copy_tail() if position is None else position
        self.settled = self._position  # what comes before it is copied, in whole lines
        self.tail, self._tail_bytes = segments.read_log(folder, 0)
        self.run = Run(
            folder=folder,
            supervisor=Identity(pid=0, started_ticks=0),
            leader=root,
            started_s=time.monotonic(),
        )

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def clock_s(self) -> float:
        return time.monotonic()

    def processes(self, run: Run) -> tuple[ProcessSample, ...] | Missing:
        self._family.look()
        found = [
            self._sampler.sample(it.pid, it.started_ticks, self._redactor) for it in self._family.members
        ]
        return tuple(sample for sample in found if sample)

    def read_log(self, run: Run, offset: int) -> tuple[bytes, int]:
        """What was written since we came, redacted."""
        if self._handle is not None:
            size = os.fstat(self._handle).st_size
            if size < self._position:  # it was emptied
                self._position = self.settled = 0
            fresh = os.pread(self._handle, _READ_BYTES, self._position)
            if (end := fresh.rfind(b"\n")) >= 0:
                self.settled = self._position + end + 1
            self._position += len(fresh)
            self._copy.add(fresh)
        return segments.read_log(run.folder, max(offset, self._tail_bytes))

    def exit_of(self, run: Run) -> Exit | None:
        alive = procfs.is_alive(run.leader.pid, run.leader.started_ticks)
        return None if alive else Exit(code=None, signal=None)

    def listener(self, port: int, run: Run | None = None) -> Listener | None:
        """Who of the tree listens there, as its own network shows it; else who does here."""
        for member in self._family.members:
            listening = {i for i, (_, number) in listening_on(member.pid).items() if number == port}
            if listening & (procfs.socket_inodes(member.pid) or set()):
                name = self._sampler.sample(member.pid, member.started_ticks, self._redactor)
                return Listener(port=port, pid=member.pid, program=name.name if name else "", ours=True)
        return self._host.listener(port)

    def _copy_tail(self) -> int:
        """Copies the end of the log as it is now; returns where news begin."""
        if self._handle is None:
            return 0
        size = os.fstat(self._handle).st_size
        start = max(0, size - TAIL_BYTES)
        tail = os.pread(self._handle, size - start, start)
        if start:  # begins in mid-line, maybe in a secret
            tail = tail.partition(b"\n")[2]
        self._copy.add(tail)
        return size


def _open(log: Path) -> int:
    """Raises UsageError for a log that cannot be read."""
    try:
        return os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        raise UsageError(
            f"the log {log} cannot be read: {problem.strerror}", "give it with --log FILE"
        ) from problem
