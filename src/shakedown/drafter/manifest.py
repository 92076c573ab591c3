"""The manifest of a folder of states: which model's they are, what computed them, and every shard's checksum.

It never reads a shard.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shakedown.drafter.shards import Shard, sync_folder
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError

SCHEMA = "shakedown-states/1"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """The model whose states these are, as far as a reader must know it."""

    path: str
    architecture: str
    hidden_size: int
    layers: int
    vocab_size: int
    weights_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What computed the states."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesManifest:
    """What a folder of states holds.

    `aux_inputs_of` are layer numbers: slot s holds the input of layer aux_inputs_of[s], which is entry
    aux_inputs_of[s] of the hidden states that transformers returns.
    """

    target: TargetFacts
    backend: Backend
    aux_inputs_of: tuple[int, ...]
    samples_sha256: str
    dtype: str = "bfloat16"
    final_norm_applied: bool = True
    parity: Mapping[str, Any] | None = None
    shards: tuple[Shard, ...] = ()
    complete: bool = False

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def aux_width(self) -> int:
        return len(self.aux_inputs_of) * self.target.hidden_size

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n"


def read_manifest(folder: Path) -> StatesManifest:
    """Raises DataProblem where there is none, or one that cannot be read."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataProblem(f"{folder} holds no {MANIFEST}", "make one with: shakedown draft extract") from None
    except (OSError, ValueError) as problem:
        raise DataProblem(f"{path} cannot be read: {problem}") from None
    if not isinstance(found, dict) or found.pop("schema", None) != SCHEMA:
        raise DataProblem(f"{path} is no manifest of {SCHEMA}")
    try:
        nested = {
            "target": TargetFacts(**found["target"]),
            "backend": Backend(**found["backend"]),
            "aux_inputs_of": tuple(found["aux_inputs_of"]),
            "shards": tuple(Shard(**shard) for shard in found["shards"]),
        }
        return StatesManifest(**{**found, **nested})
    except (KeyError, TypeError) as problem:
        raise DataProblem(f"{path} is no manifest of {SCHEMA}: {problem}") from None


def refuse_other(folder: Path, found: StatesManifest, wanted: StatesManifest) -> None:
    """Raises UsageError where a folder holds the states of another job."""
    same = replace(found.target, path=wanted.target.path)  # one model has many spellings of its path
    found = replace(found, target=same)
    for name in ("target", "backend", "aux_inputs_of", "samples_sha256", "dtype", "final_norm_applied"):
        if getattr(found, name) != getattr(wanted, name):
            raise UsageError(
                f"{folder} holds other states: its {name} is {getattr(found, name)},"
                f" this job's is {getattr(wanted, name)}",
                "give another --out, or remove the folder",
            )


def write_manifest(folder: Path, manifest: StatesManifest) -> None:
    part = folder / f"{MANIFEST}.part"
    try:
        with part.open("w") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        part.rename(folder / MANIFEST)
        sync_folder(folder)
    except OSError as problem:
        raise EnvironmentProblem(f"{folder / MANIFEST} could not be written: {problem.strerror}") from None
