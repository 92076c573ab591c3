"""Did this target write these samples? Their tokens under its own distribution say so.

It never looks at a name: a tokenizer of the same size and another meaning has no wrong token ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shakedown.drafter.shards import Document
from shakedown.errors import DataProblem

ROWS = 64  # enough for a mean that is certain to a nat
SLICE = 16_384  # rows of the head at once: of 160,000 tokens' logits nothing is kept
SURPRISE_NAT = 5.0  # beyond the target's own entropy; its own text is below it, text of others 1 above


@dataclass(frozen=True, slots=True, kw_only=True)
class Surprise:
    """Means over rows in nats: `nll` of the tokens that follow, `entropy` of the target's distribution."""

    nll: float
    entropy: float
    rows: int


def surprise(documents: Sequence[Document], head: torch.Tensor) -> Surprise:
    """Of the first rows that teach; `head` is the target's [V, H]."""
    states = torch.cat([document.last for document in documents])[:ROWS].float()
    tokens = torch.cat([document.tokens[document.last_rows + 1] for document in documents])[:ROWS]
    logits = torch.cat([states @ part.float().T for part in torch.split(head, SLICE)], dim=1)
    logs = torch.log_softmax(logits, dim=1)
    return Surprise(
        nll=float(-logs.gather(1, tokens.long()[:, None]).mean()),
        entropy=float(-(logs.exp() * logs).sum(1).mean()),
        rows=len(tokens),
    )


def refuse_foreign(documents: Sequence[Document], head: torch.Tensor, place: str) -> None:
    """Raises DataProblem where chance would guess the samples' tokens better than the target does.

    SmolLM2-135M: 3.6 nats on English prose, 12.6 on the same in a vocabulary of another order, 13.9 on
    random tokens; chance is 10.8.
    """
    found = surprise(documents, head)
    chance = math.log(len(head))
    if found.rows == ROWS and found.nll > max(chance, found.entropy + SURPRISE_NAT):
        raise DataProblem(
            f"{place}: this target did not write these samples: it gives their tokens {found.nll:.1f} nats,"
            f" chance {chance:.1f}",
            "they were made with another model or another tokenizer",
        )
