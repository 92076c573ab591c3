"""The EAGLE-3 drafter: one decoder layer that reads the target's states and the next token.

It never trains and never reads a file; `reference` and `fast` run the same weights over whole texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shakedown.drafter.rotary import Rope, rotary_tables, rotate
from shakedown.errors import DataProblem

AUX_STATES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """What fixes a drafter's shapes and arithmetic; it reads the inputs of target layers `aux_inputs_of`."""

    hidden: int
    target_hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    draft_vocab: int
    rms_eps: float
    rope: Rope = field(default_factory=Rope)
    max_positions: int
    aux_inputs_of: tuple[int, int, int]
    target_layers: int
    target_architecture: str

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise DataProblem(f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly")
        if self.head_dim % 2:
            raise DataProblem(f"head_dim {self.head_dim} is odd: rotary positions turn pairs")
        if not 0 < self.draft_vocab <= self.vocab:
            raise DataProblem(
                f"a draft vocabulary of {self.draft_vocab} does not fit into {self.vocab} tokens"
            )

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalised in fp32, rounded, then scaled: the order in which the engines do it."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Projections alone: the queries' keys differ between training and drafting."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2 * config.hidden, config.query_width, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden, config.key_width, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden, config.key_width, bias=False)
        self.o_proj = nn.Linear(config.query_width, config.hidden, bias=False)


class Mlp(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class MidLayer(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden, config.rms_eps)  # of the embedding
        self.hidden_norm = RmsNorm(config.hidden, config.rms_eps)  # of the feature
        self.post_attention_layernorm = RmsNorm(config.hidden, config.rms_eps)
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)


@dataclass(slots=True)
class DraftCache:
    """Keys and values of the rows so far, [rows, key-value heads, head_dim]; row i sits at position i."""

    keys: Tensor
    values: Tensor
    length: int = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Room is doubled when it runs out. Hands back all keys and values, the new ones last."""
        end = self.length + len(keys)
        if end > len(self.keys):
            room = max(end, 2 * len(self.keys))
            self.keys = torch.cat([self.keys, self.keys.new_empty(room - len(self.keys), *keys.shape[1:])])
            self.values = torch.cat(
                [self.values, self.values.new_empty(room - len(self.values), *values.shape[1:])]
            )
        self.keys[self.length : end], self.values[self.length : end] = keys, values
        self.length = end
        return self.keys[:end], self.values[:end]

    def truncate(self, length: int) -> None:
        """Forgets the rows from `length` on: the drafts of a round, once it is verified."""
        self.length = min(self.length, length)


class Drafter(nn.Module):
    """The weights under the names that the engines read, and drafting one row after the other.

    A row is (feature, next token). Of a true row the feature is `fuse(aux)`; of a drafted one it is what
    the row before it gave back. The target's frozen embedding, [vocab, hidden], is attached, not owned.
    """

    embedding: Tensor

    def __init__(self, config: DrafterConfig, embedding: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(AUX_STATES * config.target_hidden, config.hidden, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = RmsNorm(config.hidden, config.rms_eps)
        self.lm_head = nn.Linear(config.hidden, config.draft_vocab, bias=False)
        self.register_buffer("embedding", torch.empty(0), persistent=False)
        if embedding is not None:
            self.attach_embedding(embedding)

    def attach_embedding(self, embedding: Tensor) -> None:
        wanted = (self.config.vocab, self.config.hidden)
        if tuple(embedding.shape) != wanted:
            raise DataProblem(
                f"the embedding is {tuple(embedding.shape)}, the drafter wants {wanted} (vocabulary, hidden)"
            )
        self.embedding = embedding.detach()

    def new_cache(self) -> DraftCache:
        shape = (64, self.config.kv_heads, self.config.head_dim)
        empty = torch.empty(shape, dtype=self.fc.weight.dtype, device=self.fc.weight.device)
        return DraftCache(keys=empty, values=empty.clone())

    def fuse(self, aux: Tensor) -> Tensor:
        """Features of true rows: [n, 3 * target hidden] -> [n, hidden]."""
        fused: Tensor = self.fc(aux.to(self.fc.weight.dtype))
        return fused

    def decode_step(self, features: Tensor, tokens: Tensor, cache: DraftCache) -> tuple[Tensor, Tensor]:
        """Appends n rows to the cache: true ones after a prefill or a verify, or one drafted row.

        `features` [n, hidden]; `tokens` [n], each the token after its row. Hands back the rows' own
        features [n, hidden] and the draft vocabulary's logits [n, draft vocabulary].
        """
        config, layer, attention = self.config, self.midlayer, self.midlayer.self_attn
        rows, begin = len(tokens), cache.length
        embedded = layer.input_layernorm(F.embedding(tokens, self.embedding).to(features.dtype))
        x = torch.cat([embedded, layer.hidden_norm(features)], dim=-1)
        positions = torch.arange(begin, begin + rows, device=x.device)
        cos, sin = rotary_tables(config.rope, config.head_dim, positions)
        queries = rotate(attention.q_proj(x).view(rows, config.heads, config.head_dim), cos, sin)
        keys = rotate(attention.k_proj(x).view(rows, config.kv_heads, config.head_dim), cos, sin)
        values = attention.v_proj(x).view(rows, config.kv_heads, config.head_dim)
        keys, values = cache.append(keys, values)
        seen = torch.arange(len(keys), device=x.device) <= positions[:, None]  # [n, rows so far]
        attended = F.scaled_dot_product_attention(
            queries.transpose(0, 1),
            keys.repeat_interleave(config.heads // config.kv_heads, dim=1).transpose(0, 1),
            values.repeat_interleave(config.heads // config.kv_heads, dim=1).transpose(0, 1),
            attn_mask=seen,
        )
        features = features + attention.o_proj(attended.transpose(0, 1).flatten(1))
        features = features + layer.mlp(layer.post_attention_layernorm(features))
        return features, self.lm_head(self.norm(features))
