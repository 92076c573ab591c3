"""Training's state on disk, whole or not at all, with the recipe and the versions that made it.

It never removes the last whole checkpoint before the next one is whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from shakedown.drafter.architecture import DrafterConfig
from shakedown.drafter.recipe import Recipe
from shakedown.drafter.rotary import Rope
from shakedown.errors import DataProblem, EnvironmentProblem

SCHEMA = "shakedown-drafter-checkpoint/1"
FOLDER = re.compile(r"step-(\d{8})")
KEPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """After `step` optimiser steps. `weights`: fp32, under the engines' names; `d2t` int64 offsets."""

    step: int
    config: DrafterConfig
    recipe: Recipe
    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]
    d2t: Tensor
    provenance: Mapping[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Writes `folder`/step-…, then forgets all but two. Raises EnvironmentProblem, the disk as before."""
    path = checkpoint_path(folder, checkpoint.step)
    part = path.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        _save(part / "drafter.safetensors", {**checkpoint.weights, "d2t": checkpoint.d2t})
        _save(part / "optimiser.safetensors", checkpoint.moments)
        (part / "checkpoint.json").write_text(_facts(checkpoint))
        for file in [*part.iterdir(), part]:
            _sync(file)
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
        _sync(folder)
    except (OSError, SafetensorError) as problem:
        shutil.rmtree(part, ignore_errors=True)
        raise EnvironmentProblem(
            f"checkpoint {path} could not be written: {problem}",
            "training can go on from the checkpoint before it: give the same command again",
        ) from None
    for old in steps_saved(folder)[:-KEPT]:
        shutil.rmtree(checkpoint_path(folder, old))
    return path


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def _facts(checkpoint: Checkpoint) -> str:
    facts = {
        "schema": SCHEMA,
        "step": checkpoint.step,
        "config": asdict(checkpoint.config),
        "recipe": asdict(checkpoint.recipe),
        "provenance": dict(checkpoint.provenance),
    }
    return json.dumps(facts, indent=2) + "\n"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def steps_saved(folder: Path) -> list[int]:
    """Steps of the whole checkpoints, ascending."""
    names = (FOLDER.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(name[1]) for name in names if name)


def last_checkpoint(folder: Path) -> Path | None:
    saved = steps_saved(folder)
    return checkpoint_path(folder, saved[-1]) if saved else None


def load_checkpoint(path: Path) -> Checkpoint:
    """`path`: a step-… folder, or the one that holds them (then the last). Raises DataProblem."""
    path = last_checkpoint(path) or path
    try:
        facts = json.loads((path / "checkpoint.json").read_text())
        if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
            raise DataProblem(f"{path} is no checkpoint of {SCHEMA}", *_one_before(path))
        weights = load_file(path / "drafter.safetensors")
        moments = load_file(path / "optimiser.safetensors")
        config = facts["config"]
        return Checkpoint(
            step=facts["step"],
            config=DrafterConfig(
                **{**config, "rope": Rope(**config["rope"]), "aux_inputs_of": tuple(config["aux_inputs_of"])}
            ),
            recipe=Recipe(**facts["recipe"]),
            d2t=weights.pop("d2t"),
            weights=weights,
            moments=moments,
            provenance=facts["provenance"],
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as problem:
        raise DataProblem(f"checkpoint {path} cannot be read: {problem}", *_one_before(path)) from None


def _one_before(path: Path) -> tuple[str, ...]:
    """What to do about the last checkpoint where it is damaged: two are kept."""
    before = [each for each in steps_saved(path.parent) if checkpoint_path(path.parent, each) < path]
    if not FOLDER.fullmatch(path.name) or not before:
        return ()
    return (f"remove {path}: then the one before it, after step {before[-1]:,}, is gone on from",)
