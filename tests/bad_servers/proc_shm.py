"""A server that leaves things in /dev/shm behind: segments, and files that are the user's.

usage: proc_shm.py NAME [PATH …]; makes in /dev/shm NAME-mapped and sem.NAME, which it writes and shares,
NAME-open, which it only opens, NAME-read, which it maps to read alone, and a segment at every PATH.
"""

import mmap
import os
import sys
import time


def make(path: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(descriptor, 4096)
    return descriptor


def shared(path: str, access: int = mmap.ACCESS_WRITE) -> mmap.mmap:
    descriptor = make(path)
    view = mmap.mmap(descriptor, 4096, access=access)
    os.close(descriptor)
    return view


name, *paths = sys.argv[1:]
opened = make(f"/dev/shm/{name}-open")
read = shared(f"/dev/shm/{name}-read", mmap.ACCESS_READ)
for path in paths:
    os.makedirs(os.path.dirname(path), exist_ok=True)
views = [shared(path) for path in (*paths, f"/dev/shm/sem.{name}", f"/dev/shm/{name}-mapped")]
print("made", flush=True)
while True:
    time.sleep(60)
