"""What the benchmark itself sees of a struck server, so that a miss can be understood from its row alone."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shakedown.core import Missing, StackDump
from shakedown.host.stacks import dump_stacks
from shakedown.watch.stacks import show

FRAMES, THREADS = 14, 8  # kept of each
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
RAS_S, RAS_CHARS = 15.0, 6000


def observe(pids: Iterable[int], *, native: bool) -> dict[str, Any]:
    """Every process with its busiest threads; `native` stops each for a moment."""
    seen = [_process(pid, native=native) for pid in pids]
    return {"processes": [each for each in seen if each], "gpus": gpus()}


def _process(pid: int, *, native: bool) -> dict[str, Any] | None:
    threads = sorted(_threads(pid), key=lambda it: -it["cpu_s"])
    if not threads:
        return None
    facts = {"pid": pid, "title": title_of(pid)[:80], "threads": threads[:THREADS]}
    return facts | {"stacks": _stacks(dump_stacks(pid, native=native and _runs_python(pid)))}


def _runs_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    return False


def _stacks(dump: StackDump | Missing) -> Any:
    """Of the threads that run, and of the main one; or why there are none."""
    if isinstance(dump, Missing):
        return dump.why
    told = [it for it in dump.threads if it.active or it.name in ("MainThread", "")]
    return {
        f"{it.name or 'unnamed'}{' (runs)' if it.active else ''}": [show(each) for each in it.frames[:FRAMES]]
        for it in told[:THREADS]
    }


def _threads(pid: int) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
                wchan = (task / "wchan").read_text()
                yield {
                    "tid": int(task.name),
                    "name": name,
                    "state": fields[0],
                    "cpu_s": cpu_s,
                    "wchan": wchan,
                }


def title_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    return ""


def gpus() -> list[str]:
    """Index, kernels, memory traffic, power and memory used of each GPU, as the driver's tool prints them."""
    wanted = "index,utilization.gpu,utilization.memory,power.draw,memory.used"
    words = ["nvidia-smi", f"--query-gpu={wanted}", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
        return done.stdout.splitlines()
    return []


def listeners(port: int, pids: Iterable[int]) -> list[str]:
    """Which of these processes listen on a port: all of one user's may, with SO_REUSEPORT."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for fields in map(str.split, Path(table).read_text().splitlines()[1:]):
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    return [f"{pid} {title_of(pid)[:40]}" for pid in pids if inodes & set(_links(pid))]


def _links(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(entry.path)


def ask_ras(port: int) -> str:
    """NCCL's own report in full, or what became of the question."""
    said = b""
    try:
        with socket.create_connection(("localhost", port), timeout=RAS_S) as line:
            line.sendall(b"verbose status\n")
            while piece := line.recv(65536):
                said += piece
                line.settimeout(3.0)
    except OSError as problem:
        said += f"\n[{problem}]".encode()
    return said.decode(errors="replace")[:RAS_CHARS]
