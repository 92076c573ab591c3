"""What a launch will need of its machine, as its own flags say: ranks, memory, ports, a drafter.

It opens nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from shakedown.core import Command

MEMORY_FLAGS = ("--gpu-memory-utilization", "--mem-fraction-static")
SMALLER_WEIGHTS = (  # than on disk: quantised while they load, kept in host memory, or of fewer layers
    *("--quantization", "--torchao-config", "--cpu-offload-gb", "--offload-group-size"),
    *("--hf-overrides", "--json-model-override-args"),
)
PLACED_BY = ("--distributed-executor-backend", "--data-parallel-backend")
VLLM_SPECULATION = frozenset({"--speculative-config", "--spec-config", "-sc"})
VLLM_SHORT = (  # of 0.32, beside the object or instead of it
    ("--spec-method", "method"),
    ("--spec-model", "model"),
    ("--spec-tokens", "num_speculative_tokens"),
)
SGLANG_ABOVE = 10_000  # SGLang 0.5.14 listens so many ports above its own: over 55535 it dies at start


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How a launch speculates. `drafter`: the folder or name of the drafter, "" where there is none."""

    method: str
    drafter: str = ""
    tokens: int | None = None

    @property
    def eagle3(self) -> bool:
        return self.method.lower().replace("-", "") == "eagle3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """`memory_fraction`: of each GPU, 0.0 where the launch does not say. `ranks_here`: on this machine, 0
    where that is not known; they begin at `first_gpu`, `gpu_step` apart. `weights_as_stored`: no flag says
    that they take less memory than they do on disk."""

    ranks: int
    ranks_here: int
    tensor_ranks: int
    first_gpu: int
    gpu_step: int
    memory_fraction: float
    weights_as_stored: bool
    ports: tuple[tuple[str, int], ...]
    speculation: Speculation | None


def needs_of(command: Command, port: int | None) -> Needs:
    layout = command.engine.layout
    splits = [_number(command.value(flag)) or 1 for flag in layout.splits] if layout else [1]
    replicas = (_number(command.value(layout.replicas)) if layout and layout.replicas else None) or 1
    fraction = command.value(*MEMORY_FLAGS) or ""
    return Needs(
        ranks=prod(splits) * replicas,
        ranks_here=_ranks_here(command, prod(splits), replicas),
        tensor_ranks=splits[-1],
        first_gpu=_number(command.value("--base-gpu-id")) or 0,
        gpu_step=_number(command.value("--gpu-id-step")) or 1,
        memory_fraction=float(fraction) if _is_fraction(fraction) else 0.0,
        weights_as_stored=command.value(*SMALLER_WEIGHTS) is None,
        ports=_ports(command, port),
        speculation=speculation_of(command),
    )


def _ranks_here(command: Command, ranks: int, replicas: int) -> int:
    """0 where Ray places them. `ranks`: of one replica."""
    if command.value("--use-ray") is not None or "ray" in map(command.value, PLACED_BY):
        return 0
    if command.value("--data-parallel-rank") is not None:  # this process is one of the replicas
        return ranks
    local = _number(command.value("--data-parallel-size-local"))
    nodes = _number(command.value(command.engine.layout.nodes)) if command.engine.layout else 1
    return ranks * local if local else max(1, ranks * replicas // (nodes or 1))


def speculation_of(command: Command) -> Speculation | None:
    """None where the launch does not speculate, or says it in a way that its engine would refuse."""
    if command.engine.name == "sglang":
        method = command.value("--speculative-algorithm")
        drafter = command.value("--speculative-draft-model-path") or ""
        steps = _number(command.value("--speculative-num-steps"))
        return Speculation(method=method, drafter=drafter, tokens=steps) if method else None
    told = vllm_speculation(command)
    if not told:
        return None
    tokens = told.get("num_speculative_tokens")
    return Speculation(
        method=str(told.get("method") or ""),
        drafter=str(told.get("model") or ""),
        tokens=tokens if isinstance(tokens, int) else None,
    )


def vllm_speculation(command: Command) -> dict[str, Any]:
    """The object that vLLM speculates by, {} where there is none: of JSON, dotted flags and short ones.

    As its parser does: dotted flags become one object, which comes after JSON and replaces it.
    """
    told: dict[str, Any] = {}
    dotted: dict[str, Any] = {}
    for use in command.uses:
        if use.name not in VLLM_SPECULATION or not use.values:
            continue
        _, dot, path = use.spelled.partition(".")
        if dot:
            _set(dotted, path.split("."), _scalar(use.values[-1]))
        else:
            told = _object(use.values[-1])
    told = {key.replace("-", "_"): value for key, value in (dotted or told).items()}
    short = {key: command.value(flag) for flag, key in VLLM_SHORT}
    return told | {key: _number(text) or text for key, text in short.items() if text}


def _set(found: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        below = found.setdefault(key, {})
        if not isinstance(below, dict):  # a value and an object under one key: vLLM lets the later one win
            below = found[key] = {}
        found = below
    found[path[-1]] = value


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _ports(command: Command, port: int | None) -> tuple[tuple[str, int], ...]:
    if port is None:
        return ()
    own = ("the server's port", port)
    if command.engine.name != "sglang":
        return (own,)
    return (own, ("which SGLang adds to its own", port + SGLANG_ABOVE))


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _is_fraction(text: str) -> bool:
    try:
        return 0.0 < float(text) <= 1.0
    except ValueError:
        return False


def _object(text: str | None) -> dict[str, Any]:
    try:
        told = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}
