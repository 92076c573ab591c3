"""Ask the NVIDIA driver what our processes hold, from a child that may hang in our place.

It never changes a setting of a GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import shakedown
from shakedown.core import GpuUse, Missing
from shakedown.host import procfs

_WHAT = "gpu"
_START_S = 10.0  # nvmlInit of eight GPUs without persistence takes seconds
_ANSWER_S = 3.0
_POLL_S = 0.05
_DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl")
NO_DRIVER = "no NVIDIA driver"

_READER = """
import json, sys, time
sys.path.append(sys.argv[1])  # far away the library comes with our agent
try:
    import pynvml as nvml
    nvml.nvmlInit()
    devices = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
except ImportError:
    print(json.dumps({"why": "nvidia-ml-py is not installed"}), flush=True)
    sys.exit()
except nvml.NVMLError as problem:
    print(json.dumps({"why": f"no NVIDIA driver: {problem}"}), flush=True)
    sys.exit()
print("{}", flush=True)
# An old driver lacks a function of a newer binding, which says so by an error of another kind.
UNTOLD = (nvml.NVMLError, getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError))

def told(read, device, *more):
    try:
        return read(device, *more)
    except UNTOLD:
        return None

def state(device):
    rates = told(nvml.nvmlDeviceGetUtilizationRates, device)
    power = told(nvml.nvmlDeviceGetPowerUsage, device)
    return {
        "busy_percent": rates and rates.gpu,
        "memory_percent": rates and rates.memory,
        "power_w": power and power // 1000,
        "clock_mhz": told(nvml.nvmlDeviceGetClockInfo, device, nvml.NVML_CLOCK_SM),
    }

for _ in sys.stdin:
    rows = []
    for number, device in enumerate(devices):
        used, busy = {}, {}
        for kind in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            for it in told(kind, device) or ():
                used[it.pid] = used.get(it.pid, 0) + (it.usedGpuMemory or 0)
        if not used:
            continue
        since = int((time.time() - 2) * 1e6)
        for it in told(nvml.nvmlDeviceGetProcessUtilization, device, since) or ():
            busy[it.pid] = max(busy.get(it.pid, 0), it.smUtil)
        rows.append({"gpu": number, "used": list(used.items()), "busy": list(busy.items()), **state(device)})
    print(json.dumps({"gpus": rows}), flush=True)
"""


class GpuReader:
    """One child for all readings; a hung one is left behind and a new one tried once a minute."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._missing: Missing | None = None
        self._retry_s = 0.0
        self._greeted = False
        self._held: set[int] = set()  # who was seen to hold memory

    def read(self, pids: Sequence[int]) -> tuple[GpuUse, ...] | Missing:
        if self._missing and not self._is_worth_asking():
            return self._missing
        if not has_driver():
            return self._give_up(NO_DRIVER)
        answer = self._ask()
        if isinstance(answer, Missing):
            return answer
        found = list(_uses(answer["gpus"]))
        if found and not any(procfs.read_stat(use.pid) for use in found):
            why = "the driver names processes by the host's numbers, which this container does not know"
            return Missing(what=_WHAT, why=why)
        ours = tuple(use for use in found if use.pid in set(pids))
        self._held |= {use.pid for use in ours}
        return ours

    def prepare(self) -> None:
        """Start the child if there is a driver, without waiting for it: an ending must not wait for this."""
        if self._child is None and self._is_worth_asking() and has_driver():
            self._child = self._begin()

    def wait_until_free(self, pids: Collection[int], limit_s: float) -> tuple[float, int] | None:
        """Seconds until the driver counts no memory of these dead processes, and the bytes it still does.

        None: nothing to tell, nobody was seen to hold any or the driver does not answer.
        """
        began, left, held = time.monotonic(), 0, bool(self._held & set(pids))
        while self._child is not None and not isinstance(answer := self._ask(), Missing):
            waited_s = time.monotonic() - began
            left = sum(use.used_bytes for use in _uses(answer["gpus"]) if use.pid in pids)
            held |= left > 0
            if not left:
                return (waited_s, 0) if held else None
            if waited_s >= limit_s:
                break
            time.sleep(_POLL_S)
        return (time.monotonic() - began, left) if left else None

    def _is_worth_asking(self) -> bool:
        return self._missing is None or time.monotonic() >= self._retry_s

    def _begin(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-c", _READER, str(Path(shakedown.__file__).parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in os.environ},
        )
        self._let_go, self._greeted = weakref.finalize(self, _let_go, child), False
        return child

    def _ask(self) -> dict[str, Any] | Missing:
        if self._child is None:
            self._child = self._begin()
        if not self._greeted:
            hello = self._receive(_START_S)
            if hello is None or "why" in hello:
                return self._give_up(hello["why"] if hello else "the driver does not answer")
            self._greeted = True
        assert self._child.stdin
        try:
            os.write(self._child.stdin.fileno(), b"\n")
        except BrokenPipeError:
            return self._give_up("the reader died")
        answer = self._receive(_ANSWER_S)
        return self._give_up("the driver does not answer") if answer is None else answer

    def _receive(self, deadline_s: float) -> dict[str, Any] | None:
        assert self._child
        assert self._child.stdout
        received, until = b"", time.monotonic() + deadline_s
        while not received.endswith(b"\n"):
            ready, _, _ = select.select([self._child.stdout], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self._child.stdout.fileno(), 65536) if ready else b""
            if not piece:
                return None
            received += piece
        answer: dict[str, Any] = json.loads(received)
        return answer

    def _give_up(self, why: str) -> Missing:
        if self._child:
            self._let_go()
            self._child = None
        self._missing = Missing(what=_WHAT, why=why)
        self._retry_s = time.monotonic() + (3600.0 if NO_DRIVER in why else 60.0)
        return self._missing


def has_driver() -> bool:
    return any(Path(path).exists() for path in _DRIVER)


def _uses(gpus: Sequence[dict[str, Any]]) -> Iterator[GpuUse]:
    for row in gpus:
        shares = dict(row.pop("busy"))
        for pid, used_bytes in row.pop("used"):
            yield GpuUse(pid=pid, used_bytes=used_bytes, utilisation_percent=shares.get(pid), **row)


def _let_go(child: subprocess.Popen[bytes]) -> None:
    """Kill it, and leave it behind if the driver holds it."""
    child.kill()
    for stream in (child.stdin, child.stdout):
        assert stream
        with contextlib.suppress(BrokenPipeError):
            stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=0.5)
