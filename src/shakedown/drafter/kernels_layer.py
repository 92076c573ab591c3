"""Triton kernels of the drafter's layer: rotary positions, a row's own keys, and the gated product.

It never runs on a CPU: `arithmetic` holds the same functions written plainly, which these are held to.

torch.compile fuses these too, but its kernels for the concatenations and small reductions here ran at a fifth
of the memory's speed on an H200 and took two minutes to build.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # of a pack, a program of `turn`
WARPS = 4


class Turn(torch.autograd.Function):
    """`arithmetic.turn`: x + from_token as heads, the first `turned` of them rotated."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, from_token: Tensor, at: Tensor, cos: Tensor, sin: Tensor, turned: int, width: int
    ) -> tuple[Tensor, Tensor]:
        rows, heads = len(x), x.shape[1] // width
        rotated = x.new_empty(rows, turned, width)
        plain = x.new_empty(rows, heads - turned, width)
        _turn[(triton.cdiv(rows, ROWS),)](
            x, from_token, at, cos, sin, rotated, plain,
            rows, x.stride(0), from_token.stride(0), turned * width, (heads - turned) * width,
            TURNED=turned, HEADS=heads, WIDTH=width, HALF=triton.next_power_of_2(width // 2),
            ROWS=ROWS, BACK=False,
        )  # fmt: skip
        ctx.save_for_backward(at, cos, sin)
        ctx.shape = rows, turned, heads, width
        return rotated, plain

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        at, cos, sin = ctx.saved_tensors
        rows, turned, heads, width = ctx.shape
        rotated, plain = (gradient.contiguous() for gradient in gradients)
        found = rotated.new_empty(rows, heads * width)
        _turn[(triton.cdiv(rows, ROWS),)](
            found, found, at, cos, sin, rotated, plain,
            rows, found.stride(0), 0, turned * width, (heads - turned) * width,
            TURNED=turned, HEADS=heads, WIDTH=width, HALF=triton.next_power_of_2(width // 2),
            ROWS=ROWS, BACK=True,
        )  # fmt: skip
        return found, found, None, None, None, None, None


@triton.jit
def _turn(
    x, from_token, at, cos, sin, rotated, plain,
    rows, x_stride, token_stride, rotated_stride, plain_stride,
    TURNED: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    ROWS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """Forward from x and from_token to rotated and plain; backward from their gradients to x."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    mask = (row < rows) & (pair < WIDTH // 2)
    place = tl.load(at + row, mask=row < rows, other=0)
    c = tl.load(cos + place * (WIDTH // 2) + pair, mask=mask, other=0.0)
    s = tl.load(sin + place * (WIDTH // 2) + pair, mask=mask, other=0.0)
    x += row * x_stride + pair
    from_token += row * token_stride + pair
    rotated += row * rotated_stride + pair
    plain += row * plain_stride + pair - TURNED * WIDTH
    for begin in range(0, TURNED * WIDTH, WIDTH):
        if BACK:
            first, second = _two(rotated + begin, mask, WIDTH)
            _store_two(x + begin, first * c + second * s, second * c - first * s, mask, WIDTH)
        else:
            first, second = _sum_two(x + begin, from_token + begin, mask, WIDTH)
            _store_two(rotated + begin, first * c - second * s, second * c + first * s, mask, WIDTH)
    for begin in range(TURNED * WIDTH, HEADS * WIDTH, WIDTH):
        if BACK:
            first, second = _two(plain + begin, mask, WIDTH)
            _store_two(x + begin, first, second, mask, WIDTH)
        else:
            first, second = _sum_two(x + begin, from_token + begin, mask, WIDTH)
            _store_two(plain + begin, first, second, mask, WIDTH)


@triton.jit
def _two(at, mask, WIDTH: tl.constexpr):
    """Both halves of a head."""
    first = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    return first, tl.load(at + WIDTH // 2, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _sum_two(at, other_at, mask, WIDTH: tl.constexpr):
    first, second = _two(at, mask, WIDTH)
    other_first, other_second = _two(other_at, mask, WIDTH)
    return first + other_first, second + other_second


@triton.jit
def _store_two(at, first, second, mask, WIDTH: tl.constexpr):
    tl.store(at, first, mask=mask)
    tl.store(at + WIDTH // 2, second, mask=mask)


class Join(torch.autograd.Function):
    """`arithmetic.join`: attention to the true keys, joined with each row's own keys of `steps` steps."""

    @staticmethod
    def forward(
        ctx: Any, out: Tensor, log_sum: Tensor, queries: Tensor, scale: float, steps: int, *own: Tensor
    ) -> Tensor:
        rows, heads, width = queries.shape
        joined = torch.empty_like(queries)
        total = torch.empty(rows, heads, dtype=torch.float32, device=queries.device)
        shape = _join_shape(heads, own[0].shape[1], width)
        _join_forward[(triton.cdiv(rows, shape["ROWS"]), own[0].shape[1])](
            out, log_sum, queries, own[:steps], own[steps:], joined, total,
            rows, out.stride(0), out.stride(1), log_sum.stride(0), log_sum.stride(1), scale,
            STEPS=steps, **shape,
        )  # fmt: skip
        ctx.save_for_backward(log_sum, queries, joined, total, *own)
        ctx.scale, ctx.steps = scale, steps
        return joined

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        log_sum, queries, joined, total, *own = ctx.saved_tensors
        rows, heads, width = queries.shape
        gradient = gradients[0].contiguous()
        grad_out, grad_queries = torch.empty_like(queries), torch.empty_like(queries)
        grad_log_sum = torch.empty_like(total)
        grad_own = tuple(torch.empty_like(one) for one in own)
        shape = _join_shape(heads, own[0].shape[1], width)
        _join_backward[(triton.cdiv(rows, shape["ROWS"]), own[0].shape[1])](
            gradient, log_sum, queries, tuple(own[: ctx.steps]), tuple(own[ctx.steps :]), joined, total,
            grad_out, grad_log_sum, grad_queries, grad_own[: ctx.steps], grad_own[ctx.steps :],
            rows, log_sum.stride(0), log_sum.stride(1), ctx.scale,
            STEPS=ctx.steps, **shape,
        )  # fmt: skip
        return grad_out, grad_log_sum, grad_queries, None, None, *grad_own


def _join_shape(heads: int, kv_heads: int, width: int) -> dict[str, int]:
    """A warp's lanes, eight numbers each, go along whole rows: sums over a group stay in a lane."""
    padded = triton.next_power_of_2(width)
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads,
        "WIDTH": width,
        "GROUP_PADDED": triton.next_power_of_2(heads // kv_heads),
        "WIDTH_PADDED": padded,
        "ROWS": WARPS * max(1, 32 * 8 // padded),
        "num_warps": WARPS,
    }


@triton.jit
def _join_forward(
    out, log_sum, queries, keys, values, joined, total,
    rows, out_row, out_head, sum_row, sum_head, scale,
    STEPS: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, GROUP_PADDED: tl.constexpr, WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    """A program: ROWS rows of one key-value head with the GROUP heads that share it, an online softmax."""
    shared = tl.program_id(1)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    member, d = tl.arange(0, GROUP_PADDED), tl.arange(0, WIDTH_PADDED)
    head = shared * GROUP + member
    some = (row < rows)[:, None] & (member < GROUP)[None, :]  # [ROWS, GROUP]
    whole = some[:, :, None] & (d < WIDTH)[None, None, :]  # [ROWS, GROUP, WIDTH]
    own = (row < rows)[:, None] & (d < WIDTH)[None, :]  # [ROWS, WIDTH]
    at = (row[:, None] * HEADS + head[None, :])[:, :, None] * WIDTH + d[None, None, :]
    own_at = (row * KV_HEADS + shared)[:, None] * WIDTH + d[None, :]
    q = tl.load(queries + at, mask=whole, other=0.0).to(tl.float32)
    base_at = row[:, None, None] * out_row + head[None, :, None] * out_head + d[None, None, :]
    found = tl.load(out + base_at, mask=whole, other=0.0).to(tl.float32)
    top = tl.load(log_sum + row[:, None] * sum_row + head[None, :] * sum_head, mask=some, other=0.0)
    weight = tl.full([ROWS, GROUP_PADDED], 1.0, tl.float32)
    for step in tl.static_range(STEPS):
        k = tl.load(keys[step] + own_at, mask=own, other=0.0).to(tl.float32)
        v = tl.load(values[step] + own_at, mask=own, other=0.0).to(tl.float32)
        score = tl.sum(q * k[:, None, :], 2) * scale
        new_top = tl.maximum(top, score)
        old, share = tl.exp(top - new_top), tl.exp(score - new_top)
        found = found * old[:, :, None] + share[:, :, None] * v[:, None, :]
        weight = weight * old + share
        top = new_top
    tl.store(joined + at, found / weight[:, :, None], mask=whole)
    tl.store(total + row[:, None] * HEADS + head[None, :], top + tl.log(weight), mask=some)


@triton.jit
def _join_backward(
    gradient, log_sum, queries, keys, values, joined, total,
    grad_out, grad_log_sum, grad_queries, grad_keys, grad_values,
    rows, sum_row, sum_head, scale,
    STEPS: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, GROUP_PADDED: tl.constexpr, WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    """Softmax's gradient over the true part as one member and the own keys: shares sum to one, so the true
    part's slope follows from the others' and its output need not be read."""
    shared = tl.program_id(1)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    member, d = tl.arange(0, GROUP_PADDED), tl.arange(0, WIDTH_PADDED)
    head = shared * GROUP + member
    some = (row < rows)[:, None] & (member < GROUP)[None, :]
    whole = some[:, :, None] & (d < WIDTH)[None, None, :]
    own = (row < rows)[:, None] & (d < WIDTH)[None, :]
    at = (row[:, None] * HEADS + head[None, :])[:, :, None] * WIDTH + d[None, None, :]
    own_at = (row * KV_HEADS + shared)[:, None] * WIDTH + d[None, :]
    sum_at = row[:, None] * HEADS + head[None, :]
    q = tl.load(queries + at, mask=whole, other=0.0).to(tl.float32)
    g = tl.load(gradient + at, mask=whole, other=0.0).to(tl.float32)
    all_sum = tl.load(total + sum_at, mask=some, other=0.0)
    true_sum = tl.load(log_sum + row[:, None] * sum_row + head[None, :] * sum_head, mask=some, other=0.0)
    slope = tl.sum(g * tl.load(joined + at, mask=whole, other=0.0).to(tl.float32), 2)  # [ROWS, GROUP]
    true_share = tl.exp(true_sum - all_sum)
    true_slope = slope - true_share * slope
    grad_q = tl.zeros([ROWS, GROUP_PADDED, WIDTH_PADDED], tl.float32)
    for step in tl.static_range(STEPS):
        k = tl.load(keys[step] + own_at, mask=own, other=0.0).to(tl.float32)
        v = tl.load(values[step] + own_at, mask=own, other=0.0).to(tl.float32)
        share = tl.where(some, tl.exp(tl.sum(q * k[:, None, :], 2) * scale - all_sum), 0.0)
        pull = tl.sum(g * v[:, None, :], 2)
        true_slope -= share * pull
        score = share * (pull - slope) * scale
        grad_q += score[:, :, None] * k[:, None, :]
        tl.store(grad_keys[step] + own_at, tl.sum(score[:, :, None] * q, 1), mask=own)
        tl.store(grad_values[step] + own_at, tl.sum(share[:, :, None] * g, 1), mask=own)
    tl.store(grad_queries + at, grad_q, mask=whole)
    tl.store(grad_out + at, true_share[:, :, None] * g, mask=whole)
    tl.store(grad_log_sum + sum_at, true_slope, mask=some)


class Gate(torch.autograd.Function):
    """`arithmetic.gated`: silu of the first half of each row times the second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rows, width = len(x), x.shape[1] // 2
        out = x.new_empty(rows, width)
        _gate[(rows, triton.cdiv(width, 2048))](x, x, out, width, BLOCK=2048, BACK=False)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        rows, width = len(x), x.shape[1] // 2
        found = torch.empty_like(x)
        blocks = triton.cdiv(width, 2048)
        _gate[(rows, blocks)](x, found, gradients[0].contiguous(), width, BLOCK=2048, BACK=True)
        return found


@triton.jit
def _gate(x, found, out, width, BLOCK: tl.constexpr, BACK: tl.constexpr):
    """Forward from x to out; backward from x and out's gradient to found."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    gate = tl.load(x + row * 2 * width + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=mask, other=0.0).to(tl.float32)
    open_ = 1 / (1 + tl.exp(-gate))
    if BACK:
        g = tl.load(out + row * width + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(found + row * 2 * width + column, g * up * open_ * (1 + gate * (1 - open_)), mask=mask)
        tl.store(found + row * 2 * width + width + column, g * gate * open_, mask=mask)
    else:
        tl.store(out + row * width + column, gate * open_ * up, mask=mask)
