"""Which process is the one that was started, and whether anything of its group is left.

It signals nothing. Linux alone.
"""

from __future__ import annotations

import os
from pathlib import Path

STATE, GROUP, BORN = 0, 2, 19  # fields of /proc/N/stat, counted from the state: see proc_pid_stat(5)


def stat(pid: int | str) -> list[str]:
    """Fields from the state on; none where no such process lives. One that nobody waited for is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[STATE] in ("Z", "X") else fields


def born(pid: int) -> int | None:
    """In ticks since the machine's start, None for what has ended. A number is given again; not with this."""
    fields = stat(pid)
    return int(fields[BORN]) if fields else None


def group_lives(number: int) -> bool:
    groups = (stat(entry)[GROUP : GROUP + 1] for entry in os.listdir("/proc") if entry.isdigit())
    return any(group == [str(number)] for group in groups)
