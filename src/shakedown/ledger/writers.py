"""Which process writes, and whether one that wrote is provably gone.

It never signals a process.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shakedown.core import Identity

PROC = Path("/proc")
LOCK = "writer.lock"


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


def is_gone(writer: Writer, here: Writer, folder: Path) -> bool:
    """Whether the `writer` of the entry of this folder has ended, seen from the process `here`.

    False where it cannot be told.
    """
    if writer.boot_id != here.boot_id:
        return writer.hostname == here.hostname  # the machine was booted since
    if writer.namespace == here.namespace:
        return started_ticks(writer.process.pid) != writer.process.started_ticks
    return not is_held(folder)  # in another container: its processes are not seen from here


def hold(folder: Path) -> int | None:
    """A lock on the folder of an entry, held while the descriptor is open; other containers see it, too.

    None where there can be none.
    """
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(folder / LOCK, flags, 0o600)
    except OSError:
        return None
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # shared: who asks holds it alone, and only for a moment
    return descriptor


def is_held(folder: Path) -> bool:
    try:
        with open(folder / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # held, or it cannot be told
        return True
    return False


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
