"""A read-only file system over one folder whose files come slowly, or from some byte on never: FUSE, by hand.

    python benchmarks/odd_disk.py SOURCE MOUNT_POINT (--bytes-per-s N | --silent-after BYTES)

Speaks the kernel's protocol on /dev/fuse itself, so it needs root and no library. It prints a line once
it is mounted, and ends when it is unmounted or told to: reads that hang are then refused by the kernel.
It never writes, and shows plain files only.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import struct
import time
from pathlib import Path

MESSAGE_BYTES = 1 << 20
READ_BYTES = 128 << 10
KEEP_S = 3600  # names and sizes never change
ROOT = 1

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE = 1, 2, 3, 14, 15, 17, 18
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 25, 26, 27, 28, 29, 36, 42
UNANSWERED = frozenset({FORGET, BATCH_FORGET, INTERRUPT})

HEADER = struct.Struct("<IIQQIIIHH")
ANSWER = struct.Struct("<IiQ")
INIT_IN = struct.Struct("<IIII")
INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("<QQQQII")
ATTRIBUTES_VALID = struct.Struct("<QII")
OPENED = struct.Struct("<QII")
READ_IN = struct.Struct("<QQIIQII")
STATFS_OUT = struct.Struct("<QQQQQIIII24x")
ENTRY_NAME = struct.Struct("<QQII")


class OddDisk:
    """Answers the kernel, request by request, in one thread: a slow read keeps all others waiting, as on a
    slow disk; a silent one is never answered, and the next is served."""

    def __init__(self, source: Path, *, bytes_per_s: float | None, silent_after: int | None) -> None:
        self._files = [path for path in sorted(source.iterdir()) if path.is_file()]
        self._open = [path.open("rb", buffering=0) for path in self._files]
        self._numbers = {path.name.encode(): at + ROOT + 1 for at, path in enumerate(self._files)}
        self._bytes_per_s = bytes_per_s
        self._silent_after = silent_after

    def answer(self, operation: int, node: int, body: bytes) -> bytes | int | None:
        """What to reply: bytes, an error number, or None for silence."""
        match operation:
            case op if op == INIT:
                major, minor, readahead, _ = INIT_IN.unpack_from(body)
                return INIT_OUT.pack(major, min(minor, 31), readahead, 0, 12, 9, READ_BYTES, 1, 0, 0, 0)
            case op if op == LOOKUP:
                number = self._numbers.get(body.rstrip(b"\0"))
                if number is None:
                    return errno.ENOENT
                return ENTRY.pack(number, 0, KEEP_S, KEEP_S, 0, 0) + self._attributes(number)
            case op if op == GETATTR:
                return ATTRIBUTES_VALID.pack(KEEP_S, 0, 0) + self._attributes(node)
            case op if op in (OPEN, OPENDIR):
                return OPENED.pack(0, 0, 0)
            case op if op == READ:
                _, offset, size, *_ = READ_IN.unpack_from(body)
                return self._read(node, offset, size)
            case op if op == READDIR:
                _, offset, size, *_ = READ_IN.unpack_from(body)
                return self._list(offset, size)
            case op if op == STATFS:
                return STATFS_OUT.pack(1 << 20, 0, 0, len(self._files), 0, 4096, 255, 4096, 0)
            case op if op in (FLUSH, RELEASE, RELEASEDIR):
                return b""
            case _:
                return errno.ENOSYS

    def _attributes(self, node: int) -> bytes:
        if node == ROOT:
            return ATTRIBUTES.pack(node, 0, 0, 0, 0, 0, 0, 0, 0, 0o040555, 2, 0, 0, 0, 4096, 0)
        size = os.fstat(self._open[node - ROOT - 1].fileno()).st_size
        return ATTRIBUTES.pack(node, size, -(-size // 512), 0, 0, 0, 0, 0, 0, 0o100444, 1, 0, 0, 0, 4096, 0)

    def _read(self, node: int, offset: int, size: int) -> bytes | None:
        if self._silent_after is not None and offset + size > self._silent_after:
            return None
        data = os.pread(self._open[node - ROOT - 1].fileno(), size, offset)
        if self._bytes_per_s:
            time.sleep(len(data) / self._bytes_per_s)
        return data

    def _list(self, offset: int, size: int) -> bytes:
        listed = b""
        for at, path in enumerate(self._files[offset:], offset + 1):
            name = path.name.encode()
            entry = ENTRY_NAME.pack(at + ROOT, at, len(name), 8) + name
            entry += b"\0" * (-len(entry) % 8)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed

    def serve(self, device: int) -> None:
        """Until it is unmounted."""
        while True:
            try:
                message = os.read(device, MESSAGE_BYTES)
            except OSError as gone:
                if gone.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue  # a request that was taken back
                return
            _, operation, number, node, *_ = HEADER.unpack_from(message)
            if operation in UNANSWERED:
                continue
            said = self.answer(operation, node, message[HEADER.size :])
            if said is not None:
                reply(device, number, said)


def reply(device: int, number: int, said: bytes | int) -> None:
    refused, data = (said, b"") if isinstance(said, int) else (0, said)
    try:
        os.write(device, ANSWER.pack(ANSWER.size + len(data), -refused, number) + data)
    except OSError as gone:
        if gone.errno != errno.ENOENT:  # whoever asked has been killed meanwhile
            raise


def mount(device: int, place: Path) -> None:
    """Raises OSError where this user or kernel may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    read_only_nosuid_nodev = 1 | 2 | 4
    if libc.mount(b"odd_disk", str(place).encode(), b"fuse", read_only_nosuid_nodev, options) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(place))


def main() -> None:
    parser = argparse.ArgumentParser(description="A slow or silent read-only view of a folder.")
    parser.add_argument("source", type=Path)
    parser.add_argument("mount_point", type=Path)
    parser.add_argument("--bytes-per-s", type=float)
    parser.add_argument("--silent-after", type=int, metavar="BYTES", help="of any file")
    given = parser.parse_args()
    disk = OddDisk(given.source, bytes_per_s=given.bytes_per_s, silent_after=given.silent_after)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    mount(device, given.mount_point)
    print("mounted", flush=True)
    disk.serve(device)


if __name__ == "__main__":
    main()
