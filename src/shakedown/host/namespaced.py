"""This machine as a `Host` of launches that live in networks of their own: `ip netns exec NAME CMD`.

It never enters such a network: the kernel shows it through the processes in it.
"""

from __future__ import annotations

from shakedown.core import Listener, Missing, Run
from shakedown.host import procfs
from shakedown.host.foreign import listening_on
from shakedown.host.local import LocalHost


class NamespacedHost(LocalHost):
    def listener(self, port: int, run: Run | None = None) -> Listener | None:
        """Who of the run listens on a port of its own network; before it has one, nobody can."""
        found = self.processes(run) if run is not None else ()
        if isinstance(found, Missing) or not found:
            return None
        listening: set[int] = set()
        for process in found:  # a wrapper that stays may be left in this machine's network
            there = listening_on(process.pid)
            listening |= {inode for inode, (_, number) in there.items() if number == port}
        for process in found:
            if (procfs.socket_inodes(process.pid) or set()) & listening:
                return Listener(port=port, pid=process.pid, program=process.name, ours=True)
        return None
