"""How a drafter is trained: every number that decides the result, kept beside each checkpoint.

It never depends on the number of GPUs: the same recipe gives the same batches on one and on eight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shakedown.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """`pack_rows`: loss rows at a time on a device; `batch_packs`: packs of a step, on all devices, or more,
    each of fewer rows, where texts are nearly all prompt.

    `teacher_temperature` divides the target's logits for the shares that are taught, and for nothing else.
    """

    steps: int = 7
    decay: float = 0.8
    teacher_temperature: float = 1.0
    epochs: int = 5
    pack_rows: int = 16_384
    batch_packs: int = 1
    learning_rate: float = 2e-4
    warm_up: float = 0.03
    final_share: float = 0.05
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 0.5
    freeze_head: bool = False
    held_out: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"steps": 1, "epochs": 1, "pack_rows": 2, "batch_packs": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise UsageError(
                    f"{name.replace('_', ' ')} is {getattr(self, name)}: it must be at least {value}"
                )
        if not 0 <= self.held_out < 1 or not 0 < self.decay <= 1:
            raise UsageError(
                f"held out is {self.held_out}, decay is {self.decay}: shares lie between 0 and 1"
            )
        if not 0 < self.learning_rate < math.inf:
            raise UsageError(f"learning rate is {self.learning_rate}: it must be more than 0")
        if not 0 < self.teacher_temperature < math.inf:
            raise UsageError(
                f"teacher temperature is {self.teacher_temperature}: it must be more than 0",
                "1 teaches the target's own distribution; below 1 its choice stands out",
            )

    def rate(self, step: int, total: int) -> float:
        """The learning rate of optimiser step `step` of `total`: a straight rise, then a cosine."""
        rise = max(1, round(self.warm_up * total))
        if step < rise:
            return self.learning_rate * (step + 1) / rise
        through = (step - rise) / max(1, total - rise)
        low = self.final_share
        return self.learning_rate * (low + (1 - low) * (1 + math.cos(math.pi * through)) / 2)
