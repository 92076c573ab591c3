"""Breaks one rank of a running engine at a chosen place: it stops, stays away, or fills its GPU for ever.

STRIKE holds {"at": PLACE, "deed": DEED, "rank": N, "folder": FOLDER} as JSON. "decode" is the third forward
pass since FOLDER/strike is there; FOLDER/struck.json says who was struck, and when.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

# Per place: the modules whose class ("" for none) and function are wrapped, once they are imported.
PLACES = {
    "join": {"torch.distributed.distributed_c10d": ("", "init_process_group")},
    "capture": {"torch.cuda.graphs": ("CUDAGraph", "capture_begin")},
    "decode": {
        "sglang.srt.model_executor.model_runner": ("ModelRunner", "forward"),
        "vllm.v1.worker.gpu_worker": ("Worker", "execute_model"),
    },
}
PASSES = 3  # the first passes of a request read the prompt


def plant(told: str) -> None:
    sys.meta_path.insert(0, Wrapping(json.loads(told)))


class Wrapping:
    """Finds a module as Python would, and wraps one function of it as soon as it has run."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told, self.wanted = told, dict(PLACES[told["at"]])

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        where = self.wanted.pop(name, None)
        if where is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run_module = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run_module(module)
            holder = getattr(module, where[0]) if where[0] else module
            setattr(holder, where[1], wrapped(getattr(holder, where[1]), self.told))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def wrapped(function: Callable[..., Any], told: dict[str, Any]) -> Callable[..., Any]:
    """With the deed after a group was joined, and before anything else; once in each process."""
    passes = 0

    @functools.wraps(function)
    def struck(*given: Any, **named: Any) -> Any:
        nonlocal passes
        joining = told["at"] == "join"
        result = function(*given, **named) if joining else None
        is_due = told["at"] != "decode" or Path(told["folder"], "strike").exists()
        passes += is_due
        if is_due and passes == (PASSES if told["at"] == "decode" else 1) and rank() == told["rank"]:
            strike(told)
        return result if joining else function(*given, **named)

    return struck


def rank() -> int:
    import torch

    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def strike(told: dict[str, Any]) -> None:
    fact = {"pid": os.getpid(), "at_s": time.monotonic()}
    if told["deed"] == "endless":
        import endless_kernel

        endless_kernel.launch()
        fact["at_s"] = time.monotonic()
    Path(told["folder"], "struck.json").write_text(json.dumps(fact))
    if told["deed"] == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if told["deed"] == "absent":
        stay_away()


def stay_away() -> None:
    while True:
        time.sleep(60)
