"""Stages: done once for what went into them, done again for anything else, never half."""

from collections.abc import Callable
from pathlib import Path

import pytest

from shakedown.errors import DataProblem, HostProblem, ShakedownError
from shakedown.jobs.result import ExitCode, JobResult, Progress
from shakedown.jobs.stages import Done, Stage, Stages


class Heard:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, progress: Progress) -> None:
        pass


class Counting:
    """Work that counts how often it was done, and goes on from what it finds."""

    def __init__(self, code: ExitCode = ExitCode.GOOD) -> None:
        self.times, self._code = 0, code

    def __call__(self, folder: Path) -> JobResult:
        self.times += 1
        folder.mkdir(exist_ok=True)
        return JobResult(document={"times": self.times}, lines=[f"time {self.times}"], exit_code=self._code)


def stage(work: object, *inputs: Path, **settings: object) -> Stage:
    return Stage(name="train", settings=settings, inputs=inputs, work=work)  # type: ignore[arg-type]


def test_a_stage_is_done_once_and_its_document_is_kept(tmp_path: Path):
    work = Counting()
    first = Stages(tmp_path, Heard()).run(stage(work, epochs=1))
    again = Stages(tmp_path, Heard()).run(stage(work, epochs=1))
    assert work.times == 1
    assert again == first
    assert again.document == {"times": 1}


def test_other_settings_or_other_inputs_are_another_stage_beside_the_first(tmp_path: Path):
    work, data = Counting(), tmp_path / "data"
    data.write_text("one")
    folders = [Stages(tmp_path, Heard()).run(stage(work, data, epochs=1)).folder]
    folders.append(Stages(tmp_path, Heard()).run(stage(work, data, epochs=2)).folder)
    data.write_text("two")
    folders.append(Stages(tmp_path, Heard()).run(stage(work, data, epochs=2)).folder)
    assert len(set(folders)) == 3 == work.times
    assert all(folder.is_dir() for folder in folders)


def test_other_weights_at_the_same_place_are_another_stage(tmp_path: Path):
    """A head that was trained again, a model that was downloaded anew; a copy of the same is the same."""
    head, work = tmp_path / "head", Counting()
    head.mkdir()
    for config, weights in (("{}", b"one"), ("{}", b"two"), ('{"a": 1}', b"two"), ('{"a": 1}', b"two")):
        (head / "config.json").write_text(config)
        (head / "model.safetensors").write_bytes(weights * 1000)
        Stages(tmp_path, Heard()).run(Stage(name="train", settings={}, models=[head], work=work))
    assert work.times == 3


def test_a_stage_that_is_to_reach_further_goes_on_in_its_folder(tmp_path: Path):
    work = Counting()
    folders = [
        Stages(tmp_path, Heard())
        .run(Stage(name="synth", settings={}, extent={"samples": n}, work=work))
        .folder
        for n in (5, 5, 9)
    ]
    assert len(set(folders)) == 1
    assert work.times == 2


def test_a_note_counts_only_while_what_the_stage_made_is_there(tmp_path: Path):
    def work(folder: Path) -> JobResult:
        folder.mkdir(exist_ok=True)
        (folder / "made").touch()
        return counting(folder)

    def whole(done: Done) -> bool:
        return (done.folder / "made").is_file()

    def broken_off(folder: Path) -> JobResult:
        (folder / "made").touch()
        raise HostProblem("killed")

    counting, heard = Counting(), Heard()

    def once(doing: Callable[[Path], JobResult]) -> Path:
        asked = Stage(name="extract", settings={}, work=doing, whole=whole)
        return Stages(tmp_path, heard).run(asked).folder

    folder = once(work)
    (folder / "made").unlink()
    with pytest.raises(HostProblem):
        once(broken_off)
    assert once(work) == folder
    assert counting.times == 2  # what was broken off is not taken for done by the first one's note
    assert sum("again: not all that it made is there" in line for line in heard.lines) == 1


def test_a_stage_that_failed_is_named_and_done_again(tmp_path: Path):
    def fail(folder: Path) -> JobResult:
        raise HostProblem("the disk is full", "free some")

    with pytest.raises(HostProblem) as caught:
        Stages(tmp_path, Heard()).run(stage(fail))
    assert caught.value.message == "train: the disk is full"
    assert caught.value.hints == ("free some",)
    work = Counting()
    Stages(tmp_path, Heard()).run(stage(work))
    assert work.times == 1


def test_a_bad_result_ends_the_chain_and_is_not_noted(tmp_path: Path):
    with pytest.raises(DataProblem, match="train: time 1"):
        Stages(tmp_path, Heard()).run(stage(Counting(ExitCode.BAD)))
    assert not list(tmp_path.rglob("done.json"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seconds": 1}', '{"seconds": "x", "document": {}}'])
def test_a_broken_note_is_named(tmp_path: Path, text: str):
    folder = Stages(tmp_path, Heard()).run(stage(Counting())).folder
    (folder / "done.json").write_text(text)
    with pytest.raises(DataProblem, match=r"done\.json is broken"):
        Stages(tmp_path, Heard()).run(stage(Counting()))


def test_an_input_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ShakedownError, match=r"samples\.jsonl cannot be read"):
        Stages(tmp_path, Heard()).run(stage(Counting(), tmp_path / "samples.jsonl"))
