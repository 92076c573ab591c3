"""A server that writes many lines as fast as it can, then says in a file that it was never blocked.

usage: proc_flood.py MEBIBYTES DONE_FILE
"""

import os
import sys
import time

line = b"INFO 08-26 12:00:00 [core.py:123] nothing of interest, again and again and again\n"
block = line * (1048576 // len(line) + 1)
for _ in range(int(sys.argv[1])):
    os.write(1, block[:1048576])
os.write(1, b"\nthe last line\n")
with open(sys.argv[2], "w") as done:
    done.write("done")
while True:
    time.sleep(60)
