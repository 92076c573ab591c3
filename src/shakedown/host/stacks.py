"""Python stacks of a process through py-spy, without stopping it.

It never asks for local variables, and gives up on a py-spy that does not come back.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from shakedown.core import Execution, Frame, Missing, StackDump, ThreadStack
from shakedown.host import procfs
from shakedown.host.execution import execute
from shakedown.host.pointers import read_pointers
from shakedown.redact import Redactor, strip_controls

_DEADLINE_S = 5.0
# Unwinding fails while a thread is in the kernel's page for the clock (vdso), and a wait that spins in the
# GPU's driver looks at the clock in each turn. Another moment may show it.
_TRIES, _NOT_UNWOUND = 2, "UNW_E"
_STUCK_S = 0.1  # a thread that only waits for a disk has gone on by then
_MOST_FRAMES = 200
_WHAT = "stacks"
NO_SPY = "py-spy is not installed (pip install py-spy)"


lent_spy: Path | None = None  # far away it may come with our agent


def find_spy() -> str | None:
    if lent_spy is not None and os.access(lent_spy, os.X_OK):
        return str(lent_spy)
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def dump_stacks(pid: int, *, native: bool) -> StackDump | Missing:
    """`native` stops the process for a moment; without it nothing is stopped and a frame may be torn."""
    stat = procfs.read_stat(pid)
    if stat is None or stat.is_dead:
        return Missing(what=_WHAT, why=f"process {pid} is gone")
    if native and stat.state in "DT":  # stopping a process stuck in the kernel can make it unkillable
        return Missing(what=_WHAT, why=f"process {pid} is in state {stat.state}: not safe to stop it")
    if native and (state := _stuck_state(pid)):
        pointers = read_pointers(pid)  # stops no thread but those that run, each by itself
        why = f"a thread of process {pid} is in state {state}: not safe to stop it"
        return Missing(what=_WHAT, why=why) if isinstance(pointers, Missing) else pointers
    spy = find_spy()
    if spy is None:
        return Missing(what=_WHAT, why=NO_SPY)
    argv = [spy, "dump", "--json", "--pid", str(pid), "--native" if native else "--nonblocking"]
    try:
        for _ in range(_TRIES):
            done = execute(argv, env={}, cwd=Path("/"), stdin="", deadline_s=_DEADLINE_S)
            failed = native and (done.timed_out or _NOT_UNWOUND in done.stderr)
            if done.seconds > 1.0 or not failed:
                break
    except OSError as problem:
        return Missing(what=_WHAT, why=f"{spy} cannot be run: {problem.strerror}")
    if failed:
        return read_pointers(pid)
    if done.timed_out or done.code != 0:
        return Missing(what=_WHAT, why=_why_not(done))
    try:
        return parse_dump(pid, done.stdout)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Missing(what=_WHAT, why="py-spy answered in a form we do not know")


def _stuck_state(pid: int) -> str:
    """Of a thread that cannot stop before it wakes, or "". All others would be held until py-spy is given up;
    one before 0.4 leaves the order to stop behind, and the whole process obeys it one day.
    """
    first = _stuck_threads(pid)
    if not first:
        return ""
    time.sleep(_STUCK_S)
    still = first & _stuck_threads(pid)
    return min(state for _, state in still) if still else ""


def _stuck_threads(pid: int) -> set[tuple[int, str]]:
    return {(task, state) for task, state in procfs.thread_states(pid).items() if state in "DT"}


def parse_dump(pid: int, text: str) -> StackDump:
    redactor = Redactor()

    def clean(value: Any) -> str:
        return redactor.redact_values(strip_controls(str(value or "")))[:300]

    return StackDump(
        pid=pid,
        threads=tuple(
            ThreadStack(
                name=clean(thread.get("thread_name")),
                active=bool(thread.get("active")),
                frames=tuple(
                    Frame(
                        function=clean(frame["name"]),
                        file=clean(frame.get("short_filename") or frame.get("filename")),
                        line=int(frame.get("line") or 0),
                    )
                    for frame in thread["frames"][:_MOST_FRAMES]
                ),
            )
            for thread in json.loads(text)
        ),
    )


def _why_not(done: Execution) -> str:
    if done.timed_out:
        return f"py-spy did not answer within {done.seconds:.0f} s"
    said = strip_controls(done.stderr or done.stdout).strip().replace("\n", " ")[:300]
    if "ermission" in said:
        return f"py-spy may not look: {said} (needs CAP_SYS_PTRACE; in a container --cap-add SYS_PTRACE)"
    return f"py-spy failed: {said}"
