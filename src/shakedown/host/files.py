"""Questions to the files of a machine that a launch depends on, and the few that we put there ourselves.

It never changes a file of the user's.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shakedown.core import BOOT_FACT, DRIVER_FACT
from shakedown.errors import HostProblem
from shakedown.host import procfs

NVIDIA = Path("/proc/driver/nvidia/version")
MOST_BYTES = 16 << 20  # of a file that is read whole: a config, an index of weights


def read_text(path: Path) -> str | None:
    """None for what is no file of bounded size that can be read as text."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def is_file(path: Path) -> bool:
    """False also in a folder that may not be entered, and for a name too long to be one."""
    return _seen(path.is_file)


def is_dir(path: Path) -> bool:
    return _seen(path.is_dir)


def exists(path: Path) -> bool:
    return _seen(path.exists)


def _seen(look: Callable[[], bool]) -> bool:
    try:
        return look()
    except OSError:
        return False


def size_of(folder: Path, pattern: str) -> int:
    """Bytes of the files in a folder that match, 0 where none can be seen."""
    try:
        return sum(file.stat().st_size for file in folder.glob(pattern) if file.is_file())
    except OSError:
        return 0


def is_program(program: str, path: str, cwd: Path) -> bool:
    """Whether the shell would find something to start."""
    return shutil.which(str(cwd / program) if "/" in program else program, path=path) is not None


def read_head(program: str, path: str, cwd: Path, most_bytes: int) -> bytes | None:
    """The first bytes of a program found as the shell would find it."""
    place = str(cwd / program) if "/" in program else shutil.which(program, path=path)
    if place is None:
        return None
    try:
        with open(place, "rb") as file:
            return file.read(most_bytes)
    except OSError:
        return None


def holds_any(folder: Path, but: Sequence[str], most: int) -> bool:
    """Whether one of the first `most` entries below is a file with something in it; links are none.

    `but`: how the names of those end that do not count.
    """
    seen = 0
    for place, _, names in os.walk(folder):
        for name in names:
            seen += 1
            if seen > most:
                return False
            try:
                if not name.endswith(tuple(but)) and (Path(place) / name).lstat().st_size > 0:
                    return True
            except OSError:
                continue
    return False


def write_text(path: Path, text: str) -> None:
    """In a folder of ours, which is made. Raises HostProblem."""
    with _written(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")  # a name may be no text


def copy_with(folder: Path, copy: Path, name: str, text: str) -> None:
    """`copy` becomes a folder like `folder` by links, in which one file has another text.

    Raises HostProblem.
    """
    with _written(copy):
        copy.mkdir(mode=0o700, parents=True, exist_ok=True)
        for entry in folder.iterdir():
            link = copy / entry.name
            if entry.name != name and not link.is_symlink():
                link.symlink_to(entry.resolve())
        (copy / name).write_text(text, encoding="utf-8")


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise HostProblem(
            f"{path} cannot be written: {problem.strerror}", "make room, or make its folder writable"
        ) from None


def clear(folder: Path) -> None:
    """Removes a folder of ours with all that is in it; what cannot be removed stays."""
    shutil.rmtree(folder, ignore_errors=True)


def standing() -> dict[str, str]:
    """What a reboot or another driver changes: nothing that was seen before counts after it."""
    told = re.search(r"\b\d{3}(\.\d+)+\b", read_text(NVIDIA) or "")
    return {BOOT_FACT: procfs.boot_id(), **({DRIVER_FACT: told[0]} if told else {})}


def now_s() -> float:
    """The clock that the runs of this machine are dated by."""
    return time.monotonic()
