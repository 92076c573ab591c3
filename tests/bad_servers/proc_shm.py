"""A server that leaves shared memory behind: one segment mapped, one file only open.

usage: proc_shm.py NAME; makes /dev/shm/NAME-mapped and /dev/shm/NAME-open.
"""

import mmap
import os
import sys
import time

mapped = os.open(f"/dev/shm/{sys.argv[1]}-mapped", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
os.ftruncate(mapped, 4096)
view = mmap.mmap(mapped, 4096)
os.close(mapped)
opened = os.open(f"/dev/shm/{sys.argv[1]}-open", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
print("made", flush=True)
while True:
    time.sleep(60)
