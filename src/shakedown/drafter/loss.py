"""Soft cross-entropy of drafted rows against the target, in chunks that never hold all logits at once.

It never recomputes a logit: a chunk's gradient is taken while the chunk is there, so the backward pass only
hands on what the forward pass found. Three matrix products a chunk is what the gradient costs anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shakedown.drafter.arithmetic import score
from shakedown.drafter.product import add_product
from shakedown.drafter.teacher import Teacher

CHUNK_BYTES = 2**30  # of logits in the compute dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """N lessons: feature `places[n]` is taught by teacher row `lessons[n]`, and counts `weights[n]`.

    No place occurs twice.
    """

    places: Tensor
    lessons: Tensor
    weights: Tensor


def soft_cross_entropy(
    x: Tensor, head: Tensor, owner: Tensor, teacher: Teacher, pairs: Pairs
) -> tuple[Tensor, Tensor, Tensor]:
    """The weighted sum, and of each pair its cross-entropy and whether the top draft is the target's choice.

    `x` [M, H] are normed features; `head` [draft vocabulary, H] is `owner` in their dtype, and the gradient
    goes to the owner. Results: scalar, [N], bool [N].
    """
    if not torch.is_grad_enabled():
        owner = owner.detach()  # a parameter asks for its gradient even then, and would get it
    if not torch.is_grad_enabled():
        owner = owner.detach()  # a parameter asks for its gradient even then, and would get it
    total, losses, hits = _ChunkedLoss.apply(x, owner, head, teacher, pairs)  # type: ignore[no-untyped-call]
    return total, losses, hits


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, owner: Tensor, head: Tensor, teacher: Teacher, pairs: Pairs
    ) -> tuple[Tensor, Tensor, Tensor]:
        places, weights = pairs.places, pairs.weights
        grad_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        grad_head = torch.zeros_like(owner) if ctx.needs_input_grad[1] else None
        losses = torch.zeros(len(places), dtype=torch.float32, device=x.device)
        hits = torch.zeros(len(places), dtype=torch.bool, device=x.device)
        lesson = (teacher.logits, teacher.log_sum_exp, teacher.verdict.choice)
        for part in _chunks(len(places), CHUNK_BYTES // (len(head) * head.element_size())):
            chunk = x.index_select(0, places[part])
            logits = chunk @ head.T
            losses[part], hits[part] = score(
                logits, *lesson, pairs.lessons[part], weights[part], differentiate=grad_x is not None
            )
            if grad_x is not None:
                grad_x.index_copy_(0, places[part], logits @ head)  # by now they are the logits' gradients
            if grad_head is not None:
                add_product(grad_head, logits, chunk)
        ctx.save_for_backward(grad_x, grad_head)
        ctx.mark_non_differentiable(losses, hits)
        return (losses * weights).sum(), losses, hits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if found is None else found.mul_(gradients[0]) for found in ctx.saved_tensors]
        return scaled[0], scaled[1], None, None, None


def _chunks(number: int, largest: int) -> list[slice]:
    """Even parts, so that no last one is too small to fill the device."""
    parts = max(1, -(-number // max(1, largest)))
    size = max(1, -(-number // parts))
    return [slice(begin, min(begin + size, number)) for begin in range(0, number, size)]
