"""Several documents in one row of fixed length, with what training needs to know of each loss row.

It never leaves out a loss row: a document with more of them than a pack has room for is trained in pieces,
each with all tokens of the document, since the rows of every piece attend to those before them.

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
TOKENS_A_ROW = 8  # of a pack at most: what they take then is less than what its loss rows take
SLACK = 1.02  # packs are not filled to the last token


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
class Piece:
    """`rows` loss rows of a document from its `first` on. The first `trained` of them are trained; the rest
    are only read, by the steps of those before them, and trained in the next piece."""

    document: int
    first: int
    rows: int
    trained: int

    @classmethod
    def whole(cls, document: int, rows: int) -> Piece:
        return cls(document=document, first=0, rows=rows, trained=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where one document lies in a pack; `skipped` of its loss rows, at its beginning, do not."""

    document: int
    skipped: int
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


def pieces_of(document: int, rows: int, room: int, steps: int) -> list[Piece]:
    """All rows of a document, as many at a time as a pack has room for. `steps`: how far a row reads on."""
    assert room > steps, f"a pack of {room} rows has no room for a row and {steps} steps"
    pieces: list[Piece] = []
    first = 0
    while rows - first > room:
        pieces.append(Piece(document=document, first=first, rows=room, trained=room - steps))
        first += room - steps
    return [*pieces, Piece(document=document, first=first, rows=rows - first, trained=rows - first)]


def pack_documents(documents: Sequence[tuple[int, Text]], shape: PackShape) -> Pack:
    """Of whole documents, each with its number. Raises DataProblem as `pack_pieces`."""
    return pack_pieces([(Piece.whole(n, len(text.last_rows)), text) for n, text in documents], shape)


def pack_pieces(pieces: Sequence[tuple[Piece, Text]], shape: PackShape, *, pinned: bool = False) -> Pack:
    """Fills a pack with these in the given order; they must fit.

    Raises DataProblem for a document whose last states are not those of its loss rows.
    """
    width, hidden = pieces[0][1].aux.shape[1], pieces[0][1].last.shape[1]
    dtype = pieces[0][1].aux.dtype

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
    for piece, document in pieces:
        span = Span(
            document=piece.document,
            skipped=piece.first,
            first_token=token,
            tokens=len(document.tokens),
            first_row=row,
            rows=piece.rows,
        )
        _place(pack, document, span, piece.trained)
        spans.append(span)
        token, row = token + span.tokens, row + span.rows
    return replace(pack, spans=tuple(spans))


def _place(pack: Pack, document: Text, at: Span, trained: int) -> None:
    rows, depth = loss_rows(document.mask)
    if not torch.equal(document.last_rows, rows):
        raise DataProblem(
            f"document {at.document}: its last states are of {len(document.last_rows)} rows,"
            f" not of the {len(rows)} rows whose next token the target wrote"
        )
    part = slice(at.skipped, at.skipped + at.rows)
    tokens = slice(at.first_token, at.first_token + at.tokens)
    places = slice(at.first_row, at.first_row + at.rows)
    pack.aux[tokens] = document.aux
    pack.next_tokens[tokens][:-1] = document.tokens[1:]
    pack.positions[tokens] = torch.arange(at.tokens)
    pack.rows[places] = rows[part] + at.first_token
    pack.first_key[places] = at.first_token
    pack.last_key[places] = (rows[part] + at.first_token).int()
    pack.depth[places] = depth[part]
    pack.depth[at.first_row + trained : places.stop] = 0
    pack.last[places] = document.last[part]


def fit_shape(tokens: Sequence[int], rows: Sequence[int], row_budget: int, longest: int) -> PackShape:
    """Room for `row_budget` loss rows and the tokens that usually come with them, or the longest text.

    Loss rows cost about thirty times the time of other tokens, and twelve times the memory: the budget is
    theirs. Texts that are nearly all prompt get fewer rows a pack instead of more tokens than `TOKENS_A_ROW`
    allows. What is free on a device decides nothing: a run that is gone on with must find the same packs.
    """
    density = max(1e-3, sum(rows) / max(1, sum(tokens)))
    usual = int(row_budget / density * SLACK)
    room = _round_up(max(min(usual, TOKENS_A_ROW * row_budget), longest))
    return PackShape(tokens=room, rows=_round_up(min(row_budget, int(room * density * SLACK) + 1)))


def plan_packs(
    tokens: Sequence[int], rows: Sequence[int], shape: PackShape, seed: int, open_packs: int = 32
) -> list[tuple[int, ...]]:
    """Numbers of what each pack gets, shuffled by `seed`: each goes into the fullest open pack with room.

    What has no loss rows is left out: it teaches nothing. Everything else is in exactly one pack.
    """
    order = [number for number in range(len(tokens)) if rows[number] > 0]
    shuffle = random.Random(seed)
    shuffle.shuffle(order)
    done: list[tuple[int, ...]] = []
    opened: list[tuple[int, int, list[int]]] = []  # tokens left, rows left, documents
    for number in order:
        need = tokens[number], rows[number]
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
