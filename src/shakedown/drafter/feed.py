"""Packs in the order of the recipe, each gathered while the one before it is trained on.

It never depends on what ran before: a step's packs follow from the seed, the epoch and the step alone, so a
resumed run sees what an uninterrupted one would have seen.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from shakedown.drafter.packing import (
    Pack,
    PackShape,
    Piece,
    Text,
    fit_shape,
    loss_rows,
    pack_pieces,
    pieces_of,
    plan_packs,
)
from shakedown.drafter.recipe import Recipe
from shakedown.errors import DataProblem

AHEAD, THREADS = 3, 2  # packs in memory beside the one in use, and gathered at a time
Packed = tuple[Piece, ...]  # what is in one pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens and loss rows of each document, by number."""

    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]  # loss rows that have nothing to draft: the last of each answer

    @classmethod
    def of(cls, masks: Sequence[torch.Tensor]) -> Sizes:
        found = [loss_rows(mask) for mask in masks]
        return cls(
            tokens=tuple(len(mask) for mask in masks),
            rows=tuple(len(rows) for rows, _ in found),
            ends=tuple(tuple((depth == 0).nonzero().flatten().tolist()) for _, depth in found),
        )

    def taught(self, document: int) -> int:
        """Loss rows of a document that are trained at all."""
        return self.rows[document] - len(self.ends[document])

    def taught_in(self, piece: Piece) -> int:
        ends, last = self.ends[piece.document], piece.first + piece.trained
        return piece.trained - (bisect_left(ends, last) - bisect_left(ends, piece.first))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """What is in each pack of each optimiser step. `batches[step]` are its packs, of all processes."""

    shape: PackShape
    batches: tuple[tuple[Packed, ...], ...]
    steps_per_epoch: tuple[int, ...]
    sizes: Sizes

    def rows_taught(self, step: int) -> int:
        """Loss rows of the whole batch: what its loss is divided by."""
        return sum(self.sizes.taught_in(piece) for pack in self.batches[step] for piece in pack)


def plan(sizes: Sizes, documents: Sequence[int], recipe: Recipe) -> Curriculum:
    """All epochs over `documents`. Raises DataProblem where none has a row to train.

    Where the shape of a pack has fewer rows than the recipe says, a batch has as many more packs.
    """
    useful = [number for number in documents if sizes.taught(number)]
    if not useful:
        raise DataProblem(
            f"none of {len(documents)} documents has two generated tokens in a row: nothing can be trained"
        )
    tokens, rows = ([values[n] for n in useful] for values in (sizes.tokens, sizes.rows))
    shape = fit_shape(tokens, rows, recipe.pack_rows, max(sizes.tokens))
    together = recipe.batch_packs * math.ceil(recipe.pack_rows / shape.rows)
    batches: list[tuple[Packed, ...]] = []
    per_epoch: list[int] = []
    for epoch in range(recipe.epochs):
        packs = packs_for(sizes, useful, shape, recipe.steps, recipe.seed * 1_000_003 + epoch)
        grouped = [packs[at : at + together] for at in range(0, len(packs), together)]
        batches += grouped
        per_epoch.append(len(grouped))
    return Curriculum(shape=shape, batches=tuple(batches), steps_per_epoch=tuple(per_epoch), sizes=sizes)


def packs_for(
    sizes: Sizes, documents: Sequence[int], shape: PackShape, steps: int, seed: int
) -> tuple[Packed, ...]:
    """These documents once, those that are too long in pieces."""
    pieces = [piece for n in documents for piece in pieces_of(n, sizes.rows[n], shape.rows, steps)]
    tokens, rows = [sizes.tokens[piece.document] for piece in pieces], [piece.rows for piece in pieces]
    return tuple(tuple(pieces[n] for n in pack) for pack in plan_packs(tokens, rows, shape, seed))


def packs_of(
    texts: Sequence[Any],
    packs: Sequence[Packed],
    shape: PackShape,
    device: torch.device,
    place_of: Callable[[int], str],
) -> Iterator[Pack]:
    """Each pack of `packs` on `device`, in order, gathered from mapped texts by threads that run ahead.

    Raises DataProblem for states that are not finite, at the place of their document.
    """
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def gather(pieces: Packed) -> Pack:
        documents: list[tuple[Piece, Text]] = [(piece, texts[piece.document]) for piece in pieces]
        if stream is None:
            pack = pack_pieces(documents, shape)
            refuse_broken(pack, place_of)
            return pack
        with torch.cuda.stream(stream):  # beside the stream that trains: it waits for no copy and no look
            pack = pack_pieces(documents, shape, pinned=True).to(device)
            refuse_broken(pack, place_of)
            stream.synchronize()
        return pack

    for pack in _ahead(gather, packs):
        if stream is not None:
            pack.used_on(torch.cuda.current_stream(device))
        yield pack


def _ahead(gather: Callable[[Packed], Pack], packs: Sequence[Packed]) -> Iterator[Pack]:
    with ThreadPoolExecutor(THREADS, thread_name_prefix="packs") as pool:
        waiting: list[Future[Pack]] = []
        rest = iter(packs)
        try:
            while True:
                waiting += [pool.submit(gather, pack) for pack in islice(rest, AHEAD - len(waiting))]
                if not waiting:
                    return
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()


def refuse_broken(pack: Pack, place_of: Callable[[int], str]) -> None:
    """States that are not finite are an error with its place; they would turn every weight into NaN."""
    finite = torch.isfinite(pack.aux).all() & torch.isfinite(pack.last).all()
    if bool(finite):
        return
    for span in pack.spans:
        places = slice(span.first_token, span.first_token + span.tokens)
        rows = slice(span.first_row, span.first_row + span.rows)
        for what, part, first in (("aux", pack.aux[places], 0), ("last", pack.last[rows], span.skipped)):
            broken = (~torch.isfinite(part)).any(1).nonzero().flatten()
            if len(broken):
                raise DataProblem(
                    f"{place_of(span.document)}: {what} row {first + int(broken[0])} is not finite"
                    f" ({len(broken)} of its {len(part)} rows)",
                    "the capture went wrong there: remove that shard and extract its samples again",
                )
