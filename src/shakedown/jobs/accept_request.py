"""What was asked of `accept`, and where its target lies.

It starts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shakedown.drafter.samples import Sample, read_lines, sample_of
from shakedown.errors import UsageError
from shakedown.jobs.outside import model_folder
from shakedown.jobs.reading import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptRequest:
    """`margin`: tokens a round within which the engine is as expected. `trained_on`: samples of `draft synth`
    that the drafter was trained for. `states`: look at the engine's states even where nothing is missing."""

    drafters: tuple[Path, ...] = ()
    drafts: int | None = None
    target: str | None = None
    prompts: Path | None = None
    concurrency: tuple[int, ...] = (1,)
    tokens: int = 64
    most: int = 160
    margin: float = 0.1
    trained_on: Path | None = None
    states: bool = False
    page: Path | None = None


def target_folder(request: AcceptRequest, reading: Reading) -> Path:
    """Where the target's checkpoint lies. Raises UsageError where that is not known."""
    from shakedown.drafter.target import find_checkpoint

    if request.target is not None:
        return find_checkpoint(request.target)
    folder = model_folder(reading.command)
    if folder is None:
        raise UsageError("the folder of the target is not known", "say it: --target DIR")
    return folder


def first_sample(path: Path) -> Sample:
    """Of what the drafter was trained on. Raises UsageError or DataProblem for a file that is no samples."""
    for number, line in read_lines(path):
        return sample_of(line, f"{path}:{number}")
    raise UsageError(f"{path} holds no sample", "give samples.jsonl of `shakedown draft synth`")
