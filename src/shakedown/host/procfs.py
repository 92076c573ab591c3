"""Read /proc: one process, one file, one answer, None where the process is gone or closed to us.

It never signals, and imports the standard library only: the supervisor starts with it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAPS_BYTES = 64 << 20


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that somebody here asks for. `started_ticks` counts from boot."""

    pid: int
    comm: str
    state: str
    ppid: int
    group: int
    session: int
    exiting: bool  # on its way out, however long its memory takes to be given back
    minor_faults: int
    cpu_s: float
    children_cpu_s: float
    threads: int
    started_ticks: int
    rss_bytes: int

    @property
    def is_dead(self) -> bool:
        """A zombie, though not one whose main thread alone has ended."""
        return self.state in "ZX" and self.threads <= 1


class ShmObject(NamedTuple):
    """A file of /dev/shm; `device` and `inode` tell it from a later one of the same name."""

    path: str
    device: int
    inode: int


def _read(path: str, limit: int = 1 << 20) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        pieces = []
        while limit > 0 and (piece := os.read(handle, min(limit, 65536))):
            pieces.append(piece)
            limit -= len(piece)
        return b"".join(pieces)
    except OSError:  # ESRCH: gone between open and read
        return None
    finally:
        os.close(handle)


def boot_id() -> str:
    return (_read("/proc/sys/kernel/random/boot_id") or b"").decode().strip()


def list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_stat(pid: int) -> Stat | None:
    raw = _read(f"/proc/{pid}/stat")
    if not raw:
        return None
    head, _, tail = raw.rpartition(b")")  # the name itself may hold brackets and blanks
    rest = tail.split()
    return Stat(
        pid=pid,
        comm=head.partition(b"(")[2].decode("utf-8", "replace"),
        state=rest[0].decode(),
        ppid=int(rest[1]),
        group=int(rest[2]),
        session=int(rest[3]),
        exiting=bool(int(rest[6]) & 0x4),  # PF_EXITING
        minor_faults=int(rest[7]),
        cpu_s=(int(rest[11]) + int(rest[12])) / _TICKS_PER_S,
        children_cpu_s=(int(rest[13]) + int(rest[14])) / _TICKS_PER_S,
        threads=int(rest[17]),
        started_ticks=int(rest[19]),
        rss_bytes=int(rest[21]) * _PAGE_BYTES,
    )


def thread_states(pid: int) -> dict[int, str]:
    """The letter of each thread of a process; {} where it is gone."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return {}
    stats = {int(task): _read(f"/proc/{pid}/task/{task}/stat") for task in tasks}
    return {task: stat.rpartition(b")")[2].split()[0].decode() for task, stat in stats.items() if stat}


def is_gone(pid: int) -> bool:
    """Whether nobody runs by this number: a zombie holds nothing but its exit code."""
    stat = read_stat(pid)
    return stat is None or stat.is_dead


def started_ticks(pid: int) -> int | None:
    stat = read_stat(pid)
    return stat.started_ticks if stat else None


def is_alive(pid: int, ticks: int) -> bool:
    """Whether this very process still runs; a zombie does not."""
    stat = read_stat(pid)
    return stat is not None and stat.started_ticks == ticks and not stat.is_dead


def read_cmdline(pid: int) -> list[str]:
    raw = _read(f"/proc/{pid}/cmdline", 16384) or b""
    return [part.decode("utf-8", "replace") for part in raw.rstrip(b"\0").split(b"\0")] if raw else []


def read_words(pid: int, file: str, limit: int) -> list[str] | None:
    """`cmdline` or `environ` of a process, every byte kept; None where we may not look."""
    raw = _read(f"/proc/{pid}/{file}", limit)
    return None if raw is None else [os.fsdecode(word) for word in raw.removesuffix(b"\0").split(b"\0")]


def read_fields(pid: int) -> dict[str, str]:
    """/proc/PID/status as names and values; {} where the process is gone."""
    lines = (_read(f"/proc/{pid}/status") or b"").decode("utf-8", "replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def read_wchan(pid: int) -> str:
    return (_read(f"/proc/{pid}/wchan") or b"").decode("utf-8", "replace")


def read_cgroups(pid: int) -> str:
    """The groups a process is in, in every hierarchy; "" where it is gone."""
    return (_read(f"/proc/{pid}/cgroup") or b"").decode("utf-8", "replace")


def read_io(pid: int) -> tuple[int, int, int]:
    """(bytes read, bytes written) by system calls, bytes off the disks; zeros where we may not look."""
    raw = _read(f"/proc/{pid}/io") or b""
    fields = dict(line.split(b": ", 1) for line in raw.splitlines() if b": " in line)
    return int(fields.get(b"rchar", 0)), int(fields.get(b"wchar", 0)), int(fields.get(b"read_bytes", 0))


def socket_inodes(pid: int) -> set[int] | None:
    """Inodes of the sockets a process has open, or None where we may not look."""
    links = _open_files(pid)
    if links is None:
        return None
    return {int(target[8:-1]) for _, target in links if target.startswith("socket:[")}


def shm_used(pid: int) -> set[ShmObject] | None:
    """What of /dev/shm a process maps or has open, deleted files left out; None where we may not look."""
    maps = _read(f"/proc/{pid}/maps", _MAPS_BYTES)
    if maps is None:
        return None
    found = set()
    if b"/dev/shm/" in maps:
        found = {it for it in map(_mapped, maps.splitlines()) if it and it.path.startswith("/dev/shm/")}
    for link, target in _open_files(pid) or ():
        if target.startswith("/dev/shm/") and (it := _opened(link, target)):
            found.add(it)
    return {it for it in found if not it.path.endswith(" (deleted)")}


def shm_shared(pid: int) -> set[ShmObject] | None:
    """What of /dev/shm a process maps to write and to share, deleted files left out; None as above."""
    maps = _read(f"/proc/{pid}/maps", _MAPS_BYTES)
    if maps is None:
        return None
    lines = [
        line for line in maps.splitlines() if b"/dev/shm/" in line and line.split(None, 2)[1][1::2] == b"ws"
    ]
    found = {it for it in map(_mapped, lines) if it and it.path.startswith("/dev/shm/")}
    return {it for it in found if not it.path.endswith(" (deleted)")}


def users_of(pid: int, wanted: set[ShmObject]) -> set[ShmObject] | None:
    """Which of these files a process maps or has open, by whatever path its container shows them."""
    maps = _read(f"/proc/{pid}/maps", _MAPS_BYTES)
    if maps is None:
        return None
    by_number = {(it.device, it.inode): it for it in wanted}
    names = {os.path.basename(it.path) for it in wanted}
    found = [it for it in wanted if b" %d " % it.inode in maps]
    if found:
        numbers = {(it.device, it.inode) for it in map(_mapped, maps.splitlines()) if it}
        found = [it for number, it in by_number.items() if number in numbers]
    for link, target in _open_files(pid) or ():
        if os.path.basename(target) in names and (it := _opened(link, target)):
            found += [by_number[it.device, it.inode]] if (it.device, it.inode) in by_number else []
    return set(found)


def flocked(pid: int) -> list[str]:
    """Lock files that a process holds with flock(2); [] where we may not look.

    Its own descriptors say so. /proc/locks tells pids of our namespace only, and inodes instead of paths.
    """
    held = []
    for link, target in _open_files(pid) or ():
        if target.endswith((".lock", "/lock")):
            folder, _, number = link.rpartition("/fd/")
            if b"FLOCK" in (_read(f"{folder}/fdinfo/{number}") or b""):
                held.append(target)
    return held


def _mapped(line: bytes) -> ShmObject | None:
    fields = line.split(None, 5)
    if len(fields) < 6:
        return None
    major, minor = fields[3].split(b":")
    return ShmObject(os.fsdecode(fields[5]), os.makedev(int(major, 16), int(minor, 16)), int(fields[4]))


def _opened(link: str, target: str) -> ShmObject | None:
    try:
        status = os.stat(link)
    except OSError:
        return None
    return ShmObject(target, status.st_dev, status.st_ino)


def _open_files(pid: int) -> list[tuple[str, str]] | None:
    """(link below /proc, target) of every open file of a process, or None where we may not look."""
    found = []
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    found.append((entry.path, os.readlink(entry.path)))
                except OSError:
                    continue
    except OSError:
        return None
    return found
