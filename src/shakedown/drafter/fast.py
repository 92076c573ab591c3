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
from shakedown.drafter.loss import Pairs, soft_cross_entropy
from shakedown.drafter.packing import Pack
from shakedown.drafter.product import Matrix
from shakedown.drafter.rotary import rotary_tables
from shakedown.drafter.teacher import Teacher


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A drafter's weights in the dtype of the arithmetic, cut and joined as the fast path multiplies them."""

    fc: Matrix
    embedding_q: Matrix
    embedding_kv: Matrix
    hidden_q: Matrix
    hidden_kv: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix
    head: Tensor
    input_norm: Tensor
    hidden_norm: Tensor
    post_norm: Tensor
    norm: Tensor

    @classmethod
    def of(cls, drafter: Drafter, dtype: torch.dtype) -> Weights:
        layer, attention, mlp = drafter.midlayer, drafter.midlayer.self_attn, drafter.midlayer.mlp
        q, kv = (attention.q_proj.weight,), (attention.k_proj.weight, attention.v_proj.weight)
        of_embedding, of_hidden = slice(drafter.config.hidden), slice(drafter.config.hidden, None)
        return cls(
            fc=Matrix.of(drafter.fc.weight, dtype=dtype),
            embedding_q=Matrix.of(*q, dtype=dtype, columns=of_embedding),
            embedding_kv=Matrix.of(*kv, dtype=dtype, columns=of_embedding),
            hidden_q=Matrix.of(*q, dtype=dtype, columns=of_hidden),
            hidden_kv=Matrix.of(*kv, dtype=dtype, columns=of_hidden),
            output=Matrix.of(attention.o_proj.weight, dtype=dtype),
            gate_up=Matrix.of(mlp.gate_proj.weight, mlp.up_proj.weight, dtype=dtype),
            down=Matrix.of(mlp.down_proj.weight, dtype=dtype),
            head=drafter.lm_head.weight.detach().to(dtype),
            input_norm=layer.input_layernorm.weight.to(dtype),
            hidden_norm=layer.hidden_norm.weight.to(dtype),
            post_norm=layer.post_attention_layernorm.weight.to(dtype),
            norm=drafter.norm.weight.to(dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a pack taught. S steps, R loss rows; `trained` and `hits` bool [S, R].

    `total` is the sum that is differentiated; `losses` [S] sums plain cross-entropies, `taught` [S] counts
    them; `covered` sums the target's probability of draftable tokens over the rows trained at step 0.
    A row is trained where the engine would draft; it is taught unless the target's choice cannot be drafted,
    and then it is a miss.
    """

    total: Tensor
    losses: Tensor
    taught: Tensor
    covered: Tensor
    trained: Tensor
    hits: Tensor


def learn(drafter: Drafter, pack: Pack, teacher: Teacher, *, steps: int, decay: float, rows: float) -> Lesson:
    """The loss of all steps over one pack: step k weighs decay^k, and each row 1 / `rows`.

    `rows` is the number of loss rows in the whole batch, over all packs and processes. The arithmetic is in
    the pack's dtype.
    """
    count = len(pack.rows)
    trained = pack.depth > torch.arange(steps, device=pack.depth.device)[:, None]  # [S, R]
    lessons = torch.arange(count, device=pack.depth.device) + 1
    lessons = (lessons + torch.arange(steps, device=lessons.device)[:, None]).clamp(max=count - 1)
    taught = trained & (teacher.verdict.choice[lessons] >= 0)
    places = taught.flatten().nonzero().flatten()  # waits for the device: before it has much to do
    weights = Weights.of(drafter, pack.aux.dtype)
    features = unroll(drafter.config, weights, drafter.embedding, pack, steps)
    outcome = normed(features, weights.norm, drafter.config.rms_eps)
    step_of = places // count
    pairs = Pairs(places=places, lessons=lessons.flatten()[places], weights=decay**step_of / rows)
    total, losses, hits = soft_cross_entropy(
        outcome.flatten(0, 1), weights.head, drafter.lm_head.weight, teacher, pairs
    )
    found = losses.new_zeros(steps * count).index_copy(0, places, losses).view(steps, count)
    hit = hits.new_zeros(steps * count).index_copy(0, places, hits).view(steps, count)
    covered = (teacher.verdict.covered[lessons[0]] * trained[0]).sum()
    return Lesson(
        total=total,
        losses=found.sum(1),
        taught=taught.sum(1),
        covered=covered,
        trained=trained,
        hits=hit,
    )


def unroll(config: DrafterConfig, weights: Weights, embedding: Tensor, pack: Pack, steps: int) -> Tensor:
    """Features of every loss row after each step, [S, R, H], before the final norm."""
    eps, width, rows = config.rms_eps, config.head_dim, pack.rows
    places = torch.arange(len(pack.positions) + steps, device=rows.device)
    angles = rotary_tables(config.rope, width, places)
    sight = Sight.of(pack)

    fused = weights.fc.times(pack.aux)
    state = normed(fused, weights.hidden_norm, eps)
    embedded = normed(F.embedding(pack.next_tokens, embedding).to(fused.dtype), weights.input_norm, eps)
    token_kv = weights.embedding_kv.times(embedded)
    kv = weights.hidden_kv.times(state)
    keys, values = turn(kv, token_kv, pack.positions, angles, turned=config.kv_heads, width=width)

    feature, state = fused.index_select(0, rows), state.index_select(0, rows)
    # What step k reads of tokens lies k entries further along; past a text's end nothing is trained.
    token_q = weights.embedding_q.times(F.pad(embedded.index_select(0, rows), (0, 0, 0, steps)))
    token_kv = F.pad(token_kv.index_select(0, rows), (0, 0, 0, steps))
    at = pack.positions[rows]
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    features: list[Tensor] = []
    for step in range(steps):
        if step:
            state = normed(feature, weights.hidden_norm, eps)
        here = slice(step, step + len(rows))
        q = weights.hidden_q.times(state)
        queries, _ = turn(q, token_q[here], at + step, angles, turned=config.heads, width=width)
        attended, log_sum = attend(queries, keys, values, sight, config.scale)
        if step:
            kv = weights.hidden_kv.times(state)
            key, value = turn(kv, token_kv[here], at + step, angles, turned=config.kv_heads, width=width)
            own_keys.append(key)
            own_values.append(value)
            attended = join(attended, log_sum, queries, own_keys, own_values, config.scale)
        feature = weights.output.times(attended.flatten(1), plus=feature)
        opened = weights.gate_up.times(normed(feature, weights.post_norm, eps))
        feature = weights.down.times(gated(opened), plus=feature)
        features.append(feature)
    return torch.stack(features)
