"""What training says while it goes: acceptance by step and tokens a round, and the file of all numbers.

It never generates: on the target's own text it follows the rounds an engine would make with these drafts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shakedown.errors import EnvironmentProblem

USUAL_DRAFTS = 3  # what engines are usually told to draft in a round


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """`by_step[k]`: share of rows whose drafts 0…k are all the target's choice, of the rows that have k+1.

    `tokens_per_round`: of a walk with `drafts` drafts a round, the target's own token included.
    """

    by_step: tuple[float, ...]
    tokens_per_round: float
    drafts: int
    rows: int

    def line(self) -> str:
        shares = " ".join(f"{share:.2f}" for share in self.by_step)
        return (
            f"{self.tokens_per_round:.2f} tokens a round of {self.drafts} drafts, accepted by step {shares}"
        )


class Acceptances:
    """Gathers hits of many packs; sums alone, so that processes can add theirs."""

    def __init__(self, steps: int) -> None:
        self.drafts = min(USUAL_DRAFTS, steps)
        self._steps = steps
        self.sums = torch.zeros(2 * steps + 2, dtype=torch.float64)  # hit and had by step, tokens, rounds

    def add(self, depth: Tensor, hits: Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """`depth` [R]: tokens that the text still has; `hits` bool [S, R]; `rows`: first and number of loss
        rows of each document."""
        depth, leading = depth.cpu(), hits.cpu().long().cumprod(0)
        trained = depth > torch.arange(self._steps)[:, None]
        self.sums[: self._steps] += (leading * trained).sum(1)
        self.sums[self._steps : 2 * self._steps] += trained.sum(1)
        run, left = leading.sum(0).tolist(), depth.tolist()
        for first, number in rows:
            tokens, rounds = walk(run[first : first + number], left[first : first + number], self.drafts)
            self.sums[-2] += tokens
            self.sums[-1] += rounds

    def result(self) -> Acceptance:
        hit, had = self.sums[: self._steps], self.sums[self._steps : 2 * self._steps]
        return Acceptance(
            by_step=tuple((hit / had.clamp(min=1)).tolist()),
            tokens_per_round=float(self.sums[-2] / self.sums[-1].clamp(min=1)),
            drafts=self.drafts,
            rows=int(had[0]),
        )


def walk(leading: Sequence[int], depth: Sequence[int], drafts: int) -> tuple[int, int]:
    """(tokens, rounds) over one document's loss rows: a round begins where the last one ended.

    `leading`: accepted drafts of a round that began at the row; `depth`: tokens the text still has there.
    A round that the text's end may cut short, its bonus token included, is left out, as engines leave it out.
    """
    tokens = rounds = row = 0
    while row < len(leading):
        if depth[row] <= drafts:
            row += depth[row] + 1  # the next turn, or the end
            continue
        accepted = min(leading[row], drafts)
        tokens, rounds, row = tokens + accepted + 1, rounds + 1, row + accepted + 1
    return tokens, rounds


class CurveFile:
    """JSON Lines, one object an event, each with its step; of a resumed run it keeps what came before."""

    def __init__(self, folder: Path, *, resumed_at: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "curves.jsonl"
        kept = [line for line in self._lines() if json.loads(line)["step"] <= resumed_at]
        part = self.path.with_suffix(".part")
        part.write_text("".join(line + "\n" for line in kept))
        part.replace(self.path)

    def _lines(self) -> list[str]:
        """A kill may have cut the last line."""
        text = self.path.read_text() if self.path.exists() else ""
        return text.split("\n")[:-1]

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        line = json.dumps({"event": kind, "step": step, **values})
        try:
            with self.path.open("a") as file:
                file.write(line + "\n")
        except OSError as problem:
            raise EnvironmentProblem(f"{self.path} could not be written: {problem.strerror}") from None

    def settle(self) -> None:
        """All that was written is on the disk: a checkpoint that follows is not ahead of its curves."""
        with self.path.open("a") as file:
            os.fsync(file.fileno())
