"""A server whose children fork and leave, over and over, so that no list of pids is ever up to date.

usage: proc_storm.py CHAINS
"""

import os
import sys
import time

for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        while True:
            if os.fork():
                time.sleep(0.001)
                os._exit(0)
print("storming", flush=True)
while True:
    time.sleep(60)
