"""Several documents in one row of fixed length, with what training needs to know of each loss row.

It never splits a document over two packs: of one with too many loss rows the last ones are left out.

A loss row is a row whose next token the target wrote. Every tensor of loss rows has the same order, text
order, so what step k reads, the token k places on, lies k entries further along: no step needs an index.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from shakedown.errors import DataProblem

MULTIPLE = 128  # the block of the attention mask


class Text(Protocol):
    """What packing reads of a document of states; shapes as in `states.Document`."""

    @property
    def tokens(self) -> Tensor: ...
    @property
    def mask(self) -> Tensor: ...
    @property
    def aux(self) -> Tensor: ...
    @property
    def last(self) -> Tensor: ...
    @property
    def last_rows(self) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PackShape:
    """Room of a pack: tokens of all documents, and loss rows among them."""

    tokens: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where one document lies in a pack."""

    document: int
    first_token: int
    tokens: int
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """T tokens and R loss rows, both padded; H is the target's hidden size.

    `aux` [T, 3H]; `next_tokens` [T], 0 after a document's last; `positions` [T], from 0 in each document;
    `rows` [R], their places among T; `first_key` and `last_key` [R], the places that the row attends to,
    both included; `depth` [R], at how many steps the row is trained (0 for padding); `last` [R, H].
    """

    aux: Tensor
    next_tokens: Tensor
    positions: Tensor
    rows: Tensor
    first_key: Tensor
    last_key: Tensor
    depth: Tensor
    last: Tensor
    spans: tuple[Span, ...]

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Pack:
        """States in `dtype`, where one is given. Copies from pinned memory do not wait."""
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in self._tensors().items()}
        if dtype is not None:
            moved = {n: t.to(dtype) if t.is_floating_point() else t for n, t in moved.items()}
        return replace(self, **moved)

    def used_on(self, stream: torch.cuda.Stream) -> None:
        """Made on another stream: its memory is not given away before this one has used it."""
        for tensor in self._tensors().values():
            tensor.record_stream(stream)

    def _tensors(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "spans"}


def loss_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose next token was generated, and at how many steps each is trained, both int64.

    Row i is trained at step k where tokens i+1 … i+2+k were all generated: that is where an engine drafts,
    the first draft after the prompt and the end marker included.
    """
    generated = mask.bool()
    rows = generated[1:].nonzero().flatten()
    places = torch.arange(len(mask) + 1)
    ends = places.masked_fill(torch.cat([generated, generated.new_zeros(1)]), len(mask))
    run_end = (
        ends.flip(0).cummin(0).values.flip(0)
    )  # the first token at or after a place that was not generated
    return rows, run_end[rows + 1] - rows - 2


def pack_documents(documents: Sequence[tuple[int, Text]], shape: PackShape, *, pinned: bool = False) -> Pack:
    """Fills a pack with (number, document) in the given order; what does not fit of the last one is left out.

    Raises DataProblem for a document whose last states are not those of its loss rows.
    """
    width, hidden = documents[0][1].aux.shape[1], documents[0][1].last.shape[1]
    dtype = documents[0][1].aux.dtype

    def room(*sizes: int, kind: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(sizes, dtype=kind, pin_memory=pinned)

    pack = Pack(
        aux=room(shape.tokens, width, kind=dtype),
        next_tokens=room(shape.tokens),
        positions=room(shape.tokens),
        rows=room(shape.rows),
        first_key=room(shape.rows, kind=torch.int32),
        last_key=room(shape.rows, kind=torch.int32),
        depth=room(shape.rows),
        last=room(shape.rows, hidden, kind=dtype),
        spans=(),
    )
    spans: list[Span] = []
    token = row = 0
    for number, document in documents:
        span = _place(
            pack, document, Span(document=number, first_token=token, tokens=0, first_row=row, rows=0)
        )
        spans.append(span)
        token, row = token + span.tokens, row + span.rows
    return replace(pack, spans=tuple(spans))


def _place(pack: Pack, document: Text, at: Span) -> Span:
    length = min(len(document.tokens), len(pack.next_tokens) - at.first_token)
    rows, depth = loss_rows(document.mask[:length])
    room = len(pack.rows) - at.first_row
    rows, depth = rows[:room], depth[:room].clamp(max=room - 1 - torch.arange(min(room, len(rows))))
    if not torch.equal(document.last_rows[: len(rows)], rows):
        raise DataProblem(
            f"document {at.document}: its last states are of {len(document.last_rows)} rows,"
            f" not of the {len(rows)} rows whose next token the target wrote"
        )
    tokens = slice(at.first_token, at.first_token + length)
    places = slice(at.first_row, at.first_row + len(rows))
    pack.aux[tokens] = document.aux[:length]
    pack.next_tokens[tokens][:-1] = document.tokens[1:length]
    pack.positions[tokens] = torch.arange(length)
    pack.rows[places] = rows + at.first_token
    pack.first_key[places] = at.first_token
    pack.last_key[places] = (rows + at.first_token).int()
    pack.depth[places] = depth
    pack.last[places] = document.last[: len(rows)]
    return replace(at, tokens=length, rows=len(rows))


def fit_shape(tokens: Sequence[int], rows: Sequence[int], row_budget: int) -> PackShape:
    """Room for `row_budget` loss rows and the tokens that usually come with them, or the longest text.

    Loss rows cost about thirty times what other tokens cost, in time and in memory: the budget is theirs.
    """
    density = max(1e-3, sum(rows) / max(1, sum(tokens)))
    usual = int(row_budget / density * 1.02)
    return PackShape(tokens=_round_up(max(usual, *tokens)), rows=_round_up(row_budget))


def plan_packs(
    tokens: Sequence[int], rows: Sequence[int], shape: PackShape, seed: int, open_packs: int = 32
) -> list[tuple[int, ...]]:
    """Documents of each pack, shuffled by `seed`: each goes into the fullest open pack that has room.

    Documents without loss rows are left out: they teach nothing. Every other one is in exactly one pack.
    """
    order = [number for number in range(len(tokens)) if rows[number] > 0]
    shuffle = random.Random(seed)
    shuffle.shuffle(order)
    done: list[tuple[int, ...]] = []
    opened: list[tuple[int, int, list[int]]] = []  # tokens left, rows left, documents
    for number in order:
        need = min(tokens[number], shape.tokens), min(rows[number], shape.rows)
        fits = [o for o in opened if o[0] >= need[0] and o[1] >= need[1]]
        best = min(fits, default=(shape.tokens, shape.rows, []), key=lambda pack: pack[1])
        if fits:
            opened.remove(best)
        opened.append((best[0] - need[0], best[1] - need[1], [*best[2], number]))
        if len(opened) > open_packs:
            fullest = min(opened, key=lambda pack: pack[1])
            opened.remove(fullest)
            done.append(tuple(fullest[2]))
    done += [tuple(pack[2]) for pack in opened]
    shuffle.shuffle(done)
    return done


def _round_up(number: int) -> int:
    return -(-number // MULTIPLE) * MULTIPLE
