"""Remember which files of /dev/shm the run made, and unlink those that nobody uses any more.

It never unlinks by name alone, nor what was there before the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from shakedown.host import procfs
from shakedown.host.procfs import ShmObject

_FOLDER = "/dev/shm"
_EVERY_S = 3.0
_SHARE = 0.003  # of one core, at most: reading the maps of a big process takes milliseconds
_AT_ONCE = 20  # new files looked for in the maps without waiting: a process killed early takes its maps along


class ShmWatch:
    """Made before the run starts, so that it knows what is not the run's."""

    def __init__(self) -> None:
        self._before = self._listed = _numbers()
        self._at_once = _AT_ONCE
        self._next_list_s = self._next_s = 0.0
        self.seen: set[ShmObject] = set()

    def sample(self, pids: Iterable[int], *, now: bool = False) -> bool:
        """Look what the processes use, if it is time to. Says whether something new was seen."""
        began, used_s = time.monotonic(), time.thread_time()
        if began < self._next_list_s and not now:
            return False
        listed = _numbers()
        self._next_list_s = began + (time.thread_time() - used_s) / _SHARE
        now |= began >= self._next_s or (bool(listed - self._listed) and self._at_once > 0)
        self._listed = listed
        if not now or listed <= self._before | {(it.device, it.inode) for it in self.seen}:
            return False
        self._at_once -= began < self._next_s
        known = len(self.seen)
        for pid in pids:
            used = procfs.shm_used(pid) or set()
            self.seen |= {it for it in used if (it.device, it.inode) not in self._before}
        self._next_s = began + max(_EVERY_S, (time.thread_time() - used_s) / _SHARE)
        return len(self.seen) > known


def sweep(seen: Iterable[ShmObject]) -> list[str]:
    """Unlink what is still the same file and used by nobody. Returns the paths unlinked."""
    there = {it for it in seen if _is_still(it)}
    if not there:
        return []
    used: set[ShmObject] = set()
    blind = False
    for pid in procfs.list_pids():
        theirs = procfs.users_of(pid, there)
        blind |= theirs is None and procfs.read_stat(pid) is not None
        used |= theirs or set()
    return sorted(it.path for it in there - used if not (blind and _is_shared(it)) and _unlink(it))


def still_there(seen: Iterable[ShmObject]) -> list[str]:
    """Paths of those that have not been removed."""
    return sorted({it.path for it in seen if _is_still(it)})


def _numbers() -> set[tuple[int, int]]:
    """(device, inode) of everything there is. Anybody may remove a folder while it is walked."""
    found = set()
    for folder, folders, files in os.walk(_FOLDER):
        for name in folders + files:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            found.add((status.st_dev, status.st_ino))
    return found


def _is_still(it: ShmObject) -> bool:
    try:
        status = os.lstat(it.path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (it.device, it.inode)


def _is_shared(it: ShmObject) -> bool:
    """Whether a process we may not look into could have it open: it belongs to another user."""
    try:
        return bool(os.lstat(it.path).st_mode & 0o077)
    except OSError:
        return True


def _unlink(it: ShmObject) -> bool:
    if not _is_still(it):
        return False
    try:
        os.unlink(it.path)
    except OSError:
        return False
    return True
