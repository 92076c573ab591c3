"""Where the running threads of a process stand, by nothing but their instruction pointers.

For where a native stack cannot be unwound: it says which library a thread is in, and nothing of who called.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path

from shakedown.core import Frame, Missing, StackDump, ThreadStack
from shakedown.host.execution import execute

_DEADLINE_S = 3.0
_WHAT = "instruction pointers"
# On the way to the kernel's clock a wait passes through here, and says nothing of itself.
_WAY_STATION = "libc.so"

# A child of its own does it: it may be left behind, and what it traces goes on when it ends. It looks at each
# thread a few times.
_READER = """
import ctypes, json, os, sys, time
SEIZE, INTERRUPT, CONT, GETREGS, DETACH, EVENT_STOP, ALL, RIP = (
    0x4206, 0x4207, 7, 12, 17, 128, 0x40000000, 16,
)
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
pid, found = int(sys.argv[1]), []
for task in map(int, os.listdir(f"/proc/{pid}/task")):
    with open(f"/proc/{pid}/task/{task}/stat") as file:
        if file.read().rpartition(")")[2].split()[0] != "R":
            continue
    if ptrace(SEIZE, task, None, None):
        sys.exit(os.strerror(ctypes.get_errno()))
    registers, seen, signal = (ctypes.c_ulonglong * 64)(), [], 0
    for turn in range(4):
        if turn:
            ptrace(CONT, task, None, signal)
            time.sleep(0.001)
        ptrace(INTERRUPT, task, None, None)
        status = os.waitpid(task, ALL)[1]
        if not os.WIFSTOPPED(status):
            break
        # Stopped by a signal on its way, not by us: the signal goes on with the thread.
        signal = 0 if status >> 16 == EVENT_STOP else os.WSTOPSIG(status)
        if not ptrace(GETREGS, task, None, registers):
            seen.append(registers[RIP])
    ptrace(DETACH, task, None, signal)
    found.append((task, seen))
print(json.dumps(found))
"""


def read_pointers(pid: int) -> StackDump | Missing:
    """One frame for each running thread: an address, and the library it lies in."""
    if platform.machine() != "x86_64":
        return Missing(what=_WHAT, why=f"not read on {platform.machine()}")
    done = execute(
        [sys.executable, "-c", _READER, str(pid)], env={}, cwd=Path("/"), stdin="", deadline_s=_DEADLINE_S
    )
    if done.code != 0:
        return Missing(what=_WHAT, why=f"the reader failed: {done.stderr.strip()[-200:]}")
    try:
        regions = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError as problem:
        return Missing(what=_WHAT, why=f"process {pid}: {problem.strerror}")
    threads = [
        ThreadStack(
            name="MainThread" if task == pid else f"thread {task}",
            active=True,
            frames=(_frame(regions, seen),),
        )
        for task, seen in json.loads(done.stdout)
        if seen
    ]
    if not threads:
        return Missing(what=_WHAT, why=f"no thread of {pid} runs")
    return StackDump(pid=pid, threads=tuple(threads))


def _frame(regions: list[str], seen: list[int]) -> Frame:
    """Where a thread was first seen outside of the C library."""
    places = [Frame(function=hex(address), file=_holder(regions, address), line=0) for address in seen]
    return next((place for place in places if not place.file.startswith(_WAY_STATION)), places[0])


def _holder(regions: list[str], address: int) -> str:
    """The file name of the mapping that holds the address, "[vdso]" for the kernel's page; "?" where none."""
    for region in regions:
        span, _, _, _, _, *file = region.split(maxsplit=5)
        first, _, end = span.partition("-")
        if int(first, 16) <= address < int(end, 16):
            return os.path.basename(file[0]) if file else "?"
    return "?"
