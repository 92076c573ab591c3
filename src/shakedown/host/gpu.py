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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shakedown.core import GpuUse, Missing
from shakedown.host import procfs

_WHAT = "gpu"
_START_S = 10.0  # nvmlInit of eight GPUs without persistence takes seconds
_ANSWER_S = 3.0
_NO_DRIVER = "no NVIDIA driver"

_READER = """
import json, sys, time
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
for _ in sys.stdin:
    used, busy = {}, {}
    for device in devices:
        for kind in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            try:
                for it in kind(device):
                    used[it.pid] = used.get(it.pid, 0) + (it.usedGpuMemory or 0)
            except nvml.NVMLError:
                continue
        try:
            since = int((time.time() - 2) * 1e6)
            for it in nvml.nvmlDeviceGetProcessUtilization(device, since):
                busy[it.pid] = max(busy.get(it.pid, 0), it.smUtil)
        except nvml.NVMLError:
            continue
    print(json.dumps({"used": list(used.items()), "busy": list(busy.items())}), flush=True)
"""


class GpuReader:
    """One child for all readings; a hung one is left behind and a new one tried once a minute."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._missing: Missing | None = None
        self._retry_s = 0.0

    def read(self, pids: Sequence[int]) -> tuple[GpuUse, ...] | Missing:
        if self._missing and time.monotonic() < self._retry_s:
            return self._missing
        if not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/nvidiactl").exists():
            return self._give_up(_NO_DRIVER)
        answer = self._ask()
        if isinstance(answer, Missing):
            return answer
        used, busy = dict(answer["used"]), dict(answer["busy"])
        if used and not any(procfs.read_stat(pid) for pid in used):
            why = "the driver names processes by the host's numbers, which this container does not know"
            return Missing(what=_WHAT, why=why)
        return tuple(
            GpuUse(pid=pid, used_bytes=used[pid], utilisation_percent=busy.get(pid))
            for pid in pids
            if pid in used
        )

    def _ask(self) -> dict[str, Any] | Missing:
        if self._child is None:
            self._child = child = subprocess.Popen(
                [sys.executable, "-c", _READER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH") if key in os.environ},
            )
            self._let_go = weakref.finalize(self, _let_go, child)
            hello = self._receive(_START_S)
            if hello is None or "why" in hello:
                return self._give_up(hello["why"] if hello else "the driver does not answer")
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
        self._retry_s = time.monotonic() + (3600.0 if _NO_DRIVER in why else 60.0)
        return self._missing


def _let_go(child: subprocess.Popen[bytes]) -> None:
    """Kill it, and leave it behind if the driver holds it."""
    child.kill()
    for stream in (child.stdin, child.stdout):
        assert stream
        with contextlib.suppress(BrokenPipeError):
            stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=0.5)
