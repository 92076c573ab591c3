"""Whether an address is this machine's, and which of its processes listens there.

It opens no connection and sends nothing.
"""

from __future__ import annotations

import random
import socket

from shakedown.core import Identity, Missing
from shakedown.host import procfs, sockets
from shakedown.host.foreign import ForeignProcess

SERVER_PORTS = (20_000, 29_999)
_NONE = Missing(what="its command line", why="its process is not seen from here")

NOBODY = ForeignProcess(
    identity=Identity(pid=0, started_ticks=0),
    uid=-1,
    user="",
    argv=_NONE,
    env=_NONE,
    cwd=_NONE,
    title="",
    same_machine=False,
)


def is_local(hostname: str) -> bool:
    """Whether a name or address is one of this machine's own: only those can be bound."""
    try:
        found = socket.getaddrinfo(hostname, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: object) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)  # type: ignore[arg-type]
    except OSError:
        return False
    return True


def is_listening(port: int) -> bool:
    return bool(sockets.listening_inodes(port))


def holder_of(port: int) -> tuple[int, str] | None:
    """(pid, the kernel's name for it) of who listens; None where it is not ours to see."""
    holders = sockets.holders_of(sockets.listening_inodes(port))
    pid = min(holders.values(), default=None)
    found = procfs.read_stat(pid) if pid is not None else None
    return (found.pid, found.comm) if found else None


def free_port() -> int:
    """A TCP port that nobody on this machine listens on now, on any address.

    Below the range that outgoing connections take theirs from, and low enough for SGLang, which
    listens 10,000 ports higher as well.
    """
    while True:
        port = random.randint(*SERVER_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
