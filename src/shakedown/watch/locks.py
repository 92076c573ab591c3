"""Which file lock a process waits for, who holds it, and since when that one does nothing.

The kernel frees a lock whose holder dies: somebody alive holds it. It never judges whether that is a hang.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shakedown.core import Evidence, Frame, LockHolder
from shakedown.watch.proc import BUSY_SHARE, BYTES_PER_S
from shakedown.watch.situation import LockWait
from shakedown.watch.stacks import packages

_SHORT = 4  # letters of a folder's name that still tell a package


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    holder: LockHolder
    at_s: float
    worked_s: float  # when it was last seen to work; at first it is given the benefit of the doubt


class Locks:
    """Remembers the holders from one look to the next."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], _Seen] = {}
        self._now_s = 0.0

    def forget(self) -> None:
        """Something moved: who did nothing until then may be another's silence."""
        self._seen = {}

    def feed(self, holders: Iterable[LockHolder], now_s: float) -> None:
        self._now_s = now_s
        before, self._seen = self._seen, {}
        for it in holders:
            key = (it.path, it.pid)
            last = before.get(key)
            worked_s = now_s if last is None or _works(last, it, now_s) else last.worked_s
            self._seen[key] = _Seen(holder=it, at_s=now_s, worked_s=worked_s)

    def wait_of(self, pid: int, frames: tuple[Frame, ...]) -> LockWait:
        """The lock kept in a folder of the innermost package under way, else the only one that is held.

        Of several the one whose holder worked last, and that of another process before its own.
        """
        others = [it for it in self._seen.values() if it.holder.pid != pid] or [*self._seen.values()]
        of_packages = ([it for it in others if _is_near(it.holder.path, p)] for p in packages(frames))
        meant = next(filter(None, of_packages), others if len(others) == 1 else [])
        found = max(meant, key=lambda it: (it.worked_s, -it.holder.pid), default=None)
        if found is None:
            return LockWait()
        holder, idle_s = found.holder, self._now_s - found.worked_s
        return LockWait(path=holder.path, pid=holder.pid, name=holder.name, idle_s=idle_s)


def describe(lock: LockWait, at_s: float) -> Evidence:
    if lock.pid is None:
        return Evidence(kind="lock", text="waits for a file lock whose holder is not seen", at_s=at_s)
    doing = f"which has not worked for {lock.idle_s:.0f} s" if lock.idle_s else "which works"
    text = f"{lock.path} is held by {lock.holder}, {doing}"
    return Evidence(kind="lock", text=text, at_s=at_s, pid=lock.pid)


def _works(last: _Seen, now: LockHolder, now_s: float) -> bool:
    seconds = max(now_s - last.at_s, 0.1)
    cpu, read = now.cpu_s - last.holder.cpu_s, now.io_bytes - last.holder.io_bytes
    return cpu / seconds >= BUSY_SHARE or read / seconds >= BYTES_PER_S


def _is_near(path: str, package: str) -> bool:
    """Whether one of its folders is called like a package: ~/.cache/tvm-ffi, /tmp/torchinductor_me."""
    folders = [part.lstrip(".").replace("-", "_") for part in path.split("/")[:-1]]
    long = [folder for folder in folders if min(len(folder), len(package)) >= _SHORT]
    return any(folder.startswith(package) or package.startswith(folder) for folder in long)
