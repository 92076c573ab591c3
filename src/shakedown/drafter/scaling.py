"""How large each channel of the captured states is, so that `fc` can be trained as if all were of one size.

A target's residual stream has a few channels that are hundreds of times larger than the rest. Adam moves
every weight by as much, so their columns of `fc` would move the feature by more than its own size at a step.
The scales are powers of two: weights are scaled there and back without a rounding.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

ENOUGH_TOKENS = 16_384
SINK = 4.0  # times the usual size of a token's state: the sinks of attention, whose own channels are none


def channel_scales(states: Iterable[Tensor], slots: int) -> Tensor:
    """[channels], fp32, each a power of two near the channel's root mean square.

    `states`: blocks [tokens, channels], `slots` states of a token side by side; as many are read as tell.
    """
    parts: list[Tensor] = []
    for block in states:
        parts.append(block.float())
        if sum(map(len, parts)) >= ENOUGH_TOKENS:
            break
    tokens = torch.cat(parts)
    by_slot = tokens.view(len(tokens), slots, -1)  # [tokens, slots, hidden]
    sizes = by_slot.norm(dim=-1)
    usual = (sizes <= SINK * sizes.median(0).values)[..., None]
    squares = (by_slot.square() * usual).sum(0) / usual.sum(0)  # [slots, hidden]
    # A channel that is never used must not become a large one.
    least = squares.mean(1, keepdim=True) / 2**20
    found = torch.maximum(squares, least).clamp(min=torch.finfo(torch.float32).tiny).sqrt().flatten()
    return torch.exp2(found.log2().round())
