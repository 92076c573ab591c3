"""Which scripts there are, and how long each may take.

It reads the text of a script and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from shakedown.core import NETWORK_FILE_SYSTEMS

PARAMETERS = "SHAKEDOWN_RUNG"  # the variable that carries a script's parameters, as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """`asks`: what it looks at, for people. `gpu`: worth running only where a launch uses one."""

    name: str
    asks: str
    deadline_s: float
    gpu: bool = False


CHECKS = (
    Script(name="machine", asks="shared memory, limits, ports, addresses", deadline_s=10.0),
    Script(name="caches", asks="cache folders, compiler locks", deadline_s=10.0),
    Script(name="model", asks="config, shards, tokenizer", deadline_s=20.0),
    Script(name="engine", asks="architecture, states for a drafter", deadline_s=15.0),
    Script(name="gpus", asks="driver, memory, holders, peer-to-peer", deadline_s=60.0),
    Script(name="kernels", asks="code for this chip in the installed libraries", deadline_s=30.0),
    Script(name="loading", asks="whether the kernel libraries load", deadline_s=60.0, gpu=True),
)


# What is left to look at once a launch has failed, while its processes still stand.
AFTERWARDS = (
    Script(name="after_kernel", asks="the kernel's log", deadline_s=5.0),
    Script(name="after_nccl", asks="NCCL's own report, torch's flight recorder", deadline_s=30.0, gpu=True),
    Script(name="after_cuda", asks="the GPU's state", deadline_s=120.0, gpu=True),
)


PASSED = "SHAKEDOWN RUNG PASSED"  # a rung's last line begins with it


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRung:
    """A rung that is a script. `device` or `engine` "": on any; `ranks`: needs at least so many."""

    name: str
    title: str
    script: str
    device: str = ""
    engine: str = ""
    ranks: int = 1


# The simplest first: seconds each, and what fails low explains everything above it.
SCRIPT_RUNGS = (
    ScriptRung(name="torch", title="torch imports and finds the device", script="rung_torch"),
    ScriptRung(name="matmul", title="matrix products on one device are right", script="rung_matmul"),
    ScriptRung(
        name="triton", title="a Triton kernel compiles and is right", script="rung_triton", device="cuda"
    ),
    ScriptRung(
        name="graph", title="a CUDA graph is captured and replays right", script="rung_graph", device="cuda"
    ),
    ScriptRung(name="engine kernels", title="the engine's small kernels are right", script="rung_kernels"),
    ScriptRung(name="attention", title="attention on tiny tensors is right", script="rung_attention"),
    ScriptRung(
        name="jit",
        title="what the engine compiles at its first use is right",
        script="rung_jit",
        device="cuda",
        engine="sglang",
    ),
    ScriptRung(
        name="peers",
        title="the GPUs read each other's memory right",
        script="rung_peers",
        device="cuda",
        ranks=2,
    ),
    ScriptRung(
        name="all-reduce", title="an all-reduce over the ranks is right", script="rung_all_reduce", ranks=2
    ),
)


def script_rungs(device: str, ranks: int, engine: str) -> tuple[ScriptRung, ...]:
    """The rungs that a launch of this engine on this device with so many ranks stands on."""
    return tuple(
        it
        for it in SCRIPT_RUNGS
        if it.device in ("", device) and it.engine in ("", engine) and ranks >= it.ranks
    )


def script_text(name: str) -> str:
    """The whole program: the prelude that every script begins with, then the script."""
    folder = resources.files("shakedown.rungs") / "scripts"
    return (folder / "prelude.py").read_text() + (folder / f"{name}.py").read_text()


def parameters(given: Mapping[str, Any]) -> dict[str, str]:
    """The variable that tells a script what it cannot know: nothing of Shakedown is on its path."""
    return {PARAMETERS: json.dumps({"networks": NETWORK_FILE_SYSTEMS, **given})}
