"""TCP as the kernel counts it: who listens on a port, and how many bytes each process has moved.

It opens no connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from shakedown.host import procfs

_DEADLINE_S = 2.0
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_REQUEST_DUMP = 0x1 | 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_INET_DIAG_INFO = 2
_ALL_STATES = 0xFFFFFFFF
_LISTEN = "0A"


def bytes_by_inode() -> dict[int, int]:
    """Bytes received and acknowledged so far, per TCP socket of this network namespace.

    Raises OSError where the kernel does not answer sock_diag, or not in two seconds.
    """
    found: dict[int, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_DEADLINE_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack(
                "=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _ALL_STATES
            )
            header = struct.pack("=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_REQUEST_DUMP, 1, 0)
            netlink.send(header + request)
            for message in _answers(netlink):
                (inode,) = struct.unpack_from("=I", message, 68)
                found[inode] = _moved_bytes(message[72:])
    return found


def _answers(netlink: socket.socket) -> Iterator[bytes]:
    while True:
        data = netlink.recv(1 << 20)
        while len(data) >= 16:
            length, kind = struct.unpack_from("=IH", data)
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                (number,) = struct.unpack_from("=i", data, 16)
                raise OSError(-number, "sock_diag refused")
            yield data[16:length]
            data = data[(length + 3) & ~3 :]


def _moved_bytes(attributes: bytes) -> int:
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _INET_DIAG_INFO and length >= 4 + 136:  # tcpi_bytes_acked, tcpi_bytes_received
            acked, received = struct.unpack_from("=QQ", attributes, 4 + 120)
            return int(acked + received)
        attributes = attributes[max(4, (length + 3) & ~3) :]
    return 0


def listening_inodes(port: int) -> set[int]:
    """Inodes of the sockets that listen on a TCP port, of any address."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(int(fields[9]))
    return found


def holders_of(inodes: set[int]) -> dict[int, int]:
    """Which process has each of these sockets open; those of other users stay unknown without root."""
    found: dict[int, int] = {}
    for pid in procfs.list_pids():
        for inode in (procfs.socket_inodes(pid) or set()) & inodes:
            found.setdefault(inode, pid)
        if len(found) == len(inodes):
            break
    return found


class SocketCounter:
    """Bytes per process that only grow: a closed socket's last count is kept."""

    def __init__(self) -> None:
        self._closed: dict[int, int] = {}
        self._open: dict[int, dict[int, int]] = {}

    def count(self, pids: list[int]) -> dict[int, int]:
        """Raises OSError where the kernel does not tell."""
        moved = bytes_by_inode()
        totals = {}
        for pid in pids:
            now = {inode: moved[inode] for inode in procfs.socket_inodes(pid) or () if inode in moved}
            gone = [count for inode, count in self._open.get(pid, {}).items() if inode not in now]
            self._closed[pid] = self._closed.get(pid, 0) + sum(gone)
            self._open[pid] = now
            totals[pid] = self._closed[pid] + sum(now.values())
        return totals
