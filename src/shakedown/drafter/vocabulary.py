"""The draft vocabulary: the tokens a drafter can propose, as the two maps that the engines read.

It never reorders: draft ids ascend with the target's ids, so the offsets never fall.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from shakedown.errors import DataProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVocabulary:
    """`d2t` int64 [draft vocabulary]: target id less draft id; `vocab`: the target's number of tokens."""

    d2t: Tensor
    vocab: int

    def __post_init__(self) -> None:
        ids = self.target_ids
        if not 0 < len(ids) <= self.vocab:
            raise DataProblem(f"a draft vocabulary of {len(ids)} tokens does not fit into {self.vocab}")
        if int(ids[0]) < 0 or int(ids[-1]) >= self.vocab or bool((ids.diff() <= 0).any()):
            raise DataProblem(
                f"d2t maps {len(ids)} draft ids onto target ids {int(ids.min())} to {int(ids.max())}"
                f" of {self.vocab}, not onto ascending ids of the target",
                "d2t holds offsets: target id = draft id + d2t[draft id]",
            )

    @property
    def size(self) -> int:
        return len(self.d2t)

    @property
    def target_ids(self) -> Tensor:
        """int64 [draft vocabulary], ascending."""
        return torch.arange(len(self.d2t)) + self.d2t

    @property
    def t2d(self) -> Tensor:
        """bool [vocab]: whether the token can be drafted."""
        inside = torch.zeros(self.vocab, dtype=torch.bool)
        inside[self.target_ids] = True
        return inside


def count_generated(texts: Iterable[tuple[Tensor, Tensor]], vocab: int) -> Tensor:
    """How often the target wrote each token, int64 [vocab], from (tokens, mask) of each document."""
    counts = torch.zeros(vocab, dtype=torch.int64)
    for tokens, mask in texts:
        counts += torch.bincount(tokens[mask.bool()].long(), minlength=vocab)
    return counts


def refuse_foreign_tokens(tokens: Tensor, vocab: int, what: str) -> None:
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
        raise DataProblem(
            f"{what} holds tokens {int(tokens.min())} to {int(tokens.max())}, the target has {vocab}",
            "the samples were made with another tokenizer or another target",
        )


def choose_vocabulary(counts: Tensor, size: int) -> DraftVocabulary:
    """The `size` most frequent tokens; among equals, and where too few occur, those of lowest id."""
    vocab = len(counts)
    if size > vocab:
        raise DataProblem(f"a draft vocabulary of {size} is larger than the target's {vocab} tokens")
    chosen = torch.sort(counts, descending=True, stable=True).indices[:size].sort().values
    return DraftVocabulary(d2t=chosen - torch.arange(size), vocab=vocab)


def share_covered(counts: Tensor, vocabulary: DraftVocabulary) -> float:
    """Share of what the target wrote that can be drafted at all: the ceiling of the first acceptance."""
    return float(counts[vocabulary.target_ids].sum() / counts.sum().clamp(min=1))


def carry_head(head: Tensor, old: DraftVocabulary, new: DraftVocabulary, target_head: Tensor) -> Tensor:
    """A trained head on another draft vocabulary: known tokens keep their rows, others get the target's.

    `head` [old size, hidden], `target_head` [vocab, hidden] -> [new size, hidden].
    """
    rows = target_head[new.target_ids].to(head.dtype)
    place = torch.full((old.vocab,), -1)
    place[old.target_ids] = torch.arange(old.size)
    found = place[new.target_ids]
    rows[found >= 0] = head[found[found >= 0]]
    return rows
