"""Triton kernels over rows of logits: what a row comes to, and its loss with the gradient in its place.

It never runs on a CPU: `arithmetic` holds the same functions written plainly, which these are held to.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 2048, 8


def summarise(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = logits.shape
    top, log_sum = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    place = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(width))
    _summarise[(rows,)](
        logits, top, place, log_sum, logits.stride(0), WIDTH=width, BLOCK=block, num_warps=WARPS
    )
    return top, place, log_sum


def score(
    logits: Tensor,
    wanted: Tensor,
    wanted_sum: Tensor,
    choice: Tensor,
    rows: Tensor,
    weights: Tensor,
    *,
    differentiate: bool,
) -> tuple[Tensor, Tensor]:
    number, width = logits.shape
    losses = torch.empty(number, dtype=torch.float32, device=logits.device)
    hits = torch.empty(number, dtype=torch.bool, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(width))
    _score[(number,)](
        logits, wanted, wanted_sum, choice, rows, weights, losses, hits,
        wanted.stride(0), WIDTH=width, DIFFERENTIATE=differentiate, BLOCK=block, num_warps=WARPS,
    )  # fmt: skip
    return losses, hits


@triton.jit
def _fold(line, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Of one row: the largest logit and the log-sum-exp."""
    top, total = float("-inf"), 0.0
    for begin in range(0, WIDTH, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(line + at, mask=at < WIDTH, other=float("-inf")).to(tl.float32)
        new_top = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top), 0)
        top = new_top
    return top, top + tl.log(total)


@triton.jit
def _summarise(logits, top, place, log_sum, stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    line = logits + row * stride
    row_top, row_sum = _fold(line, WIDTH, BLOCK)
    first = tl.full([BLOCK], WIDTH, tl.int32)
    for begin in range(0, WIDTH, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(line + at, mask=at < WIDTH, other=float("-inf")).to(tl.float32)
        first = tl.minimum(first, tl.where(x == row_top, at, WIDTH))
    tl.store(top + row, row_top)
    tl.store(place + row, tl.min(first, 0))
    tl.store(log_sum + row, row_sum)


@triton.jit
def _score(
    logits, wanted, wanted_sum, choice, rows, weights, losses, hits,
    wanted_stride, WIDTH: tl.constexpr, DIFFERENTIATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lesson = tl.load(rows + row)
    line, wanted_line = logits + row * WIDTH, wanted + lesson * wanted_stride
    top, log_sum = _fold(line, WIDTH, BLOCK)
    lesson_sum, weight = tl.load(wanted_sum + lesson), tl.load(weights + row)
    likeness = tl.zeros([BLOCK], tl.float32)
    first = tl.full([BLOCK], WIDTH, tl.int32)  # where the top is, the first of equals
    for begin in range(0, WIDTH, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        mask = at < WIDTH
        x = tl.load(line + at, mask=mask, other=0.0).to(tl.float32)
        share = tl.exp(tl.load(wanted_line + at, mask=mask, other=float("-inf")).to(tl.float32) - lesson_sum)
        likeness += share * x
        first = tl.minimum(first, tl.where((x == top) & mask, at, WIDTH))
        if DIFFERENTIATE:
            tl.store(line + at, (tl.exp(x - log_sum) - share) * weight, mask=mask)
    tl.store(losses + row, log_sum - tl.sum(likeness, 0))
    tl.store(hits + row, tl.min(first, 0) == tl.load(choice + lesson))
