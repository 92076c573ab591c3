"""The documents of a folder of states as training takes them: their sizes, and which are held out.

It never reads a state: sizes and counts come from tokens and masks alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from torch import Tensor

from shakedown.drafter.feed import Sizes
from shakedown.drafter.recipe import Recipe
from shakedown.drafter.states import Document, States, open_states
from shakedown.drafter.vocabulary import count_generated, refuse_foreign_tokens
from shakedown.errors import DataProblem

# As much is enough to see acceptance move by a few percent: rows of one document resemble each other.
HELD_OUT_PACKS, HELD_OUT_DOCUMENTS = 2, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """`texts` by number. `fingerprint` tells these states from any others."""

    texts: Sequence[Document]
    sizes: Sizes
    train: tuple[int, ...]
    held_out: tuple[int, ...]
    counts: Tensor  # how often the target wrote each token in `train`
    fingerprint: str
    places: Sequence[str]

    def place_of(self, number: int) -> str:
        return self.places[number]


def read_material(folder: Path, recipe: Recipe) -> Material:
    """Raises DataProblem for states that are incomplete, damaged, or of tokens the target does not have."""
    texts = open_states(folder)  # checksums are compared as shards are first read, while training runs
    found = list(_tokens_and_masks(open_states(folder, verify=False)))
    if not found:
        raise DataProblem(f"{folder} holds no documents")
    vocab = texts.manifest.target.vocab_size
    for tokens, _, place in found:
        refuse_foreign_tokens(tokens, vocab, place)
    sizes = Sizes.of([mask for _, mask, _ in found])
    train, held_out = split(sizes, recipe)
    counts = count_generated(((found[n][0], found[n][1]) for n in train), vocab)
    return Material(
        texts=texts,
        sizes=sizes,
        train=train,
        held_out=held_out,
        counts=counts,
        fingerprint=fingerprint(texts),
        places=[place for _, _, place in found],
    )


def _tokens_and_masks(states: States) -> Iterator[tuple[Tensor, Tensor, str]]:
    for number, shard in enumerate(states.manifest.shards):
        tensors = states.tensors(number)
        bounds, samples = tensors["starts"].tolist(), tensors["sample"].tolist()
        for document, (begin, end) in enumerate(pairwise(bounds)):
            place = f"{states.folder / shard.file}, document {document} (sample {samples[document]})"
            yield tensors["tokens"][begin:end], tensors["mask"][begin:end], place


def split(sizes: Sizes, recipe: Recipe) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(train, held out): a share of the documents, drawn by the seed, and no more than tell."""
    numbers = list(range(len(sizes.tokens)))
    random.Random(recipe.seed).shuffle(numbers)
    wanted = min(round(recipe.held_out * len(numbers)) or (recipe.held_out > 0), len(numbers) - 1)
    chosen, rows = 0, 0
    enough = HELD_OUT_PACKS * recipe.pack_rows
    while chosen < wanted and (rows < enough or chosen < HELD_OUT_DOCUMENTS):
        rows += sizes.rows[numbers[chosen]]
        chosen += 1
    return tuple(sorted(numbers[chosen:])), tuple(sorted(numbers[:chosen]))


def fingerprint(states: States) -> str:
    digest = hashlib.sha256(states.manifest.samples_sha256.encode())
    for shard in states.manifest.shards:
        digest.update(shard.sha256.encode())
    return digest.hexdigest()
