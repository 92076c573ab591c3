"""The training loop: batches in the recipe's order, curves as it goes, a checkpoint to go on from.

It never decides what to train on or from what: a job hands it the trainer and the texts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shakedown.drafter.checkpoint import (
    Checkpoint,
    checkpoint_path,
    last_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from shakedown.drafter.curves import Acceptance, CurveFile
from shakedown.drafter.feed import Packed, packs_for, packs_of, plan
from shakedown.drafter.material import Material
from shakedown.drafter.packing import Pack
from shakedown.drafter.provenance import provenance
from shakedown.drafter.trainer import Trainer, told
from shakedown.errors import DataProblem, UsageError

SAY_EVERY_S = 10.0
READ_EVERY = 16  # steps
SCALES = "scales"  # beside the optimiser's moments, which are those of a scaled `fc`


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often to look and to save, in optimiser steps: without influence on the result."""

    evaluate_steps: int = 100
    checkpoint_steps: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    checkpoint: Path
    steps: int
    acceptance: Acceptance | None  # of the last look at held-out text


class Training:
    """One run of a recipe in the folder `out`, begun or gone on with."""

    def __init__(
        self,
        trainer: Trainer,
        material: Material,
        out: Path,
        rhythm: Rhythm,
        say: Callable[[str], None],
        origin: str = "",
    ) -> None:
        """`origin`: what tells the weights that it begins with from others."""
        self._trainer, self._material, self._out, self._rhythm = trainer, material, out, rhythm
        self._say = say if trainer.crew.leads else _silent
        self._plan = plan(material.sizes, material.train, trainer.recipe)
        self._epoch_ends = frozenset(accumulate(self._plan.steps_per_epoch))
        self._total = len(self._plan.batches)
        self._origin = origin
        self._begin = resume(trainer, material, out, origin)
        self._curves = CurveFile(out, resumed_at=self._begin) if trainer.crew.leads else None
        self._clock = _Clock(self._total, self._begin)
        self._acceptance: Acceptance | None = None
        self._unread: list[tuple[int, Tensor]] = []  # of each step its gradient's norm and its sums

    def run(self) -> Outcome:
        if self._begin:
            self._say(f"goes on after step {self._begin} of {self._total}")
        feed = self._packs()
        for number in range(self._begin, self._total):
            self._step(number, feed)
            done = number + 1
            if done % self._rhythm.evaluate_steps == 0 or done in self._epoch_ends:
                self._look(done)
            if done % self._rhythm.checkpoint_steps == 0 or done in self._epoch_ends:
                self._save(done)
        if self._acceptance is None:  # a kill came between the last checkpoint and this answer
            self._look(self._total)
        path = checkpoint_path(self._out, self._total)
        return Outcome(checkpoint=path, steps=self._total, acceptance=self._acceptance)

    @property
    def _held_out(self) -> tuple[Packed, ...]:
        held_out, steps = self._material.held_out, self._trainer.recipe.steps
        return packs_for(self._material.sizes, held_out, self._plan.shape, steps, seed=0)

    def _packs(self) -> Iterator[Pack]:
        crew = self._trainer.crew
        mine = [pack for batch in self._plan.batches[self._begin :] for pack in crew.share(batch)]
        return packs_of(self._material.texts, mine, self._plan.shape, crew.device, self._material.place_of)

    def _step(self, number: int, feed: Iterator[Pack]) -> None:
        trainer, rows = self._trainer, self._plan.rows_taught(number)
        turn = islice(feed, len(trainer.crew.share(self._plan.batches[number])))
        sums = trainer.learn(turn, rows)
        norm = trainer.optimiser.step(number, self._total)
        self._unread.append((number, torch.cat([norm.double()[None], sums])))
        self._clock.tick(rows)
        if len(self._unread) == READ_EVERY or self._clock.is_due(number + 1):
            self._read()

    def _read(self) -> None:
        """What the last steps came to. Each reading waits for the device, so they are read together."""
        unread, self._unread = self._unread, []
        if not unread:
            return
        for (number, _), (norm, *sums) in zip(
            unread, torch.stack([each for _, each in unread]).tolist(), strict=True
        ):
            values = told(torch.tensor(sums, dtype=torch.float64))
            self._refuse_diverged(number, values["loss"], norm)
            if self._curves:
                rate = self._trainer.recipe.rate(number, self._total)
                speed = {"rows_per_s": round(self._clock.rows_per_s, 1)}
                rest = {"gradient_norm": norm, "learning_rate": rate, **speed}
                self._curves.write("step", number + 1, {**values, **rest})
        if self._clock.is_due(number + 1):
            self._say(self._clock.line(number + 1, values))

    def _refuse_diverged(self, number: int, loss: float, norm: float) -> None:
        rate = self._trainer.recipe.learning_rate
        for what, value in (("loss", loss), ("gradient's norm", norm)):
            if not math.isfinite(value):
                raise DataProblem(
                    f"the {what} of step {number + 1} is {value}, of finite states: the training diverged",
                    f"give a lower learning rate than {rate}, and another --out",
                )

    def _look(self, done: int) -> None:
        """At the held-out texts, every process at its share."""
        self._read()
        if not self._material.held_out:
            return
        crew, shape = self._trainer.crew, self._plan.shape
        packs = crew.share(self._held_out)
        feed = packs_of(self._material.texts, packs, shape, crew.device, self._material.place_of)
        self._acceptance = self._trainer.evaluate(feed)
        if self._curves:
            self._curves.write("held_out", done, asdict(self._acceptance))
        self._say(f"step {done}: held out, {self._acceptance.line()}")
        self._clock.pause()

    def _save(self, done: int) -> None:
        self._read()
        if self._curves:
            self._curves.settle()
        if self._trainer.crew.leads:
            save_checkpoint(self._out, checkpoint_of(self._trainer, self._material, done, self._origin))
        self._clock.pause()


def checkpoint_of(trainer: Trainer, material: Material, step: int, origin: str) -> Checkpoint:
    about = {"states": material.fingerprint, "start": origin, "processes": trainer.crew.size}
    return Checkpoint(
        step=step,
        config=trainer.drafter.config,
        recipe=trainer.recipe,
        weights=trainer.weights(),
        moments={**trainer.optimiser.state(), SCALES: trainer.scales},
        d2t=trainer.vocabulary.d2t,
        provenance={**provenance(), **about},
    )


def resume(trainer: Trainer, material: Material, out: Path, origin: str) -> int:
    """Puts the last checkpoint of `out` into the trainer; hands back its step, 0 where there is none.

    Raises UsageError where it belongs to another training.
    """
    path = last_checkpoint(out)
    if path is None:
        return 0
    found = load_checkpoint(path)
    other = [name for name, here, there in _compared(trainer, material, origin, found) if here != there]
    if other:
        raise UsageError(
            f"{path} is of another training: {', '.join(other)} differ",
            "give another --out, or the same options as before to go on with it",
        )
    trainer.restore(found.weights, found.moments.get(SCALES, torch.ones_like(trainer.scales)))
    trainer.optimiser.restore(found.moments, found.step)
    return found.step


def _compared(
    trainer: Trainer, material: Material, origin: str, found: Checkpoint
) -> Iterator[tuple[str, Any, Any]]:
    here, there = asdict(trainer.recipe), asdict(found.recipe)
    yield from ((name.replace("_", " "), here[name], there[name]) for name in here)
    yield "the drafter's shape", trainer.drafter.config, found.config
    yield "the draft vocabulary", trainer.vocabulary.d2t.tolist(), found.d2t.tolist()
    yield "the states", material.fingerprint, found.provenance.get("states")
    yield "the drafter it began with", origin, found.provenance.get("start", origin)


class _Clock:
    """Speed over the time spent in steps, and when to say something."""

    def __init__(self, total: int, begin: int) -> None:
        self._total, self._begin = total, begin
        self._last_s = self._said_s = time.monotonic()
        self._spent_s, self._rows, self._steps = 0.0, 0, 0

    def tick(self, rows: int) -> None:
        now_s = time.monotonic()
        if self._steps:  # the first step compiles
            self._spent_s, self._rows = self._spent_s + now_s - self._last_s, self._rows + rows
        self._last_s, self._steps = now_s, self._steps + 1

    def pause(self) -> None:
        self._last_s = time.monotonic()

    @property
    def rows_per_s(self) -> float:
        return self._rows / self._spent_s if self._spent_s else 0.0

    def is_due(self, step: int) -> bool:
        return step in (self._begin + 1, self._total) or self._last_s - self._said_s >= SAY_EVERY_S

    def line(self, step: int, values: dict[str, Any]) -> str:
        self._said_s = self._last_s
        left_s = (self._total - step) * self._spent_s / max(1, self._steps - 1)
        right = " ".join(f"{share:.2f}" for share in values["right_by_step"])
        return (
            f"step {step}/{self._total}  loss {values['loss']:.3f}  right by step {right}"
            f"  {self.rows_per_s:,.0f} loss tokens/s  {left_s / 60:.0f} min left"
        )


def _silent(text: str) -> None:
    pass
