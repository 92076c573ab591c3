"""`shakedown draft train`: a drafter from the target's states, alone or in every process of torchrun."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from shakedown.drafter.architecture import AUX_STATES
from shakedown.drafter.crew import Crew, joined_crew
from shakedown.drafter.manifest import read_manifest
from shakedown.drafter.material import Material, read_material
from shakedown.drafter.plan import defaults_for
from shakedown.drafter.recipe import Recipe
from shakedown.drafter.scaling import channel_scales
from shakedown.drafter.start import Start, fresh_start, warm_start
from shakedown.drafter.target import Target, find_checkpoint, read_target
from shakedown.drafter.trainer import Trainer
from shakedown.drafter.training import Outcome, Rhythm, Training
from shakedown.drafter.vocabulary import share_covered
from shakedown.errors import UsageError
from shakedown.jobs.result import ExitCode, JobResult, Talk


class Planned(Protocol):
    """What a build's plan says of this stage."""

    @property
    def start(self) -> str | None: ...
    @property
    def epochs(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def draft_vocab(self) -> int: ...
    @property
    def intermediate(self) -> int | None: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def decay(self) -> float: ...
    @property
    def teacher_temperature(self) -> float: ...
    @property
    def freeze_head(self) -> bool: ...
    @property
    def pack_rows(self) -> int: ...
    @property
    def batch_packs(self) -> int | None: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """`draft_vocab` None: that of `start`, or the usual size. `intermediate` None: the target's, or that of
    `start`. `batch_packs` None: one pack's rows, a part of it
    for each process."""

    target: str
    states: Path
    out: Path
    start: Path | None = None
    draft_vocab: int | None = None
    intermediate: int | None = None
    batch_packs: int | None = None
    recipe: Recipe = field(default_factory=Recipe)
    rhythm: Rhythm = field(default_factory=Rhythm)

    @classmethod
    def asked(
        cls,
        *,
        target: str,
        states: Path,
        out: Path,
        start: Path | None = None,
        draft_vocab: int | None = None,
        intermediate: int | None = None,
        batch_packs: int | None = None,
        evaluate_steps: int,
        checkpoint_steps: int,
        **recipe: Any,
    ) -> TrainRequest:
        """Of plain options; those not named here are the recipe's, and None is what fits the target.

        Raises UsageError for a wrong one, and for what is no target.
        """
        fitting = defaults_for(read_target(find_checkpoint(target)).hidden_size).train
        told = {name: getattr(fitting, name) if value is None else value for name, value in recipe.items()}
        return cls(
            target=target,
            states=states,
            out=out,
            start=start,
            draft_vocab=draft_vocab,
            intermediate=intermediate,
            batch_packs=batch_packs,
            recipe=Recipe(**told),
            rhythm=Rhythm(evaluate_steps=evaluate_steps, checkpoint_steps=checkpoint_steps),
        )

    @classmethod
    def of(cls, target: str, states: Path, out: Path, plan: Planned) -> TrainRequest:
        recipe = Recipe(
            steps=plan.steps,
            epochs=plan.epochs,
            learning_rate=plan.learning_rate,
            decay=plan.decay,
            teacher_temperature=plan.teacher_temperature,
            freeze_head=plan.freeze_head,
            pack_rows=plan.pack_rows,
            seed=plan.seed,
        )
        return cls(
            target=target,
            states=states,
            out=out,
            start=Path(plan.start) if plan.start else None,
            draft_vocab=plan.draft_vocab,
            intermediate=plan.intermediate,
            batch_packs=plan.batch_packs,
            recipe=recipe,
        )


def train_job(request: TrainRequest, talk: Talk) -> JobResult:
    """From the start, or from `out`'s last checkpoint. Raises UsageError, DataProblem, EnvironmentProblem."""
    with joined_crew() as crew:
        say: Callable[[str], None] = talk.say if crew.leads else _silent
        recipe = shared_out(request, crew.size)
        if crew.size == 1 and (gpus := torch.cuda.device_count()) > 1:
            say(f"one of {gpus} GPUs is used; for all: torchrun --standalone --nproc-per-node {gpus} -m …")
        target = read_target(find_checkpoint(request.target))
        refuse_other_states(request.states, target)
        material = read_material(request.states, recipe)
        scales = channel_scales((material.texts[number].aux for number in material.train), AUX_STATES)
        start = start_of(request, target, material, scales)
        say(begun(material, start, recipe))
        trainer = Trainer(start.drafter, start.vocabulary, target.head(), recipe, crew, scales)
        training = Training(trainer, material, request.out, request.rhythm, say, start.origin)
        outcome = training.run()
        return result_of(material, start, outcome, crew)


def shared_out(request: TrainRequest, processes: int) -> Recipe:
    """A batch of as many rows whatever the number of GPUs, so that a learning rate fits them all.

    Packs are asked for by who says how many make a batch; else each process takes its part of one.
    """
    recipe, packs = request.recipe, request.batch_packs
    if packs is None:
        rows = max(2, math.ceil(recipe.pack_rows / processes))
        return replace(recipe, pack_rows=rows, batch_packs=processes)
    if packs % processes:
        raise UsageError(
            f"a batch of {packs} packs does not divide among {processes} processes",
            f"give --batch-packs a multiple of {processes}",
        )
    return replace(recipe, batch_packs=packs)


def refuse_other_states(folder: Path, target: Target) -> None:
    found, facts = read_manifest(folder).target, target.facts
    for what, here, there in (
        ("layers", found.layers, facts.layers),
        ("hidden size", found.hidden_size, facts.hidden_size),
        ("vocabulary", found.vocab_size, facts.vocab_size),
    ):
        if here != there:
            raise UsageError(
                f"{folder} holds states of another model: its {what} is {here}, the target's {there}",
                f"they were extracted from {found.path}, the target is {target.path}",
            )
    if found.weights_sha256 != facts.weights_sha256:
        raise UsageError(
            f"{folder} holds states of other weights than those in {target.path}",
            f"they were extracted from {found.path}",
        )


def start_of(request: TrainRequest, target: Target, material: Material, scales: Tensor) -> Start:
    inputs = read_manifest(request.states).aux_inputs_of
    if len(inputs) != 3:
        raise UsageError(
            f"{request.states} holds {len(inputs)} states a token; an EAGLE-3 drafter reads three"
        )
    aux = (inputs[0], inputs[1], inputs[2])
    size = request.draft_vocab and min(request.draft_vocab, target.vocab_size)
    if request.start is None:
        return fresh_start(
            target,
            aux,
            material.counts,
            size,
            request.recipe.seed,
            scales,
            intermediate=request.intermediate,
        )
    start = warm_start(request.start, target, aux, material.counts, size)
    if (own := start.drafter.config.intermediate) != (request.intermediate or own):
        raise UsageError(
            f"{request.start} has an MLP of width {own}, which cannot become {request.intermediate}",
            "leave --intermediate out: it shapes a fresh drafter",
        )
    return start


def begun(material: Material, start: Start, recipe: Recipe) -> str:
    rows = sum(map(material.sizes.taught, material.train))
    covered = share_covered(material.counts, start.vocabulary)
    return (
        f"train: {len(material.train):,} documents, {rows:,} loss tokens, {len(material.held_out):,} held"
        f" out; {recipe.epochs} epochs of {recipe.steps} steps; a draft vocabulary of"
        f" {start.vocabulary.size:,} tokens covers {covered:.2%} of what the target wrote"
    )


def result_of(material: Material, start: Start, outcome: Outcome, crew: Crew) -> JobResult:
    acceptance = outcome.acceptance
    document: dict[str, Any] = {
        "schema": "shakedown/1",
        "command": "draft train",
        "verdict": None,
        "checkpoint": str(outcome.checkpoint),
        "steps": outcome.steps,
        "documents": len(material.train),
        "loss_tokens": sum(map(material.sizes.taught, material.train)),
        "draft_vocabulary": start.vocabulary.size,
        "covered": share_covered(material.counts, start.vocabulary),
        "held_out": asdict(acceptance) if acceptance else None,
        "processes": crew.size,
    }
    lines = [f"{outcome.checkpoint}: {outcome.steps:,} steps over {len(material.train):,} documents"]
    if acceptance:
        lines.append(f"  held out  {acceptance.line()}")
    lines.append(f"  curves    {outcome.checkpoint.parent / 'curves.jsonl'}")
    return JobResult(document=document, lines=lines, exit_code=ExitCode.GOOD)


def _silent(text: str) -> None:
    pass
