"""Which drafts a target's own text would accept: for every place where a round could start, draft by draft.

It never generates: as long as all drafts of a round are accepted they are the text itself, so k steps over
the whole text at once give what drafting from each start would (`tests/test_drafter_walk.py`).

The drafter's keys come from true states, but for those of the round at hand: as in an engine, which runs the
drafter again over the accepted tokens once it has their true states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from shakedown.drafter.architecture import Drafter, rms_norm
from shakedown.drafter.fast import Weights, unroll
from shakedown.drafter.packing import Pack, PackShape, Text, fit_shape, loss_rows, pack_documents
from shakedown.drafter.vocabulary import DraftVocabulary

Floats = NDArray[np.float64]
LOGITS = 1 << 26  # numbers of a matrix of logits at a time: 256 MB in fp32


class Rule(StrEnum):
    """How an engine accepts a draft.

    MATCH: it is the text's next token: greedy decoding; at a temperature exact for text sampled at it.
    PROBABILITY: with the target's probability of the drafted token: both engines' default at a temperature.
    OVERLAP: with the sum over tokens of min(target's, drafter's probability): their probabilistic modes.
    """

    MATCH = "match"
    PROBABILITY = "probability"
    OVERLAP = "overlap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """The target's part of a rule at a temperature: its head, [vocab, hidden]; neither is used by MATCH."""

    rule: Rule = Rule.MATCH
    head: Tensor | None = None
    temperature: float = 1.0


@torch.no_grad()
def accept_matrices(
    drafter: Drafter,
    vocabulary: DraftVocabulary,
    documents: Sequence[Text],
    *,
    drafts: int,
    judge: Judge | None = None,
    dtype: torch.dtype = torch.float32,
    pack_rows: int = 4096,
) -> Iterator[list[Floats]]:
    """For each document its generated stretches, each as `accept[p, j]` for `acceptance.expect.walk`.

    Row p is the p-th generated token of a stretch as the start of a round; only starts whose drafts and
    bonus all lie within the stretch have a row.
    """
    if not documents:
        return
    weights = Weights.of(drafter, dtype)
    device = drafter.fc.weight.device
    room = room_for(
        [len(text.tokens) for text in documents], [len(text.last_rows) for text in documents], pack_rows
    )
    for batch in _batches(documents, room):
        shape = room if device.type == "cuda" else _exact(batch)
        pack = pack_documents(list(enumerate(batch)), shape).to(device, dtype)
        accepted = _judged(drafter, weights, vocabulary, pack, drafts, judge or Judge()).cpu()
        for text, span in zip(batch, pack.spans, strict=True):
            of_text = accepted[:, span.first_row : span.first_row + span.rows].T
            yield _stretches(text.mask, of_text, drafts)


def room_for(tokens: Sequence[int], rows: Sequence[int], pack_rows: int) -> PackShape:
    """Of `accept_matrices`' packs: each document whole, whatever its rows.

    Powers of two, so that a job whose documents come some at a time has few shapes: a GPU's attention is
    compiled for each, and after eight of them no more.
    """
    room = fit_shape(tokens, rows, max([pack_rows, *rows]), max(tokens))
    return PackShape(tokens=_power_of_two(room.tokens), rows=_power_of_two(max([room.rows, *rows])))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _batches(documents: Sequence[Text], room: PackShape) -> Iterator[list[Text]]:
    batch: list[Text] = []
    for document in documents:
        taken = _exact([*batch, document])
        if batch and (taken.rows > room.rows or taken.tokens > room.tokens):
            yield batch
            batch = []
        batch.append(document)
    if batch:
        yield batch


def _exact(batch: Sequence[Text]) -> PackShape:
    rows = sum(len(text.last_rows) for text in batch)
    return PackShape(tokens=sum(len(text.tokens) for text in batch), rows=max(1, rows))


def _judged(
    drafter: Drafter,
    weights: Weights,
    vocabulary: DraftVocabulary,
    pack: Pack,
    drafts: int,
    judge: Judge,
) -> Tensor:
    """[drafts, R] in fp64: of each loss row as the row before a round's start, draft by draft."""
    features = unroll(drafter.config, weights, drafter.embedding, pack, drafts)
    normed = rms_norm(features, weights.norm, drafter.config.rms_eps)
    count = len(pack.rows)
    ids = vocabulary.target_ids.to(normed.device)
    accepted = torch.zeros(drafts, count, dtype=torch.float64, device=normed.device)
    at_a_time = max(1, LOGITS // max(vocabulary.size, vocabulary.vocab))
    for step in range(drafts):
        # what step k of row r drafts is judged k + 1 loss rows on; past a stretch's end nothing is kept
        lessons = (torch.arange(count, device=normed.device) + step + 1).clamp(max=count - 1)
        for begin in range(0, count, at_a_time):
            part = slice(begin, begin + at_a_time)
            logits = F.linear(normed[step, part], weights.head)
            accepted[step, part] = _accepted(logits, ids, pack, lessons[part], judge).double()
    return accepted


def _accepted(logits: Tensor, ids: Tensor, pack: Pack, lessons: Tensor, judge: Judge) -> Tensor:
    """Of draft `logits` [n, draft vocabulary], judged at the loss rows `lessons` [n]."""
    drafted = ids[logits.argmax(-1)]
    if judge.rule is Rule.MATCH:
        return drafted == pack.next_tokens[pack.rows[lessons]]
    assert judge.head is not None, f"{judge.rule} needs the target's head"
    wanted = F.linear(pack.last[lessons], judge.head.to(pack.last.dtype)).float()
    target = (wanted / judge.temperature).softmax(-1)
    if judge.rule is Rule.PROBABILITY:
        return target.gather(1, drafted[:, None])[:, 0]
    own = (logits.float() / judge.temperature).softmax(-1)
    return torch.minimum(own, target[:, ids]).sum(-1)


def _stretches(mask: Tensor, accepted: Tensor, drafts: int) -> list[Floats]:
    """Cuts a document's rows [R, drafts] into its generated stretches, full starts only."""
    rows, depth = loss_rows(mask)
    full = depth > drafts
    firsts = torch.cat([torch.ones(1, dtype=torch.bool), rows.diff() > 1])[: len(rows)]
    stretch = firsts.cumsum(0)
    return [accepted[full & (stretch == number)].numpy() for number in range(1, int(firsts.sum()) + 1)]
