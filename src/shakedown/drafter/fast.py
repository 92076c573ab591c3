"""Training-time test, the fast way: a pack of documents, and work only where a loss needs it.

It never runs a prompt row through more than fc, norms, k and v: in a layer whose keys all come from step 0,
nothing else of such a row is ever read. `reference` computes the same plainly and is what this is held to.

The half of q, k and v that reads the embedding depends on the token alone, not on the step: it is computed
once per token and read one place further along at each step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shakedown.drafter.architecture import Drafter, DrafterConfig
from shakedown.drafter.arithmetic import gated, join, normed, turn
from shakedown.drafter.attention import Sight, attend
from shakedown.drafter.loss import soft_cross_entropy
from shakedown.drafter.packing import Pack
from shakedown.drafter.rotary import rotary_tables
from shakedown.drafter.teacher import Teacher


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A drafter's weights in the dtype of the arithmetic, cut and joined as the fast path multiplies them."""

    fc: Tensor
    input_norm: Tensor
    hidden_norm: Tensor
    post_norm: Tensor
    norm: Tensor
    embedding_q: Tensor  # [q, H]
    embedding_kv: Tensor  # [k + v, H]
    hidden_q: Tensor
    hidden_kv: Tensor
    output: Tensor
    gate_up: Tensor  # [2 * intermediate, H]
    down: Tensor
    head: Tensor

    @classmethod
    def of(cls, drafter: Drafter, dtype: torch.dtype) -> Weights:
        """Differentiable: gradients arrive at the drafter's own parameters, in their own dtype."""
        layer, attention = drafter.midlayer, drafter.midlayer.self_attn
        hidden = drafter.config.hidden
        q = attention.q_proj.weight.to(dtype)
        kv = torch.cat([attention.k_proj.weight, attention.v_proj.weight]).to(dtype)
        return cls(
            fc=drafter.fc.weight.to(dtype),
            input_norm=layer.input_layernorm.weight.to(dtype),
            hidden_norm=layer.hidden_norm.weight.to(dtype),
            post_norm=layer.post_attention_layernorm.weight.to(dtype),
            norm=drafter.norm.weight.to(dtype),
            embedding_q=q[:, :hidden].contiguous(),
            embedding_kv=kv[:, :hidden].contiguous(),
            hidden_q=q[:, hidden:].contiguous(),
            hidden_kv=kv[:, hidden:].contiguous(),
            output=attention.o_proj.weight.to(dtype),
            gate_up=torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]).to(dtype),
            down=layer.mlp.down_proj.weight.to(dtype),
            head=drafter.lm_head.weight.to(dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a pack taught. S steps, R loss rows; `trained` and `hits` bool [S, R].

    `total` is the sum that is differentiated; `losses` [S] sums plain cross-entropies, `taught` [S] counts
    them. A row is trained where the engine would draft; it is taught unless the target's choice cannot be
    drafted, and then it is a miss.
    """

    total: Tensor
    losses: Tensor
    taught: Tensor
    trained: Tensor
    hits: Tensor


def learn(drafter: Drafter, pack: Pack, teacher: Teacher, *, steps: int, decay: float, rows: float) -> Lesson:
    """The loss of all steps over one pack: step k weighs decay^k, and each row 1 / `rows`.

    `rows` is the number of loss rows in the whole batch, over all packs and processes. The arithmetic is in
    the pack's dtype.
    """
    weights = Weights.of(drafter, pack.aux.dtype)
    features = unroll(drafter.config, weights, drafter.embedding, pack, steps)
    outcome = normed(features, weights.norm, drafter.config.rms_eps)
    count = len(pack.rows)
    trained = pack.depth > torch.arange(steps, device=pack.depth.device)[:, None]  # [S, R]
    lessons = torch.arange(count, device=pack.depth.device) + 1
    lessons = (lessons + torch.arange(steps, device=lessons.device)[:, None]).clamp(max=count - 1)
    taught = trained & (teacher.choice[lessons] >= 0)
    places = taught.flatten().nonzero().flatten()
    step_of = places // count
    total, losses, hits = soft_cross_entropy(
        outcome.flatten(0, 1), weights.head, teacher, places, lessons.flatten()[places], decay**step_of / rows
    )
    found = losses.new_zeros(steps * count).index_copy(0, places, losses).view(steps, count)
    hit = hits.new_zeros(steps * count).index_copy(0, places, hits).view(steps, count)
    return Lesson(total=total, losses=found.sum(1), taught=taught.sum(1), trained=trained, hits=hit)


def unroll(config: DrafterConfig, weights: Weights, embedding: Tensor, pack: Pack, steps: int) -> Tensor:
    """Features of every loss row after each step, [S, R, H], before the final norm."""
    eps, width, rows = config.rms_eps, config.head_dim, pack.rows
    places = torch.arange(len(pack.positions) + steps, device=rows.device)
    angles = rotary_tables(config.rope, width, places)
    sight = Sight.of(pack)

    fused = F.linear(pack.aux, weights.fc)
    state = normed(fused, weights.hidden_norm, eps)
    embedded = normed(F.embedding(pack.next_tokens, embedding).to(fused.dtype), weights.input_norm, eps)
    token_kv = F.linear(embedded, weights.embedding_kv)
    kv = F.linear(state, weights.hidden_kv)
    keys, values = turn(kv, token_kv, pack.positions, angles, turned=config.kv_heads, width=width)

    feature, state = fused.index_select(0, rows), state.index_select(0, rows)
    # What step k reads of tokens lies k entries further along; past a text's end nothing is trained.
    token_q = F.linear(F.pad(embedded.index_select(0, rows), (0, 0, 0, steps)), weights.embedding_q)
    token_kv = F.pad(token_kv.index_select(0, rows), (0, 0, 0, steps))
    at = pack.positions[rows]
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    features: list[Tensor] = []
    for step in range(steps):
        here = slice(step, step + len(rows))
        q = F.linear(state, weights.hidden_q)
        queries, _ = turn(q, token_q[here], at + step, angles, turned=config.heads, width=width)
        attended, log_sum = attend(queries, keys, values, sight, config.scale)
        if step:
            kv = F.linear(state, weights.hidden_kv)
            key, value = turn(kv, token_kv[here], at + step, angles, turned=config.kv_heads, width=width)
            own_keys.append(key)
            own_values.append(value)
            attended = join(attended, log_sum, queries, own_keys, own_values, config.scale)
        feature = torch.addmm(feature, attended.flatten(1), weights.output.T)
        opened = F.linear(normed(feature, weights.post_norm, eps), weights.gate_up)
        feature = torch.addmm(feature, gated(opened), weights.down.T)
        features.append(feature)
        state = normed(feature, weights.hidden_norm, eps)
    return torch.stack(features)
