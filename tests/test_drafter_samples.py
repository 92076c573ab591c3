"""Samples on disk: what is written is read back, what is broken is named by file and line."""

import json
from pathlib import Path

import pytest

from shakedown.drafter.samples import Finish, Sample, read_samples, write_sample
from shakedown.errors import DataProblem, UsageError

GOOD = Sample(
    id="0000001",
    messages=[{"role": "user", "content": "café?"}, {"role": "assistant", "content": "Oui."}],
    token_ids=[1, 5, 6, 7, 8, 2],
    mask=[(2, 3), (4, 6)],
    model="SmolLM2",
    template="ab" * 32,
    sampling={"temperature": 0.0},
    finish=Finish.STOP,
)


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def line_of(**changes: object) -> bytes:
    found = {
        "id": "1",
        "messages": [],
        "token_ids": [1, 5, 6],
        "mask": [[1, 3]],
        "model": "m",
        "template": "t",
        "sampling": {},
        "finish": "stop",
    }
    return json.dumps(found | changes).encode() + b"\n"


def test_a_sample_is_read_back_as_it_was_written(tmp_path: Path):
    with open(tmp_path / "samples.jsonl", "wb") as file:
        write_sample(file, GOOD)
        write_sample(file, GOOD)
    assert list(read_samples(tmp_path / "samples.jsonl")) == [GOOD, GOOD]
    assert GOOD.generated == 3


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"id": "1", "token_ids": [1,\n', "is not JSON"),
        (b"[1, 2]\n", "is not a JSON object"),
        (b"[" * 100_000 + b"\n", "is not JSON"),
        (b'{"id": "1"}\n', "it lacks 'token_ids'"),
        (line_of(mask=[]), "its mask is empty"),
        (line_of(mask=[[0, 3]]), "its mask is full"),
        (line_of(mask=[[1, 9]]), "leaves its tokens"),
        (line_of(mask=[[1, 2], [1, 3]]), "overlaps"),
        (line_of(mask=[1, 2]), "is no sample"),
        (line_of(mask=[[1.9, 2.9]]), "no place of a token"),
        (line_of(mask=[["1", "2"]]), "no place of a token"),
        (line_of(token_ids=[1, -5, 2]), "what is no token"),
        (line_of(token_ids=[1, "5", 2]), "what is no token"),
        (line_of(finish="cut"), "is no sample"),
    ],
)
def test_a_broken_line_is_named_by_file_and_line(tmp_path: Path, line: bytes, what: str):
    path = write(tmp_path / "s.jsonl", line_of(), b"\n", line)
    with pytest.raises(DataProblem) as caught:
        list(read_samples(path))
    assert f"{path}:3" in caught.value.message
    assert what in caught.value.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"none\.jsonl cannot be read"):
        list(read_samples(tmp_path / "none.jsonl"))
