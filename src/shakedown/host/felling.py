"""End a tree of processes that we did not start, and nothing beside it.

It never ends what does not provably descend from the root, and never widens a tree upwards.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

from shakedown.core import Identity
from shakedown.host import procfs
from shakedown.host.family import Family
from shakedown.host.foreign import ancestors_of, is_kernel_thread, refuse_to_end, uid_of
from shakedown.host.ladder import bring_down
from shakedown.host.procfs import Stat

_FREEZE_ROUNDS = 20  # a storm of forks is frozen in two or three


@dataclass(frozen=True, slots=True, kw_only=True)
class Felled:
    """How a tree ended. `left`: what is still alive; `ended` counts the processes that are not."""

    ended: int
    left: tuple[Identity, ...]
    forced: bool
    seconds: float


class Tree(Family):
    """A root and what descends from it.

    A session counts as the tree's own only if one of its members made it: everything in such a session
    descends from its maker. The session a server was started in may be a user's whole terminal.
    """

    def __init__(self, root: Identity, *, users: Iterable[int]) -> None:
        self._users = frozenset(users)
        self._made: set[int] = set()
        self._spared = {1, os.getpid(), *ancestors_of(os.getpid())}
        self.seen: set[tuple[int, int]] = set()
        super().__init__(root=None, group=None, known=[(root.pid, root.started_ticks)])

    def wake(self, pid: int) -> None:
        """A stopped process hears TERM only once it goes on; the grace would be waited for in vain."""
        seen, member = procfs.read_stat(pid), self.find(pid)
        if member and seen and seen.state == "T":
            self.signal(signal.SIGTERM, only=member)
            self.signal(signal.SIGCONT, only=member)

    def kill(self) -> None:
        """Stopped first: who cannot fork or die any more loses no child out of sight."""
        for _ in range(_FREEZE_ROUNDS):
            self.signal(signal.SIGSTOP)
            if not self.look(thorough=True):
                break
        super().kill()

    def _sessions(self) -> set[int]:
        for member in self.members:
            found = procfs.read_stat(member.pid)
            if found and found.started_ticks == member.started_ticks and found.session == member.pid:
                self._made.add(member.pid)
        return super()._sessions() & self._made

    def _process_groups(self) -> set[int]:
        """None with a process in it that is not ours to end: its members are killed one by one."""
        groups = super()._process_groups()
        living = [stat for stat in map(procfs.read_stat, procfs.list_pids()) if stat and not stat.is_dead]
        strangers = [
            stat.group
            for stat in living
            if stat.group in groups
            and not self._may_end(stat.pid)
            and procfs.is_alive(stat.pid, stat.started_ticks)  # else it only went meanwhile
        ]
        return groups.difference(strangers)

    def _is_ours(self, stat: Stat, grouped: set[int], sessions: set[int]) -> bool:
        return super()._is_ours(stat, grouped, sessions) and self._may_end(stat.pid)

    def _may_end(self, pid: int) -> bool:
        """Of a user that was shown, and none of those whose end would be ours."""
        return pid not in self._spared and uid_of(pid) in self._users and not is_kernel_thread(pid)

    def _adopt(self, pid: int, ticks: int) -> bool:
        adopted = self._may_end(pid) and super()._adopt(pid, ticks)
        if adopted:
            self.seen.add((pid, ticks))
        return adopted


def fell(root: Identity, *, users: Iterable[int], grace_s: float) -> Felled:
    """End the process and its descendants: TERM, `grace_s` seconds, TERM to all and CONT, then KILL.

    Each is held by a pidfd whose process was verified by its start. Children forked meanwhile are
    included; a number that was given to another process is not. `users` are the owners that were shown.
    Raises UsageError for what is never ended (see `refuse_to_end`).
    """
    refuse_to_end(root.pid)
    began = time.monotonic()
    tree = Tree(root, users=users)
    tree.wake(root.pid)
    fall = bring_down(tree, root.pid, grace_s, turn=time.sleep, hurried=lambda: False)
    left = tuple(Identity(pid=member.pid, started_ticks=member.started_ticks) for member in fall.left)
    return Felled(
        ended=len(tree.seen) - len(left), left=left, forced=fall.forced, seconds=time.monotonic() - began
    )
