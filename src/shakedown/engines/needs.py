"""What a launch will need of its machine, as its own flags say: ranks, memory, ports, a drafter.

It opens nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any

from shakedown.core import Command

MEMORY_FLAGS = ("--gpu-memory-utilization", "--mem-fraction-static")
VLLM_SPECULATION = ("--speculative-config", "--spec-config")
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
    """`memory_fraction`: of each GPU, 0.0 where the launch does not say."""

    ranks: int
    memory_fraction: float
    ports: tuple[tuple[str, int], ...]
    speculation: Speculation | None


def needs_of(command: Command, port: int | None) -> Needs:
    layout = command.engine.layout
    sizes = (
        [_number(command.value(flag)) for flag in (*layout.splits, layout.replicas) if flag] if layout else []
    )
    fraction = command.value(*MEMORY_FLAGS) or ""
    return Needs(
        ranks=int(prod(size or 1 for size in sizes)),
        memory_fraction=float(fraction) if _is_fraction(fraction) else 0.0,
        ports=_ports(command, port),
        speculation=speculation_of(command),
    )


def speculation_of(command: Command) -> Speculation | None:
    """None where the launch does not speculate, or says it in a way that its engine would refuse."""
    if command.engine.name == "sglang":
        method = command.value("--speculative-algorithm")
        drafter = command.value("--speculative-draft-model-path") or ""
        steps = _number(command.value("--speculative-num-steps"))
        return Speculation(method=method, drafter=drafter, tokens=steps) if method else None
    told = _object(command.value(*VLLM_SPECULATION))
    if not told:
        return None
    tokens = told.get("num_speculative_tokens")
    return Speculation(
        method=str(told.get("method") or ""),
        drafter=str(told.get("model") or ""),
        tokens=tokens if isinstance(tokens, int) else None,
    )


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
