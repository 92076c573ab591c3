"""Which process writes, and whether one that wrote is provably gone.

It never signals a process.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from shakedown.core import Identity

PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A process for good, across reboots and containers. `namespace` is that of its pids."""

    process: Identity
    boot_id: str
    hostname: str
    namespace: str


def this_writer() -> Writer:
    pid = os.getpid()
    return Writer(
        process=Identity(pid=pid, started_ticks=started_ticks(pid) or 0),
        boot_id=boot_id(),
        hostname=socket.gethostname(),
        namespace=_namespace(),
    )


def is_gone(writer: Writer, here: Writer) -> bool:
    """Whether `writer` has ended, seen from the process `here`; False where it cannot be told."""
    if (writer.boot_id, writer.namespace) == (here.boot_id, here.namespace):
        return started_ticks(writer.process.pid) != writer.process.started_ticks
    return writer.hostname == here.hostname  # the machine was booted, or the container started, since


def started_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat, or None for no such process; a zombie counts as none."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # a name may hold spaces and brackets
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def boot_id() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink(PROC / "self/ns/pid")
    except OSError:
        return ""
