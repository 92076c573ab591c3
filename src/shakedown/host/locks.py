"""Who of this machine holds a lock file, and how much it and its descendants have worked.

It never takes or tries a lock: whoever tries one holds it for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from shakedown.core import LockHolder
from shakedown.host import procfs
from shakedown.host.procfs import Stat


def read_holders(name_of: Callable[[int], str]) -> tuple[LockHolder, ...]:
    """One for each lock file. A forked child shares its parent's lock: the eldest is told."""
    held: dict[str, list[int]] = {}
    for pid in procfs.list_pids():
        for path in procfs.flocked(pid):
            held.setdefault(path, []).append(pid)
    if not held:
        return ()
    stats = {stat.pid: stat for stat in map(procfs.read_stat, procfs.list_pids()) if stat}
    found = []
    for path, pids in held.items():
        alive = [pid for pid in pids if pid in stats]
        eldest = min(
            alive, key=lambda pid: (stats[pid].ppid in alive, stats[pid].started_ticks), default=None
        )
        if eldest is not None:
            found.append(_holder(path, eldest, name_of(eldest), stats))
    return tuple(found)


def _holder(path: str, pid: int, name: str, stats: Mapping[int, Stat]) -> LockHolder:
    tree = list(_tree(pid, stats))
    return LockHolder(
        path=path,
        pid=pid,
        name=name,
        cpu_s=sum(stats[it].cpu_s + stats[it].children_cpu_s for it in tree),
        io_bytes=sum(sum(procfs.read_io(it)[:2]) for it in tree),
    )


def _tree(pid: int, stats: Mapping[int, Stat]) -> Iterator[int]:
    """The process and its descendants."""
    yield pid
    for stat in stats.values():
        if stat.ppid == pid:
            yield from _tree(stat.pid, stats)
