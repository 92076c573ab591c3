"""Remember which segments of /dev/shm the run shared, and unlink those that nobody uses any more.

It never unlinks by name alone, nor what was there before the run, lies in a folder, or was only opened or
mapped to be read: weights and caches are put into /dev/shm too, and are the user's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable

from shakedown.host import procfs
from shakedown.host.procfs import ShmObject

_FOLDER = "/dev/shm"
_NAMED = re.compile(r"""/dev/shm(?![^/\s"',:;=])(?:/+([^/\s"',:;=]+))?""")
_OF_LIBRARIES = ("psm_", "sem.", "torch_", "nccl-")  # made by shm_open and its like, whatever folder is named
_EVERY_S = 3.0
_SHARE = 0.003  # of one core, at most: reading the maps of a big process takes milliseconds
_AT_ONCE = 20  # new files looked for in the maps without waiting: a process killed early takes its maps along


def named_in(words: Iterable[str]) -> frozenset[str]:
    """What of /dev/shm a launch names in its arguments and variables; "" is the folder itself."""
    return frozenset(name for word in words for name in _NAMED.findall(word))


class ShmWatch:
    """Made before the run starts, so that it knows what is not the run's. `named`: see `named_in`."""

    def __init__(self, named: frozenset[str] = frozenset()) -> None:
        self._named = named
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
            shared = procfs.shm_shared(pid) or set()
            self.seen |= {it for it in shared if self._is_of_run(it)}
        self._next_s = began + max(_EVERY_S, (time.thread_time() - used_s) / _SHARE)
        return len(self.seen) > known

    def _is_of_run(self, it: ShmObject) -> bool:
        """Whether it may be unlinked in the end: what the launch names, the user has a mind to keep."""
        if (it.device, it.inode) in self._before or not _is_segment(it):
            return False
        name = os.path.basename(it.path)
        return name not in self._named and ("" not in self._named or name.startswith(_OF_LIBRARIES))


def sweep(seen: Iterable[ShmObject]) -> list[str]:
    """Unlink what is still the same file and used by nobody. Returns the paths unlinked."""
    there = {it for it in seen if _is_segment(it) and _is_still(it)}
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
    """(device, inode) of all that lies in /dev/shm itself. Anybody may remove it while it is listed."""
    found = set()
    for name in os.listdir(_FOLDER) if os.path.isdir(_FOLDER) else ():
        try:
            status = os.lstat(os.path.join(_FOLDER, name))
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found


def _is_segment(it: ShmObject) -> bool:
    """Segments have no folders: what lies in one was put there as a file."""
    return os.path.dirname(it.path) == _FOLDER


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
