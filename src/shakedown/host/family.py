"""Which processes are provably ours, each held by a pidfd from first sight.

Proof is descent, our cgroup, or a session our leader's descendants made; never a name, a tag or a port.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shakedown.host import cgroup, procfs
from shakedown.host.procfs import Stat


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process of ours. `pidfd` is -1 where the kernel gave none (too old, or out of descriptors)."""

    pid: int
    started_ticks: int
    pidfd: int

    def is_alive(self) -> bool:
        return procfs.is_alive(self.pid, self.started_ticks)


class Family:
    """The living processes of one run.

    `root` is the subreaper to whom orphans fall (the supervisor); it is no member. Without it
    (`None`: the supervisor is dead) only what `known` holds, their descendants and the group count.
    """

    def __init__(
        self, *, root: int | None, group: Path | None, known: Iterable[tuple[int, int]] = ()
    ) -> None:
        self._root = root
        self._group = group
        self._members: dict[int, Member] = {}
        self._judged: set[int] = set()
        self._poll = select.poll()
        self._pid_of: dict[int, int] = {}
        for pid, ticks in known:
            self._adopt(pid, ticks)

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    def find(self, pid: int) -> Member | None:
        return self._members.get(pid)

    def adopt(self, pid: int) -> bool:
        """Take in a process that the caller has proven ours; its descendants follow with the next looks."""
        stat = procfs.read_stat(pid)
        return stat is not None and not stat.is_dead and self._adopt(pid, stat.started_ticks)

    def bury(self) -> bool:
        """Forget those that have exited (a zombie has). Says whether there were any."""
        dead = [self._pid_of[handle] for handle, _ in self._poll.poll(0)]
        dead += [m.pid for m in self._members.values() if m.pidfd < 0 and not m.is_alive()]
        for pid in dead:
            member = self._members.pop(pid)
            if member.pidfd >= 0:
                self._poll.unregister(member.pidfd)
                del self._pid_of[member.pidfd]
                os.close(member.pidfd)
        return bool(dead)

    def look(self, *, thorough: bool = False) -> bool:
        """Bury the dead and adopt the new. Says whether anything changed.

        Cheap by looking only at pids not seen by the last look: a process never *becomes* a
        descendant of ours. `thorough` judges every process again, sessions included.
        """
        changed = self.bury()
        listed = set(procfs.list_pids())
        grouped = (cgroup.pids_in(self._group) or set()) if self._group else set()
        unknown = (listed if thorough else listed - self._judged) | grouped
        stats = {
            pid: stat
            for pid in unknown - self._members.keys()
            if (stat := procfs.read_stat(pid)) and not stat.is_dead and pid != self._root
        }
        sessions = self._sessions() if thorough else set()
        self._judged = listed
        while found := [s for s in stats.values() if self._is_ours(s, grouped, sessions)]:
            for stat in found:
                del stats[stat.pid]
                changed |= self._adopt(stat.pid, stat.started_ticks)
        return changed

    def signal(self, number: int, *, only: Member | None = None) -> None:
        for member in self.members if only is None else [only]:
            try:
                if member.pidfd >= 0:
                    signal.pidfd_send_signal(member.pidfd, number)
                elif member.is_alive():
                    os.kill(member.pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # gone; or, as another user, left over and reported as such

    def kill(self) -> None:
        """SIGKILL to all, by the group where there is one, then one by one; wakes the stopped."""
        if self._group:
            cgroup.kill(self._group)
        self.signal(signal.SIGKILL)
        self.signal(signal.SIGCONT)

    def kill_process_groups(self) -> None:
        """SIGKILL to whole process groups: no fork escapes it, so it ends storms that outrun our looking.

        A group lies inside one session and our sessions were all made by our own descendants.
        """
        for group in self._process_groups():
            try:
                os.killpg(group, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def _process_groups(self) -> set[int]:
        """Those that may be killed whole."""
        sessions = self._sessions()
        stats = [(member, procfs.read_stat(member.pid)) for member in self.members]
        return {
            stat.group
            for member, stat in stats
            if stat and stat.started_ticks == member.started_ticks and stat.session in sessions
        }

    def _sessions(self) -> set[int]:
        """Sessions of living members, read afresh: while one lives in it, its number is not given again."""
        stats = [(member, procfs.read_stat(member.pid)) for member in self.members]
        found = {
            stat.session for member, stat in stats if stat and stat.started_ticks == member.started_ticks
        }
        strangers = [os.getsid(0), *([self._root] if self._root else [])]
        return found.difference(strangers, [0])

    def _is_ours(self, stat: Stat, grouped: set[int], sessions: set[int]) -> bool:
        return (
            stat.ppid in self._members
            or stat.ppid == self._root
            or stat.pid in grouped
            or stat.session in sessions
        )

    def _adopt(self, pid: int, ticks: int) -> bool:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:
            pidfd = -1
        if not procfs.is_alive(pid, ticks):  # the handle may be of a successor
            if pidfd >= 0:
                os.close(pidfd)
            return False
        self._members[pid] = Member(pid=pid, started_ticks=ticks, pidfd=pidfd)
        if pidfd >= 0:
            self._poll.register(pidfd, select.POLLIN)
            self._pid_of[pidfd] = pid
        return True
