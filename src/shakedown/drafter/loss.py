"""Soft cross-entropy of drafted rows against the target, in chunks that never hold all logits at once.

It never recomputes a logit: a chunk's gradient is taken while the chunk is there, so the backward pass only
hands on what the forward pass found. Three matrix products a chunk is what the gradient costs anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shakedown.drafter.arithmetic import score
from shakedown.drafter.teacher import Teacher

CHUNK_BYTES = 2**30  # of logits in the compute dtype


def soft_cross_entropy(
    x: Tensor, head: Tensor, teacher: Teacher, places: Tensor, lessons: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The weighted sum, and of each pair its cross-entropy and whether the top draft is the target's choice.

    `x` [M, H] are normed features, `head` [draft vocabulary, H]. N pairs: feature `places[n]` is taught by
    teacher row `lessons[n]` with `weights[n]`; no place occurs twice. Results: scalar, [N], bool [N].
    """
    total, losses, hits = _ChunkedLoss.apply(x, head, teacher, places, lessons, weights)  # type: ignore[no-untyped-call]
    return total, losses, hits


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, head: Tensor, teacher: Teacher, places: Tensor, lessons: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        wanted, head_wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
        grad_x = torch.zeros_like(x) if wanted else None
        grad_head = torch.zeros_like(head, dtype=torch.float32) if head_wanted else None
        losses = torch.zeros(len(places), dtype=torch.float32, device=x.device)
        hits = torch.zeros(len(places), dtype=torch.bool, device=x.device)
        lesson = (teacher.logits, teacher.log_sum_exp, teacher.choice)
        for part in _chunks(len(places), CHUNK_BYTES // (len(head) * head.element_size())):
            chunk = x.index_select(0, places[part])
            logits = chunk @ head.T
            losses[part], hits[part] = score(
                logits, *lesson, lessons[part], weights[part], differentiate=wanted or head_wanted
            )
            if grad_x is not None:
                grad_x.index_copy_(0, places[part], logits @ head)  # by now they are the logits' gradients
            if grad_head is not None:
                grad_head += logits.T @ chunk
        ctx.save_for_backward(grad_x, None if grad_head is None else grad_head.to(head.dtype))
        ctx.mark_non_differentiable(losses, hits)
        return (losses * weights).sum(), losses, hits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_head = ctx.saved_tensors
        scale = gradients[0]
        scaled = [None if g is None else g * scale.to(g.dtype) for g in (grad_x, grad_head)]
        return scaled[0], scaled[1], None, None, None, None


def _chunks(number: int, largest: int) -> list[slice]:
    """Even parts, so that no last one is too small to fill the device."""
    parts = max(1, -(-number // max(1, largest)))
    size = max(1, -(-number // parts))
    return [slice(begin, min(begin + size, number)) for begin in range(0, number, size)]
