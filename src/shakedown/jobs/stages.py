"""Stages of a long job, each done once: a folder named for what went into it, a note when it is whole.

It never removes what a stage made: other settings make another folder.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shakedown.drafter.journal import write_whole
from shakedown.drafter.weights import sampled
from shakedown.errors import DataProblem, HostProblem, ShakedownError
from shakedown.jobs.result import ExitCode, JobResult, Talk

NOTE = "done.json"
MODEL_FILES = ("config.json", "*.safetensors", "*.bin")
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A stage that is whole. `seconds` are those of the start that finished it."""

    name: str
    folder: Path
    seconds: float
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`settings` are JSON, `inputs` files whose content counts, `models` folders of checkpoints, of whose
    weights samples count; `work` is handed the stage's folder.

    `work` must go on by itself where it finds its folder begun, and also where `extent`, such as a number
    of samples, has grown: that does not make another folder. `whole` says whether all that it made is still
    in its folder: a note alone does not make a stage done.
    """

    name: str
    settings: Mapping[str, Any]
    extent: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[Path] = ()
    models: Sequence[Path] = ()
    work: Callable[[Path], JobResult]
    whole: Callable[[Done], bool] = lambda done: done.folder.is_dir()


class Stages:
    """The stages of one folder, in the order in which they are asked for."""

    def __init__(self, folder: Path, talk: Talk) -> None:
        self._folder, self._talk = folder, talk
        self.done: list[Done] = []

    def run(self, stage: Stage) -> Done:
        """The stage, done now or before. What it raises, or a bad result, ends the job with its name."""
        key = inputs_hash(stage)
        folder = self._folder / f"{stage.name}-{key[:8]}"
        note_key = {"inputs": key, "extent": dict(stage.extent)}
        done = read_note(folder, stage, note_key)
        if done is not None and stage.whole(done):
            self._talk.say(f"{stage.name}: done before, in {folder}")
        else:
            gone = " again: not all that it made is there any more" if done else ""
            self._talk.say(f"{stage.name}: in {folder}{gone}")
            done = self._work(stage, folder, note_key)
        self.done.append(done)
        return done

    def _work(self, stage: Stage, folder: Path, key: Mapping[str, Any]) -> Done:
        began_s = time.monotonic()
        try:
            (folder / NOTE).unlink(missing_ok=True)  # a kill from here on must not leave it done
        except OSError as problem:
            raise HostProblem(f"{folder / NOTE} cannot be removed: {problem.strerror}") from None
        try:
            result = stage.work(folder)
        except ShakedownError as problem:
            raise type(problem)(f"{stage.name}: {problem.message}", *problem.hints) from problem
        if result.exit_code is not ExitCode.GOOD:
            first, *others = result.lines
            raise DataProblem(f"{stage.name}: {first}", *others)
        seconds = time.monotonic() - began_s
        note = {"stage": stage.name, **key, "seconds": seconds, "document": result.document}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / NOTE, json.dumps(note, indent=2).encode() + b"\n")
        except OSError as problem:
            raise HostProblem(f"{folder / NOTE} cannot be written: {problem.strerror}") from None
        for line in result.lines:
            self._talk.say(f"  {line}")
        return Done(name=stage.name, folder=folder, seconds=seconds, document=result.document)


def read_note(folder: Path, stage: Stage, key: Mapping[str, Any]) -> Done | None:
    """The stage as it was finished, None where it was not. Raises DataProblem for a broken note."""
    path = folder / NOTE
    if not path.is_file():
        return None
    try:
        note = json.loads(path.read_bytes())
        found = Done(
            name=stage.name, folder=folder, seconds=float(note["seconds"]), document=dict(note["document"])
        )
    except (ValueError, KeyError, TypeError) as problem:
        raise DataProblem(
            f"{path} is broken: {problem!r}", f"remove {folder} to do that stage again"
        ) from None
    return found if all(note.get(name) == value for name, value in key.items()) else None


def inputs_hash(stage: Stage) -> str:
    """SHA-256 of the settings, of every input's content and of what tells the models from others.

    Raises HostProblem or UsageError for a file that cannot be read.
    """
    digest = hashlib.sha256(json.dumps([stage.name, stage.settings], sort_keys=True).encode())
    for path in stage.inputs:
        try:
            with open(path, "rb") as file:
                while block := file.read(BLOCK_BYTES):
                    digest.update(block)
        except OSError as problem:
            raise HostProblem(f"{path} cannot be read: {problem.strerror}") from None
    for folder in stage.models:
        for path in sorted(path for kind in MODEL_FILES for path in folder.glob(kind)):
            digest.update(path.name.encode())
            for block in sampled(path):
                digest.update(block)
    return digest.hexdigest()
