"""What a server counts of its speculation since it started, read from /metrics.

It never judges, and takes an absent counter for what it is: None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shakedown.probe.client import Target, send

METRICS = "/metrics"
METRICS_S = 5.0
_LINE = re.compile(
    r"^vllm:spec_decode_num_(drafts|accepted_tokens|accepted_tokens_per_pos)_total"
    r"(?:\{([^}\n]*)\})? (\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?=\s|$)",
    re.M,
)
_POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationCounters:
    """Sums over all requests: rounds, accepted drafts, and those of each position (0 the first)."""

    rounds: float
    accepted: float
    per_position: tuple[float, ...]


def read_counters(target: Target) -> SpeculationCounters | str | None:
    """None where the server has metrics but counts no speculation; a text where it has no metrics.

    vLLM counts rounds; SGLang's gauges are means over a batch, of which no sum can be made.
    """
    answer = send(target, METRICS, deadline_s=METRICS_S)
    text = answer.body.decode(errors="replace")
    if not answer.ok or not re.search(r"^[a-z_]+:[a-z_]+", text, re.M):
        return f"{METRICS} tells nothing ({answer.status or answer.failure})"
    return parse_counters(text)


def parse_counters(text: str) -> SpeculationCounters | None:
    """Summed over the engines of one server (data parallelism labels each line with its own)."""
    sums = {"drafts": 0.0, "accepted_tokens": 0.0}
    positions: dict[int, float] = {}
    seen = False
    for name, labels, value in _LINE.findall(text):
        seen = True
        if name in sums:
            sums[name] += float(value)
        elif (found := _POSITION.search(labels)) is not None:
            position = int(found[1])
            positions[position] = positions.get(position, 0.0) + float(value)
    if not seen:
        return None
    deepest = max(positions, default=-1) + 1
    return SpeculationCounters(
        rounds=sums["drafts"],
        accepted=sums["accepted_tokens"],
        per_position=tuple(positions.get(position, 0.0) for position in range(deepest)),
    )
