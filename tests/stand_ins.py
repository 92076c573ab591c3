"""Commands that start `bad_servers/stand_in.py`, and what runs of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

STAND_IN = Path(__file__).parent / "bad_servers" / "stand_in.py"


def stand_in(name: str, port: int, *flags: str) -> tuple[str, ...]:
    """`name` is its model: no factor, so every launch of a search carries it on its command line."""
    return (sys.executable, str(STAND_IN), "--model", name, "--port", str(port), *flags)


def running(name: str) -> list[psutil.Process]:
    """Every living process of the stand-ins of this name, workers included."""
    return [process for process in psutil.process_iter() if is_stand_in(words_of(process), name)]


def is_stand_in(words: list[str], name: str) -> bool:
    return words[1:2] == [str(STAND_IN)] and name in words


def supervisors(runs: Path) -> list[psutil.Process]:
    """Of launches whose folders lie in `runs`."""
    names = {f"shakedown:{folder.name}" for folder in runs.iterdir()} if runs.is_dir() else set()
    return [process for process in psutil.process_iter() if words_of(process)[-1:] in [[n] for n in names]]


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def eventually(condition: Callable[[], object], *, within_s: float) -> bool:
    """The last look begins after the time is up: on a starved machine a single one took 3.8 s."""
    until = time.monotonic() + within_s
    while True:
        late = time.monotonic() > until
        if condition():
            return True
        if late:
            return False
        time.sleep(0.02)


def begin(folder: Path, *words: str, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """`shakedown …` in the background; its Ctrl-C works as in a terminal."""
    argv = [sys.executable, "-m", "shakedown", *words]
    return subprocess.Popen(
        argv,
        env=dict(env),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
