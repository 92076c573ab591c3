"""The ladder that captured states are held against: every state of the reference on some rows of a document.

It compares numbers only; who computed them is not its business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

BLOCK = 8  # rows are picked in runs, so that a shift by a few tokens can be seen
ROWS = 128  # of a document
SINK = 8.0  # a token whose state is this many times as long as the median one's draws attention, not meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """A document's reference states on R rows; N layers, width H.

    `rungs` [N + 2, R, H] float32: the input of each layer, what the last layer gives, and that after the
    final norm. `noise` [N + 2, R]: how far the same in bfloat16 is from it, relative. `branches`: for some
    rungs k, [R, H], what layer k - 1 added to them last. `norm_weight` [H]: the final norm's.
    """

    rows: torch.Tensor
    rungs: torch.Tensor
    noise: torch.Tensor
    branches: Mapping[int, torch.Tensor]
    norm_weight: torch.Tensor
    norm_eps: float

    @property
    def layers(self) -> int:
        return len(self.rungs) - 2

    @property
    def final(self) -> int:
        """The rung after the final norm: what the last state must be."""
        return len(self.rungs) - 1

    def normed(self) -> torch.Tensor:
        """Every rung but the last through the final norm, [N + 1, R, H]."""
        raw = self.rungs[:-1]
        scale = torch.rsqrt(raw.pow(2).mean(-1, keepdim=True) + self.norm_eps)
        return raw * scale * self.norm_weight


def distance(found: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """|found - reference| / |reference| for each row, [..., R]. `found` is one rung [R, H], or as many."""
    if reference.dim() > 2:  # rung by rung: what lies between stays in the processor's cache
        many = found if found.dim() == reference.dim() else [found] * len(reference)
        return torch.stack([distance(x, rung) for x, rung in zip(many, reference, strict=True)])
    size = torch.linalg.vector_norm(reference, dim=-1).clamp_min(1e-30)
    relative: torch.Tensor = torch.linalg.vector_norm(found - reference, dim=-1) / size
    return relative


def kept_rows(ladder: Ladder) -> torch.Tensor:
    """bool [R]: without attention sinks. The first token and its like are so long in every layer that
    neighbouring layers seem equal there."""
    sizes = torch.linalg.vector_norm(ladder.rungs[1:-1], dim=-1)  # [N, R]
    usual = sizes.median(dim=1, keepdim=True).values
    kept: torch.Tensor = (ladder.rows > 0) & (sizes <= SINK * usual).all(dim=0)
    return kept


def pick_rows(length: int) -> torch.Tensor:
    """int64: all rows of a short document, else runs of neighbours spread from its beginning to its end."""
    if length <= ROWS:
        return torch.arange(length)
    runs = ROWS // BLOCK
    starts = torch.linspace(0, length - BLOCK, runs).long()
    picked = torch.zeros(length, dtype=torch.bool)
    picked[starts[:, None] + torch.arange(BLOCK)] = True
    return picked.nonzero().flatten()
