"""Attention of loss rows to the true keys of their document.

It never lets a row see a later one: which keys a row sees is data of the pack, first and last.

In step k a row attends to the keys of step 0 up to its own place and to one key of its own from each of the
steps 1…k. The true keys never change, so their part is one attention with one block mask for all steps;
the own part is a few dot products a row, and `arithmetic.join` joins both by their log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from shakedown.drafter.packing import MULTIPLE, Pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the rows of a pack see, ready for the device: a block mask on a GPU, spans on a CPU."""

    pack: Pack
    blocks: BlockMask | None

    @classmethod
    def of(cls, pack: Pack) -> Sight:
        return cls(pack=pack, blocks=block_mask(pack) if pack.rows.is_cuda else None)


def block_mask(pack: Pack) -> BlockMask:
    """A row sees one interval of places; so does a block of rows, but for holes between documents."""
    first, last = pack.first_key, pack.last_key
    begins = torch.arange(0, len(pack.next_tokens), MULTIPLE, device=first.device)
    touched = (first[:, None] < begins + MULTIPLE) & (last[:, None] >= begins)
    whole = (first[:, None] <= begins) & (last[:, None] >= begins + MULTIPLE - 1)
    touched = touched.view(-1, MULTIPLE, len(begins)).any(1)
    whole = whole.view(-1, MULTIPLE, len(begins)).all(1)

    def seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return (first[row] <= key) & (key <= last[row])

    partial = touched & ~whole
    return BlockMask.from_kv_blocks(
        *_listed(partial),
        *_listed(whole),
        BLOCK_SIZE=MULTIPLE,
        mask_mod=seen,
        seq_lengths=(len(first), len(pack.next_tokens)),
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks as the kernel wants them: how many a row of blocks has, and which, these first."""
    counts = blocks.sum(1, dtype=torch.int32)
    order = blocks.int().argsort(dim=1, descending=True, stable=True).int()
    return counts[None, None], order[None, None]


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, sight: Sight, scale: float
) -> tuple[Tensor, Tensor]:
    """To the true keys. `queries` [R, heads, D]; `keys`, `values` [T, key-value heads, D].

    Hands back [R, heads, D] and the log-sum-exp [R, heads] in fp32.
    """
    if sight.blocks is None:
        return _attend_by_document(queries, keys, values, sight.pack, scale)
    out, aux = _flex()(
        queries.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        block_mask=sight.blocks,
        scale=scale,
        enable_gqa=queries.shape[1] != keys.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    return out[0].transpose(0, 1), aux.lse[0].transpose(0, 1)


@cache
def _flex() -> Any:
    return torch.compile(flex_attention, dynamic=False)


def _attend_by_document(
    queries: Tensor, keys: Tensor, values: Tensor, pack: Pack, scale: float
) -> tuple[Tensor, Tensor]:
    groups = queries.shape[1] // keys.shape[1]
    outs: list[Tensor] = []
    sums: list[Tensor] = []
    for span in pack.spans:
        rows = slice(span.first_row, span.first_row + span.rows)
        places = slice(span.first_token, span.first_token + span.tokens)
        scores = (
            torch.einsum("rhd,thd->hrt", queries[rows], keys[places].repeat_interleave(groups, 1)) * scale
        )
        at = torch.arange(places.start, places.stop)
        seen = (pack.first_key[rows, None] <= at) & (at <= pack.last_key[rows, None])
        scores = scores.float().masked_fill(~seen, float("-inf"))
        shares = scores.softmax(-1).to(values.dtype)
        outs.append(torch.einsum("hrt,thd->rhd", shares, values[places].repeat_interleave(groups, 1)))
        sums.append(scores.logsumexp(-1).T)
    padding = len(queries) - sum(span.rows for span in pack.spans)
    outs.append(queries.new_zeros(padding, *queries.shape[1:]))
    sums.append(torch.zeros(padding, queries.shape[1]))
    return torch.cat(outs), torch.cat(sums)
