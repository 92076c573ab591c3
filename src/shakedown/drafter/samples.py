"""Samples: what a target was asked and what it generated, token by token, as JSON Lines.

It never tokenises, never asks a server, and reads one line at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from shakedown.errors import DataProblem, HostProblem, UsageError

Span = tuple[int, int]
Message = Mapping[str, Any]  # role, content and whatever else the chat template reads


class Finish(StrEnum):
    """Why the target's last answer ended."""

    STOP = "stop"  # by a token of its own; that token counts as generated
    LENGTH = "length"  # cut by the limit of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One document. `mask` are the runs [start, stop) of `token_ids` that the target generated itself.

    `template` is the SHA-256 of the chat template. Raises ValueError for a mask that trains nothing, that
    leaves no prompt, or that does not lie in the tokens.
    """

    id: str
    messages: Sequence[Message]
    token_ids: Sequence[int]
    mask: Sequence[Span]
    model: str
    template: str
    sampling: Mapping[str, Any]
    finish: Finish

    def __post_init__(self) -> None:
        end = 0
        for start, stop in self.mask:
            if not end <= start < stop <= len(self.token_ids):
                raise ValueError(
                    f"the run [{start}, {stop}) of its mask is empty, overlaps or leaves its tokens"
                )
            end = stop
        if not self.mask:
            raise ValueError("its mask is empty: no token of it was generated")
        if self.generated == len(self.token_ids):
            raise ValueError("its mask is full: no token of it is a prompt")

    @property
    def generated(self) -> int:
        """How many of its tokens the target generated."""
        return sum(stop - start for start, stop in self.mask)


def encode_sample(sample: Sample) -> bytes:
    """The sample as a line."""
    found = {field.name: getattr(sample, field.name) for field in fields(sample)}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def write_sample(file: BinaryIO, sample: Sample) -> None:
    file.write(encode_sample(sample))


def read_samples(path: Path) -> Iterator[Sample]:
    """Every sample of a file. Raises DataProblem naming file and line for what is none."""
    for number, line in read_lines(path):
        yield sample_of(line, f"{path}:{number}")


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, numbered from 1. Raises UsageError, HostProblem."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (FileNotFoundError, IsADirectoryError) as problem:
        raise UsageError(f"{path} cannot be read: {problem.strerror}") from None
    except OSError as problem:
        raise HostProblem(f"{path} cannot be read: {problem.strerror}") from None


def read_object(line: bytes, place: str) -> dict[str, Any]:
    """The JSON object of a line; `place` is its file and line. Raises DataProblem."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise DataProblem(f"{place} is not JSON: {problem}", f"it begins {excerpt(line)}") from None
    if not isinstance(found, dict):
        raise DataProblem(f"{place} is not a JSON object", f"it begins {excerpt(line)}")
    return found


def excerpt(line: bytes) -> str:
    return repr(line[:80].decode(errors="replace").strip())


def sample_of(line: bytes, place: str) -> Sample:
    """Raises DataProblem naming the place and what of the sample is wrong."""
    found = read_object(line, place)
    try:
        tokens = found["token_ids"]
        if not all(type(token) is int and token >= 0 for token in tokens):
            raise ValueError("token_ids holds what is no token")
        mask = [(start, stop) for start, stop in found["mask"]]
        if not all(type(end) is int for run in mask for end in run):  # a part of a token is no place
            raise ValueError("its mask holds what is no place of a token")
        return Sample(
            id=str(found["id"]),
            messages=list(found["messages"]),
            token_ids=tokens,
            mask=mask,
            model=str(found["model"]),
            template=str(found["template"]),
            sampling=dict(found["sampling"]),
            finish=Finish(found["finish"]),
        )
    except KeyError as problem:
        raise DataProblem(f"{place} is no sample: it lacks {problem}") from None
    except (TypeError, ValueError) as problem:
        raise DataProblem(f"{place} is no sample: {problem}") from None
