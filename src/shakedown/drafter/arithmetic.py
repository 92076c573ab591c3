"""The small steps between matrix products, plainly; on a GPU the same by the kernels beside this module.

It never multiplies matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from shakedown.drafter.architecture import rms_norm
from shakedown.drafter.rotary import rotate


def turn(
    x: Tensor, from_token: Tensor, at: Tensor, angles: tuple[Tensor, Tensor], *, turned: int, width: int
) -> tuple[Tensor, Tensor]:
    """What the state and the token give, added, as heads: the first `turned` rotated, the others not.

    `x`, `from_token` [R, heads * width]; `at` [R]; `angles` by position, [P, 1, width / 2], fp32.
    Hands back [R, turned, width] and [R, heads - turned, width].
    """
    cos, sin = angles
    if x.is_cuda:
        from shakedown.drafter.kernels_layer import Turn

        found: tuple[Tensor, Tensor] = Turn.apply(x, from_token, at, cos, sin, turned, width)  # type: ignore[no-untyped-call]
        return found
    heads = (x + from_token).view(len(x), -1, width)
    return rotate(heads[:, :turned], cos[at], sin[at]), heads[:, turned:]


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm; on a GPU torch's own kernel, which rounds once where the plain way rounds twice."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps) if x.is_cuda else rms_norm(x, weight, eps)


def join(
    out: Tensor,
    log_sum: Tensor,
    queries: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    scale: float,
) -> Tensor:
    """Adds each row's own keys, of each step [R, key-value heads, width], to attention over other keys.

    `out`, `queries` [R, heads, width]; `log_sum` [R, heads], fp32, of that attention's scores.
    """
    if out.is_cuda:
        from shakedown.drafter.kernels_layer import Join

        found: Tensor = Join.apply(out, log_sum, queries, scale, len(keys), *keys, *values)  # type: ignore[no-untyped-call]
        return found
    rows, heads, width = queries.shape
    own_keys, own_values = torch.stack(tuple(keys))[:, :, :, None], torch.stack(tuple(values))[:, :, :, None]
    shape = (rows, own_keys.shape[2], -1)  # heads in groups that share a key
    scores = (queries.view(*shape, width) * own_keys).sum(-1) * scale  # [steps, R, key-value heads, group]
    true_sum = log_sum.view(shape)
    total = torch.logaddexp(true_sum, scores.logsumexp(0))
    joined = out.view(*shape, width) * (true_sum - total).exp()[..., None]
    joined = joined + ((scores - total).exp()[..., None] * own_values).sum(0)
    return joined.view(rows, heads, width).to(out.dtype)


def gated(x: Tensor) -> Tensor:
    """silu of the first half of each row times the second half."""
    if x.is_cuda:
        from shakedown.drafter.kernels_layer import Gate

        found: Tensor = Gate.apply(x)  # type: ignore[no-untyped-call]
        return found
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def summarise(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row the largest logit, its place, and the log-sum-exp, in fp32."""
    if logits.is_cuda:
        from shakedown.drafter import kernels_loss

        return kernels_loss.summarise(logits)
    wide = logits.float()
    top = wide.max(-1)
    return top.values, top.indices, wide.logsumexp(-1)


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
    """Cross-entropy of each row to its lesson, and whether its top is the lesson's choice.

    `logits` [n, V]; row `rows[i]` of `wanted` [R, V] is row i's lesson, `wanted_sum` [R] its log-sum-exp.
    With `differentiate` the logits are overwritten by their gradient, times `weights` [n].
    """
    if logits.is_cuda:
        from shakedown.drafter import kernels_loss

        lesson = (wanted, wanted_sum, choice, rows, weights)
        return kernels_loss.score(logits, *lesson, differentiate=differentiate)
    wide = logits.float()
    shares = (wanted[rows].float() - wanted_sum[rows, None]).exp()
    log_sum = wide.logsumexp(-1)
    losses, hits = log_sum - (shares * wide).sum(-1), wide.argmax(-1) == choice[rows]
    if differentiate:
        logits.copy_(((wide - log_sum[:, None]).exp() - shares) * weights[:, None])
    return losses, hits
