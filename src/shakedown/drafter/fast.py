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

from shakedown.drafter.architecture import Drafter, DrafterConfig, rms_norm
from shakedown.drafter.attention import Sight, attend, join_own
from shakedown.drafter.compiled import fused_on_gpu
from shakedown.drafter.loss import soft_cross_entropy
from shakedown.drafter.packing import Pack
from shakedown.drafter.rotary import rotary_tables, rotate
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
    normed = final_norm(features, weights.norm, drafter.config.rms_eps)
    count = len(pack.rows)
    trained = pack.depth > torch.arange(steps, device=pack.depth.device)[:, None]  # [S, R]
    lessons = torch.arange(count, device=pack.depth.device) + 1
    lessons = (lessons + torch.arange(steps, device=lessons.device)[:, None]).clamp(max=count - 1)
    taught = trained & (teacher.choice[lessons] >= 0)
    places = taught.flatten().nonzero().flatten()
    step_of = places // count
    total, losses, hits = soft_cross_entropy(
        normed.flatten(0, 1), weights.head, teacher, places, lessons.flatten()[places], decay**step_of / rows
    )
    found = losses.new_zeros(steps * count).index_copy(0, places, losses).view(steps, count)
    hit = hits.new_zeros(steps * count).index_copy(0, places, hits).view(steps, count)
    return Lesson(total=total, losses=found.sum(1), taught=taught.sum(1), trained=trained, hits=hit)


def unroll(config: DrafterConfig, weights: Weights, embedding: Tensor, pack: Pack, steps: int) -> Tensor:
    """Features of every loss row after each step, [S, R, H], before the final norm."""
    longest = torch.arange(len(pack.positions) + steps, device=pack.positions.device)
    angles = rotary_tables(config.rope, config.head_dim, longest)
    sight = Sight.of(pack)
    embedded = F.embedding(pack.next_tokens, embedding).to(pack.aux.dtype)
    keys, values, queries, feature, from_token = _open(
        pack.aux, embedded, pack.rows, pack.positions, *angles, weights, config
    )
    del embedded
    from_token = F.pad(from_token, (0, 0, 0, steps))  # past a text's end lies the next: never trained there
    at = pack.positions[pack.rows]
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    features: list[Tensor] = []
    for step in range(steps):
        if step:
            tokens = from_token[step : step + len(pack.rows)]
            queries, key, value = _project(feature, tokens, at + step, *angles, weights, config)
            own_keys.append(key)
            own_values.append(value)
        attended, log_sum = attend(queries, keys, values, sight, config.scale)
        if step:
            attended = join_own(attended, log_sum, queries, own_keys, own_values, config.scale)
        feature = _close(feature, attended.flatten(1), weights, config.rms_eps)
        features.append(feature)
    return torch.stack(features)


@fused_on_gpu
def _open(
    aux: Tensor,
    embedded: Tensor,
    rows: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    weights: Weights,
    config: DrafterConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Step 0's keys and values at all places; of loss rows queries, features, and the tokens' q, k and v."""
    fused = F.linear(aux, weights.fc)
    normed = rms_norm(fused, weights.hidden_norm, config.rms_eps)
    embedded = rms_norm(embedded, weights.input_norm, config.rms_eps)
    token_kv = F.linear(embedded, weights.embedding_kv)
    kv = (token_kv + F.linear(normed, weights.hidden_kv)).view(len(aux), 2, config.kv_heads, config.head_dim)
    keys = rotate(kv[:, 0], cos[positions], sin[positions])
    token_q = F.linear(embedded[rows], weights.embedding_q)
    queries = (token_q + F.linear(normed[rows], weights.hidden_q)).view(-1, config.heads, config.head_dim)
    at = positions[rows]
    queries = rotate(queries, cos[at], sin[at])
    return keys, kv[:, 1].contiguous(), queries, fused[rows], torch.cat([token_q, token_kv[rows]], dim=1)


@fused_on_gpu
def _project(
    feature: Tensor,
    tokens: Tensor,
    at: Tensor,
    cos: Tensor,
    sin: Tensor,
    weights: Weights,
    config: DrafterConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    normed = rms_norm(feature, weights.hidden_norm, config.rms_eps)
    q, kv = tokens[:, : config.query_width], tokens[:, config.query_width :]
    queries = (q + F.linear(normed, weights.hidden_q)).view(-1, config.heads, config.head_dim)
    kv = kv + F.linear(normed, weights.hidden_kv)
    kv = kv.view(-1, 2, config.kv_heads, config.head_dim)
    cos, sin = cos[at], sin[at]
    return rotate(queries, cos, sin), rotate(kv[:, 0], cos, sin), kv[:, 1].contiguous()


@fused_on_gpu
def _close(feature: Tensor, attended: Tensor, weights: Weights, eps: float) -> Tensor:
    feature = feature + F.linear(attended, weights.output)
    gate, up = F.linear(rms_norm(feature, weights.post_norm, eps), weights.gate_up).chunk(2, dim=-1)
    return feature + F.linear(F.silu(gate) * up, weights.down)


@fused_on_gpu
def final_norm(features: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(features, weight, eps)
