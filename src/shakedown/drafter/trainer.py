"""A drafter with its target's head and its optimiser on one device: learning from packs, and being judged.

It never chooses a pack, and never touches the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from shakedown.drafter.architecture import Drafter
from shakedown.drafter.crew import Crew
from shakedown.drafter.curves import Acceptance, Acceptances
from shakedown.drafter.fast import Lesson, learn
from shakedown.drafter.optimiser import Optimiser
from shakedown.drafter.packing import Pack
from shakedown.drafter.recipe import Recipe
from shakedown.drafter.teacher import TargetHead, Teacher, Verdict
from shakedown.drafter.vocabulary import DraftVocabulary

FC = "fc.weight"


class Trainer:
    """Weights and moments in fp32; the arithmetic in bf16 on a GPU, in fp32 on a CPU."""

    def __init__(
        self,
        drafter: Drafter,
        vocabulary: DraftVocabulary,
        target_head: Tensor,
        recipe: Recipe,
        crew: Crew,
        scales: Tensor | None = None,
    ) -> None:
        """`scales` [3 x target hidden], powers of two: what the captured states are divided by, and `fc` is
        multiplied with, while it is trained."""
        self.recipe, self.crew, self.vocabulary = recipe, crew, vocabulary
        self.dtype = torch.bfloat16 if crew.device.type == "cuda" else torch.float32
        self.drafter = drafter.float().to(crew.device)
        self.scales = torch.ones(self.drafter.fc.in_features, device=crew.device)
        self.restore(self.drafter.state_dict(), self.scales if scales is None else scales)
        self.drafter.embedding = self.drafter.embedding.to(self.dtype)
        self.drafter.lm_head.weight.requires_grad_(not recipe.freeze_head)
        self.optimiser = Optimiser(self.drafter, recipe)
        self._verdicts: dict[tuple[int, int], Verdict] = {}  # by piece of a document, 16 bytes a loss row
        head = target_head.to(crew.device, self.dtype)
        self._head = TargetHead(head, vocabulary, recipe.teacher_temperature)

    def learn(self, packs: Iterable[Pack], rows: int) -> Tensor:
        """Adds the gradients of this process's packs of a batch with `rows` loss rows in all.

        Hands back what `summed` makes of all processes' packs, on the device: nobody has waited for it.
        """
        sums = torch.zeros(2 + 4 * self.recipe.steps, dtype=torch.float64, device=self.crew.device)
        for pack in packs:
            lesson = self._lesson(pack, rows)
            lesson.total.backward()  # type: ignore[no-untyped-call]
            sums += summed(lesson)
        return self.crew.add_up(sums)

    def weights(self) -> dict[str, Tensor]:
        """The drafter's, as an engine multiplies them with states of any size."""
        found: dict[str, Tensor] = self.drafter.state_dict()
        return {**found, FC: found[FC] / self.scales}

    def restore(self, weights: Mapping[str, Tensor], scales: Tensor) -> None:
        """What `weights` gave, to be trained with these scales."""
        self.scales = scales.to(self.crew.device)
        self.drafter.load_state_dict({**weights, FC: weights[FC].to(self.crew.device) * self.scales})

    @torch.no_grad()
    def evaluate(self, packs: Iterable[Pack]) -> Acceptance:
        """Over this process's packs and all others'."""
        found = Acceptances(self.recipe.steps)
        for pack in packs:
            lesson = self._lesson(pack, 1)
            found.add(pack.depth, lesson.hits, [(span.first_row, span.rows) for span in pack.spans])
        found.sums = self.crew.add_up(found.sums.to(self.crew.device)).cpu()
        return found.result()

    def _lesson(self, pack: Pack, rows: int) -> Lesson:
        pack = pack.to(self.crew.device, self.dtype)
        pack = replace(pack, aux=pack.aux / self.scales.to(self.dtype))
        teacher, recipe = self._teach(pack), self.recipe
        return learn(self.drafter, pack, teacher, steps=recipe.steps, decay=recipe.decay, rows=rows)

    def _teach(self, pack: Pack) -> Teacher:
        """The target's choice over the whole vocabulary never changes: the first epoch alone finds it."""
        parts = [self._verdicts.get((span.document, span.skipped)) for span in pack.spans]
        known = [
            part for part, span in zip(parts, pack.spans, strict=True) if part and len(part) == span.rows
        ]
        if len(known) == len(pack.spans):
            return self._head.teach(pack.last, Verdict.joined(known, len(pack.rows)))
        teacher = self._head.teach(pack.last)
        for span in pack.spans:
            rows = slice(span.first_row, span.first_row + span.rows)
            self._verdicts[span.document, span.skipped] = teacher.verdict.of(rows)
        return teacher


def summed(lesson: Lesson) -> Tensor:
    """[2 + 4S] in fp64, so that processes exchange a batch's numbers in one call: see `told`."""
    once = torch.stack([lesson.total.detach(), lesson.covered])
    by_step = (lesson.losses, lesson.taught, lesson.hits.sum(1), lesson.trained.sum(1))
    return torch.cat([once.double(), *(row.double() for row in by_step)])


def told(sums: Tensor) -> dict[str, Any]:
    """`loss`: what is minimised. By step: the mean cross-entropy, and the share of rows drafted right.

    `covered`: the target's mean probability of the draft vocabulary, a ceiling for acceptance.
    """
    losses, taught, hits, trained = sums[2:].view(4, -1)
    return {
        "loss": float(sums[0]),
        "loss_by_step": (losses / taught.clamp(min=1)).tolist(),
        "right_by_step": (hits / trained.clamp(min=1)).tolist(),
        "covered": float(sums[1] / trained[0].clamp(min=1)),
        "loss_rows": int(trained[0]),
    }
