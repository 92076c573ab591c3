"""Our tool, to be killed in the middle: starts a launch, says where its processes are, and waits.

usage: proc_tool.py RUN_FOLDER plain|detach|disarm|end CMD…; `end`: it ends the launch on a line of input.
"""

import os
import sys
import time
from pathlib import Path

from shakedown.core import Launch
from shakedown.host.local import LocalHost

folder, mode, *argv = sys.argv[1:]
host = LocalHost()
run = host.start(
    Launch(argv=tuple(argv), env=dict(os.environ), cwd=Path.cwd()), Path(folder), detach=mode == "detach"
)
if mode == "disarm":
    host.disarm(run)
print("started", flush=True)
if mode == "end":
    input()
    host.end(run, grace_s=600)
while True:
    time.sleep(60)
