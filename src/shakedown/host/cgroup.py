"""A cgroup-v2 directory of our own for one run, where the machine lets us make one.

It never touches a group it did not make, and never enables a controller.
"""

from __future__ import annotations

import os
from pathlib import Path


def make(name: str) -> Path | None:
    """Make a child of our own group, or None: no v2 hierarchy, not writable, or a kernel before 5.14."""
    parent = _own_group()
    if parent is None:
        return None
    group = parent / name
    try:
        group.mkdir(mode=0o755)
    except OSError:
        return None
    if os.access(group / "cgroup.kill", os.W_OK) and os.access(group / "cgroup.procs", os.W_OK):
        return group
    remove(group)
    return None


def join(group: Path) -> bool:
    """Move the calling process in. Done between fork and exec, so that every child is born inside."""
    return _write(group / "cgroup.procs", b"0")


def pids_in(group: Path) -> set[int] | None:
    """The processes in the group and below, or None where it is gone."""
    found: set[int] = set()
    try:
        with os.scandir(group) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        with open(group / "cgroup.procs", "rb") as procs:
            found.update(map(int, procs.read().split()))
    except OSError:
        return None
    for path in below:
        found |= pids_in(Path(path)) or set()
    return found - {0}  # 0: a process outside our pid namespace


def kill(group: Path) -> bool:
    """Kill everything in the group at once, safe against forks."""
    return _write(group / "cgroup.kill", b"1")


def remove(group: Path) -> None:
    """Remove the empty group; one that still holds a process stays."""
    for directory, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            continue  # the server tidies its own groups
        except OSError:
            return


def _own_group() -> Path | None:
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        memberships = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in memberships if line.startswith("0::")), None)
    for line in mounts:
        before, _, after = line.partition(" - ")
        if own is not None and after.startswith("cgroup2 "):
            root, point = before.split()[3:5]
            inside = os.path.relpath(own, root) if own.startswith(root) else "."
            return Path(point, inside)
    return None


def _write(path: Path, value: bytes) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(handle, value)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
