"""A process that we did not start: its tree, its command, its ports, who it belongs to.

It only reads. What the kernel does not show us is a `Missing`, never a guess.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import stat
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shakedown.core import Identity, Missing
from shakedown.errors import UsageError
from shakedown.host import procfs
from shakedown.host.procfs import Stat

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KTHREADD = 2
_LISTEN = "0A"
_NAME = re.compile(r"[A-Za-z_]\w*")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_SUPERVISOR = "shakedown:"  # the last word of our supervisors' command lines, with the run's ID behind it
_MOST_BYTES = 4 << 20  # of a command line or an environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A TCP port that a process of a tree listens on. `address` is as bound: 0.0.0.0 and :: mean any."""

    port: int
    address: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignProcess:
    """One process as /proc shows it. `title`: what it calls itself now, where its argv is gone."""

    identity: Identity
    uid: int
    user: str
    argv: tuple[str, ...] | Missing
    env: Mapping[str, str] | Missing = field(repr=False)
    cwd: Path | Missing
    title: str
    same_machine: bool  # neither another container's files nor its network


def find(pid: int) -> ForeignProcess | None:
    """None where there is no such process, or only a zombie is left of it. Threads are no processes."""
    seen = procfs.read_stat(pid)
    if seen is None or seen.is_dead or pid not in procfs.list_pids():
        return None
    uid = uid_of(pid)
    cmdline = procfs.read_words(pid, "cmdline", _MOST_BYTES)
    wiped = cmdline is not None and _is_title(cmdline, _link(pid, "exe"))
    cwd = _link(pid, "cwd")
    return ForeignProcess(
        identity=Identity(pid=pid, started_ticks=seen.started_ticks),
        uid=uid,
        user=user_name(uid),
        argv=_argv(cmdline, wiped=wiped),
        env=_env(procfs.read_words(pid, "environ", _MOST_BYTES)),
        cwd=Path(cwd) if cwd else Missing(what="its folder", why=_CLOSED),
        title=cmdline[0] if wiped and cmdline else "",
        same_machine=all(_link(pid, f"ns/{kind}") in (None, _link("self", f"ns/{kind}")) for kind in _SPACES),
    )


_SPACES = ("mnt", "net")
_CLOSED = "it belongs to another user: look as that user, or as root"


def _argv(cmdline: list[str] | None, *, wiped: bool) -> tuple[str, ...] | Missing:
    if cmdline is None:
        return Missing(what="its command line", why=_CLOSED)
    if wiped or not cmdline:
        return Missing(what="its command line", why="the process has written a title over it (setproctitle)")
    return tuple(cmdline)


def _is_title(cmdline: list[str], program: str | None) -> bool:
    """A Python always has its interpreter in front; setproctitle leaves one text of its own choice."""
    words = [word for word in cmdline if word]
    if len(words) != 1:
        return not words
    runs_python = program is not None and _PYTHON.fullmatch(os.path.basename(program)) is not None
    first = os.path.basename(words[0].split(" ", 1)[0])
    return "::" in words[0] or (runs_python and _PYTHON.fullmatch(first) is None)


def _env(words: list[str] | None) -> Mapping[str, str] | Missing:
    if words is None:
        return Missing(what="its environment", why=_CLOSED)
    pairs = [word.partition("=") for word in words]
    found = {name: value for name, equals, value in pairs if equals and _NAME.match(name)}
    if not found:
        why = "the process has written a title over it (setproctitle), or was given none"
        return Missing(what="its environment", why=why)
    return found


def uid_of(pid: int) -> int:
    """The effective user; -1 where the process is gone."""
    fields = procfs.read_fields(pid)
    return int(fields["Uid"].split()[1]) if "Uid" in fields else -1


def own_uid() -> int:
    return os.geteuid()


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def age_s(started_ticks: int) -> float:
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / _TICKS_PER_S)


def tree_of(root: Identity) -> tuple[Identity, ...]:
    """The process and all its descendants now, parents first; () where it has ended."""
    if not procfs.is_alive(root.pid, root.started_ticks):
        return ()
    children: dict[int, list[Stat]] = {}
    for pid in procfs.list_pids():
        if (seen := procfs.read_stat(pid)) and not seen.is_dead:
            children.setdefault(seen.ppid, []).append(seen)
    found = [root]
    for parent in found:  # grows while it is walked
        found += [
            Identity(pid=seen.pid, started_ticks=seen.started_ticks) for seen in children.get(parent.pid, [])
        ]
    return tuple(found)


def ancestors_of(pid: int) -> list[int]:
    """Parents up to the first process, nearest first."""
    found: list[int] = []
    while (seen := procfs.read_stat(pid)) and seen.ppid > 0 and seen.ppid not in found:
        pid = seen.ppid
        found.append(pid)
    return found


def job_of(pid: int) -> list[int]:
    """The process and its parents of the same process group, up to what a shell started; none of ours."""
    ours = {os.getpid(), *ancestors_of(os.getpid())}
    found = [pid]
    while (seen := procfs.read_stat(found[-1])) and seen.ppid > 1 and seen.ppid not in ours:
        parent = procfs.read_stat(seen.ppid)
        if parent is None or parent.group != seen.group:
            break
        found.append(parent.pid)
    return found


def refuse_to_end(pid: int) -> None:
    """Raises UsageError for what nobody may want ended: the first process, the kernel's own, ourselves."""
    if pid == 1:
        raise UsageError("pid 1 holds the machine or the container together; it is never ended")
    if is_kernel_thread(pid):
        raise UsageError(f"pid {pid} is a thread of the kernel; it is never ended")
    if pid == os.getpid() or pid in ancestors_of(os.getpid()):
        raise UsageError(f"pid {pid} is this command itself or what started it; it is never ended")
    owner = uid_of(pid)
    if owner not in (-1, os.geteuid()) and os.geteuid() != 0:
        raise UsageError(
            f"pid {pid} belongs to {user_name(owner)}",
            "end it as that user, or as root, who is shown it first",
        )


def is_kernel_thread(pid: int) -> bool:
    seen = procfs.read_stat(pid)
    of_the_kernel = seen is not None and _KTHREADD in (pid, seen.ppid)
    return of_the_kernel and "VmSize" not in procfs.read_fields(pid)  # in a container 2 is anybody


def supervised_run(pid: int) -> tuple[str, Path | None]:
    """(ID, folder) of the run of ours that a process belongs to; ("", None) where it is of none."""
    for above in ancestors_of(pid):
        words = procfs.read_cmdline(above)
        if words and words[-1].startswith(_SUPERVISOR):
            errors = _link(above, "fd/2")
            return words[-1].removeprefix(_SUPERVISOR), Path(errors).parent if errors else None
    return "", None


def log_of(pid: int) -> Path | None:
    """The file that standard output, else standard error, goes to, by a path that outlives a move."""
    for number in (1, 2):
        place = Path(f"/proc/{pid}/fd/{number}")
        try:
            if stat.S_ISREG(place.stat().st_mode):
                return place
        except OSError:
            continue
    return None


def ports_of(tree: tuple[Identity, ...]) -> tuple[Listening, ...]:
    """Every TCP port that the tree listens on, as its own network shows it; the root's first."""
    found: dict[tuple[int, str], Listening] = {}
    table: dict[int, tuple[str, int]] = {}
    for member in tree:
        table = table or listening_on(member.pid)
        for inode in sorted(procfs.socket_inodes(member.pid) or ()):
            if inode in table:
                address, port = table[inode]
                found.setdefault((port, address), Listening(port=port, address=address, pid=member.pid))
    return tuple(found.values())


def listening_on(pid: int | str) -> dict[int, tuple[str, int]]:
    """inode: (address, port) of every listening TCP socket in the network of a process."""
    found = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN:
                address, _, port = fields[1].rpartition(":")
                found[int(fields[9])] = (_address(address), int(port, 16))
    return found


def _address(text: str) -> str:
    """The kernel writes addresses as 32-bit words of the machine's own byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))


def _link(pid: int | str, name: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return None
