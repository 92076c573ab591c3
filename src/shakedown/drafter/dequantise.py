"""A quantised weight as plain numbers again.

It never quantises, and refuses what it does not know exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shakedown.errors import UsageError

BLOCK = 128  # rows and columns that share a scale in DeepSeek-V3's FP8


def dequantise(parts: Mapping[str, torch.Tensor], module: str, dtype: torch.dtype) -> torch.Tensor:
    """The weight [out, in] of a module from its tensors, named as in the checkpoint.

    Packed integers (compressed-tensors, `pack-quantized`, symmetric) or FP8 with a scale a block
    (DeepSeek-V3). Raises UsageError naming the module for any other form.
    """
    match sorted(parts):
        case ["weight"] if parts["weight"].dtype in (torch.bfloat16, torch.float16, torch.float32):
            return parts["weight"].to(dtype)
        case ["weight_packed", "weight_scale", "weight_shape"]:
            return unpacked(parts["weight_packed"], parts["weight_scale"], parts["weight_shape"]).to(dtype)
        case ["weight", "weight_scale_inv"] if in_blocks(parts["weight"], parts["weight_scale_inv"]):
            return rescaled(parts["weight"], parts["weight_scale_inv"]).to(dtype)
    forms = ", ".join(f"{name} {str(tensor.dtype)[6:]}" for name, tensor in sorted(parts.items()))
    raise UsageError(
        f"{module} is quantised in an unknown form: {forms or 'no weight at all'}",
        "known are compressed-tensors' packed symmetric integers and FP8 with a scale a block",
    )


def unpacked(packed: torch.Tensor, scale: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    """float32 [out, in] of int32 words [out, in / (32/bits)]; `scale` [out, in / group].

    The first number lies in the lowest bits of a word; each is stored with 2^(bits-1) added.
    """
    rows, columns = shape.tolist()
    a_word = -(-columns // packed.shape[1])
    bits = 32 // a_word
    shifts = torch.arange(a_word, dtype=torch.int32, device=packed.device) * bits
    numbers = (packed[:, :, None] >> shifts) & (2**bits - 1)
    whole = (numbers - 2 ** (bits - 1)).flatten(1)[:, :columns].float()
    groups: torch.Tensor = whole.view(rows, scale.shape[1], -1) * scale.float()[:, :, None]
    return groups.view(rows, columns)


def in_blocks(weight: torch.Tensor, scale: torch.Tensor) -> bool:
    return tuple(scale.shape) == tuple(-(-size // BLOCK) for size in weight.shape)


def rescaled(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 [out, in] of an FP8 weight with one factor for every block of 128 x 128."""
    rows, columns = weight.shape
    factors = scale.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    plain: torch.Tensor = weight.float() * factors
    return plain
