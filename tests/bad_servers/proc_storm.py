"""A server whose children fork and leave, over and over, so that no list of pids is ever up to date.

It dies down by itself: a storm that outlived its test once took this machine's cores for half an hour.

usage: proc_storm.py CHAINS
"""

import os
import sys
import time

LIFE_S = 40.0

over_s = time.monotonic() + LIFE_S
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        while time.monotonic() < over_s:
            if os.fork():
                time.sleep(0.001)
                os._exit(0)
        os._exit(0)
print("storming", flush=True)
time.sleep(LIFE_S)
