"""A server with a family: a plain child, one that is stopped, one that fled by fork and setsid.

usage: proc_family.py FOLDER [--deaf] [--quit CODE]; each process leaves its pid in a file named by its role.
`--deaf`: nobody listens to SIGTERM. `--quit CODE`: the leader leaves once the family stands.
"""

import os
import signal
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
if "--deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def stand(role):
    (folder / f".{role}").write_text(str(os.getpid()))
    (folder / f".{role}").rename(folder / role)


def live(role):
    stand(role)
    if role == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        time.sleep(60)


for role in ("plain", "stopped"):
    if os.fork() == 0:
        live(role)
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0:
        live("daemon")
    os._exit(0)
os.waitpid(middle, 0)
if "--quit" in sys.argv:
    while len(list(folder.glob("[a-z]*"))) < 3:
        time.sleep(0.01)
    stand("leader")
    os._exit(int(sys.argv[sys.argv.index("--quit") + 1]))
live("leader")
