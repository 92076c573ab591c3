"""The launches that `gpu_check.py` looks at: of each engine its command, its variables, its GPUs.

It starts nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fault_rows import filled
from gpu_isolate import NOT_OURS, gpu_count
from gpu_isolate_rows import EAGLE3, ON_CPU, ON_GPU, TRITON, VARIABLES, VLLM_ON_GPU

FIRST_PORT, PORTS_EACH = 10200, 950
# Of the cache: it would fill what is shown of the GPU, whatever neighbours hold of the rest.
FEW_TOKENS = ("--max-total-tokens", "16384")
LARGE_GIB = 64  # shown to a server of the large model: 52 of weights, 6 of cache, and what SGLang keeps free


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One launch to look at: its words, its variables, the folder of its host's preparation."""

    name: str
    engine: str
    command: tuple[str, ...]
    number: int
    gpus: str
    host: str
    model: Path
    lane: str = ""  # what has the same one runs one after the other

    @property
    def kind(self) -> str:
        return self.name.split("-")[0]

    def words(self, given: argparse.Namespace, more: str = "") -> tuple[str, ...]:
        python = given.vllm if self.engine == "vllm" else given.sglang
        names = {"python": str(python), "model": str(self.model), "head": str(given.head)}
        names["port"] = str(FIRST_PORT + PORTS_EACH * self.number)
        path = f"PYTHONPATH={self.host}{os.pathsep + more if more else ''}"
        return ("env", path, *(filled(word, names) for word in self.command))

    def env(self, given: argparse.Namespace, work: Path) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
        python = given.vllm if self.engine == "vllm" else given.sglang
        env |= {"HF_HUB_OFFLINE": "1", "PATH": f"{python.parent}:{os.environ['PATH']}"}
        env |= {} if given.cpu else {"CUDA_VISIBLE_DEVICES": self.gpus}
        kind = "sglang on the CPU" if given.cpu else self.engine
        return env | {name: filled(value, {"caches": str(work)}) for name, value in VARIABLES[kind].items()}


def tasks_of(given: argparse.Namespace, work: Path) -> list[Task]:
    """Every launch to look at; what lies in `work` is made by whoever starts them."""
    usual = {"host": str(work / "host"), "model": given.model}
    if given.cpu:
        few = ("ladder-sglang", "check-sglang", "cost-small", "cost-small-stand-in")
        told = {"engine": "sglang", "command": ON_CPU, "gpus": "", **usual}
        return [Task(name=name, number=number, **told) for number, name in enumerate(few)]
    count = max(1, min(2, gpu_count()))
    last = str(count - 1)
    both = ",".join(map(str, range(count)))
    sglang, vllm = (*ON_GPU, *TRITON, *EAGLE3), VLLM_ON_GPU
    small, plain = (*sglang, *FEW_TOKENS), (*ON_GPU, *TRITON, *FEW_TOKENS)
    large = {"host": str(work / "host-large"), "model": work / "large"}
    ranks = {"sglang": ("--tp-size", str(count)), "vllm": ("--tensor-parallel-size", str(count))}
    launches = (
        ("check-sglang", "sglang", sglang, "0", usual),
        ("check-vllm", "vllm", vllm, "0", usual),
        # Without a backend of its own: safe mode names one, and that is what the rung tries.
        ("ladder-sglang", "sglang", (*ON_GPU, *EAGLE3, *ranks["sglang"]), both, usual),
        ("ladder-vllm", "vllm", (*vllm, *ranks["vllm"]), both, usual),
        ("cost-small", "sglang", small, "0", usual),
        ("cost-small-stand-in", "sglang", small, last, usual),
        ("cost-large", "sglang", plain, "0", {**large, "lane": "large on GPU 0"}),
        ("cost-large-stand-in", "sglang", plain, last, {**large, "lane": f"large on GPU {last}"}),
    )
    here = {"sglang": given.sglang.exists(), "vllm": given.vllm.exists()}
    return [
        Task(name=name, engine=engine, command=command, number=number, gpus=gpus, **told)
        for number, (name, engine, command, gpus, told) in enumerate(launches)
        if here[engine]
    ]


def lanes_of(tasks: Sequence[Task]) -> list[list[Task]]:
    """What may run at once, each of them in its order."""
    lanes: dict[str, list[Task]] = {}
    for task in tasks:
        lanes.setdefault(task.lane or task.name, []).append(task)
    return list(lanes.values())
