"""What the target says of each loss row, once a batch: its logits in the draft vocabulary and its choice.

It never keeps logits over the whole vocabulary: they are folded into two numbers a row, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shakedown.drafter.arithmetic import summarise
from shakedown.drafter.vocabulary import DraftVocabulary
from shakedown.errors import DataProblem

CHUNK_TOKENS = 16_384  # of the vocabulary at a time: 0.5 GB of bf16 logits for 16,384 rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Of the whole vocabulary. `choice` int64 [R]: draft id of the target's most likely token, -1 where it
    cannot be drafted; `covered` [R]: the target's probability of all tokens that can be drafted."""

    choice: Tensor
    covered: Tensor

    def __len__(self) -> int:
        return len(self.choice)

    def of(self, rows: slice) -> Verdict:
        return Verdict(choice=self.choice[rows].clone(), covered=self.covered[rows].clone())

    @classmethod
    def joined(cls, parts: Sequence[Verdict], length: int) -> Verdict:
        """One after the other, then nothing draftable up to `length`."""
        missing = length - sum(map(len, parts))
        choice = F.pad(torch.cat([part.choice for part in parts]), (0, missing), value=-1)
        return cls(choice=choice, covered=F.pad(torch.cat([part.covered for part in parts]), (0, missing)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """R rows: `logits` [R, draft vocabulary], already over the temperature, their `log_sum_exp` [R], and the
    verdict."""

    logits: Tensor
    log_sum_exp: Tensor
    verdict: Verdict


class TargetHead:
    """The target's output matrix, [vocab, H], cut into the rows of the draft vocabulary and all others.

    `temperature`: of the distribution that is taught. The verdict is the target's own, at 1.
    """

    def __init__(self, head: Tensor, vocabulary: DraftVocabulary, temperature: float = 1.0) -> None:
        if len(head) != vocabulary.vocab:
            raise DataProblem(
                f"the target's head has {len(head)} tokens, the draft vocabulary maps into {vocabulary.vocab}"
            )
        inside = vocabulary.t2d.to(head.device)
        self.inside, self.outside = head[inside].contiguous(), head[~inside].contiguous()
        self.temperature = temperature

    @torch.no_grad()
    def teach(self, last: Tensor, known: Verdict | None = None) -> Teacher:
        """`last` [R, H] after the final norm. What is `known` of these rows is not found again."""
        logits = F.linear(last, self.inside)
        top, place, log_sum = summarise(logits)
        if known is None:
            known = self._judge(last, top, place, log_sum)
        if self.temperature != 1:
            _, _, log_sum = summarise(logits.div_(self.temperature))
        return Teacher(logits=logits, log_sum_exp=log_sum, verdict=known)

    def _judge(self, last: Tensor, best: Tensor, choice: Tensor, inside: Tensor) -> Verdict:
        """Goes on over the rest of the vocabulary, chunk by chunk."""
        total = inside
        for begin in range(0, len(self.outside), CHUNK_TOKENS):
            top, _, log_sum = summarise(F.linear(last, self.outside[begin : begin + CHUNK_TOKENS]))
            choice = torch.where(top > best, -1, choice)  # a tie goes to the token that can be drafted
            best, total = torch.maximum(best, top), torch.logaddexp(total, log_sum)
        return Verdict(choice=choice, covered=(inside - total).exp())
