"""Rotary positions as the engines turn them: pairs (i, i + d/2), plain or scaled.

It never guesses a scaling: what depends on the length of a request is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shakedown.errors import DataProblem

KNOWN = ("linear", "llama3", "yarn")
PER_REQUEST = ("dynamic", "longrope")  # their angles change with the length of the request at hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """`theta` and, where positions are stretched, the dict that a model's config.json holds for it."""

    theta: float = 10_000.0
    scaling: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        scaling = self.scaling or {}
        return str(scaling.get("rope_type", scaling.get("type", "default")))


def rotary_tables(rope: Rope, head_dim: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin in fp32, [*positions, 1, head_dim / 2]: the 1 stands for the heads."""
    frequencies, factor = inverse_frequencies(rope, head_dim)
    angles = positions[..., None].float() * frequencies.to(positions.device)
    return (angles.cos() * factor)[..., None, :], (angles.sin() * factor)[..., None, :]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., heads, head_dim], turned in fp32."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def inverse_frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """[head_dim / 2] in fp32, and the factor on cos and sin (1 but for yarn)."""
    if rope.kind == "default":
        return rope.theta ** -(torch.arange(0, head_dim, 2).float() / head_dim), 1.0
    if rope.kind not in KNOWN:
        why = "changes with each request's length" if rope.kind in PER_REQUEST else "is not known"
        raise DataProblem(
            f"rope scaling {rope.kind!r} {why}", f"a drafter's own rope may be: default, {', '.join(KNOWN)}"
        )
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {**(rope.scaling or {}), "rope_type": rope.kind, "rope_theta": rope.theta}
    parameters.pop("type", None)
    original = parameters.get("original_max_position_embeddings", 2048)
    config = LlamaConfig(
        head_dim=head_dim,
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=int(original * parameters.get("factor", 1.0)),
        rope_parameters=parameters,
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope.kind](config, torch.device("cpu"))
    return frequencies.float(), float(factor)
