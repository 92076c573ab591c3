"""Training-time test, literally: one document, every row through every step, one explicit mask.

It never saves work: it is the explanation of `fast` and the measure it is held to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shakedown.drafter.architecture import Drafter
from shakedown.drafter.rotary import rotary_tables, rotate
from shakedown.drafter.vocabulary import DraftVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLesson:
    """Of one document of T tokens: the weighted sum, and by step and row [S, T] what it is made of."""

    total: Tensor
    losses: Tensor  # 0 where nothing is taught
    trained: Tensor
    hits: Tensor


def learn_plainly(
    drafter: Drafter,
    vocabulary: DraftVocabulary,
    target_head: Tensor,
    tokens: Tensor,
    mask: Tensor,
    aux: Tensor,
    last: Tensor,
    *,
    steps: int,
    decay: float,
    teacher_temperature: float = 1.0,
) -> PlainLesson:
    """`tokens`, `mask` [T]; `aux` [T, 3H]; `last` [T, H], after the final norm, at every row."""
    teacher = last @ target_head.T  # [T, vocab]: row j is the distribution of token j+1
    logits = unroll_plainly(drafter, tokens, aux, steps)
    length = len(tokens)
    choices = teacher.argmax(-1)
    wanted = (teacher[:, vocabulary.target_ids].float() / teacher_temperature).softmax(-1)
    drafted = vocabulary.target_ids[logits.argmax(-1)]
    losses = logits.new_zeros(steps, length, dtype=torch.float32)
    trained, hits = torch.zeros(steps, length, dtype=torch.bool), torch.zeros(steps, length, dtype=torch.bool)
    for step in range(steps):
        for row in range(length - 2 - step):
            lesson = row + 1 + step
            trained[step, row] = bool(mask[row + 1 : row + 3 + step].all())
            if trained[step, row] and vocabulary.t2d[choices[lesson]]:
                losses[step, row] = F.cross_entropy(logits[step, row].float(), wanted[lesson])
                hits[step, row] = drafted[step, row] == choices[lesson]
    total = (losses.sum(1) * decay ** torch.arange(steps)).sum()
    return PlainLesson(total=total, losses=losses, trained=trained, hits=hits)


def unroll_plainly(drafter: Drafter, tokens: Tensor, aux: Tensor, steps: int) -> Tensor:
    """Draft logits of every row after each step, [S, T, draft vocabulary]."""
    config, layer, attention = drafter.config, drafter.midlayer, drafter.midlayer.self_attn
    length = len(tokens)
    at = torch.arange(length, device=tokens.device)
    feature = drafter.fuse(aux)
    keys = feature.new_empty(0, config.kv_heads, config.head_dim)
    values, logits = keys, []
    for step in range(steps):
        following = F.pad(tokens[1 + step :], (0, min(length, 1 + step)))  # of row i: token i+1+step
        embedded = layer.input_layernorm(F.embedding(following, drafter.embedding).to(feature.dtype))
        x = torch.cat([embedded, layer.hidden_norm(feature)], dim=-1)
        angles = rotary_tables(config.rope, config.head_dim, at + step)
        queries = rotate(attention.q_proj(x).view(length, config.heads, config.head_dim), *angles)
        new_keys = rotate(attention.k_proj(x).view(length, config.kv_heads, config.head_dim), *angles)
        keys = torch.cat([keys, new_keys])
        values = torch.cat([values, attention.v_proj(x).view(length, config.kv_heads, config.head_dim)])
        seen = unrolled_mask(length, step).to(tokens.device)
        groups = config.heads // config.kv_heads
        attended = F.scaled_dot_product_attention(
            queries.transpose(0, 1),
            keys.repeat_interleave(groups, dim=1).transpose(0, 1),
            values.repeat_interleave(groups, dim=1).transpose(0, 1),
            attn_mask=seen,
        )
        feature = feature + attention.o_proj(attended.transpose(0, 1).flatten(1))
        feature = feature + layer.mlp(layer.post_attention_layernorm(feature))
        logits.append(drafter.lm_head(drafter.norm(feature)))
    return torch.stack(logits)


def unrolled_mask(length: int, step: int) -> Tensor:
    """[T, (step + 1) * T]: a causal block for the true keys, then a diagonal for each step's own keys."""
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    own = torch.eye(length, dtype=torch.bool)
    return torch.cat([causal, *[own] * step], dim=1)
