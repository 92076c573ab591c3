"""How a drafter grows: nothing is extracted twice, and a case that is cut keeps its last look."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

# In the place of the package, for what the study starts: notes each call, and hangs in training of seed 1.
STAND_IN = """
import json, os, sys, time
from pathlib import Path
stage, words = sys.argv[2], sys.argv[4:]
given = dict(zip(words[::2], words[1::2]))
with open(Path(__file__).parent / "calls.jsonl", "a") as calls:
    calls.write(json.dumps([stage, given]) + "\\n")
if stage == "train":
    out = Path(given["--out"])
    out.mkdir(parents=True)
    look = {"event": "held_out", "tokens_per_round": 1.5}
    lines = [{**look, "step": 10}, {**look, "step": 20}, {"event": "step", "step": 21}]
    (out / "curves.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines) + '{"event": "st')
    if given["--seed"] == "1":
        time.sleep(60)
rounds = {"value": 2.0, "low": 1.9, "high": 2.1}
positions = [{"conditional": {"value": 0.5}}]
print(json.dumps({"checkpoint": "c", "steps": 30, "tokens_per_round": rounds, "per_position": positions}))
"""


@pytest.fixture
def growth() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("drafter_growth")
    sys.path.remove(str(BENCHMARKS))


def sample(number: int) -> str:
    facts = {"id": str(number), "messages": [], "model": "m", "template": "t", "sampling": {}}
    mask = [[3, 203], [210, 230]]
    return json.dumps({**facts, "token_ids": list(range(240)), "mask": mask, "finish": "stop"}) + "\n"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    (tmp_path / "shakedown").mkdir()
    (tmp_path / "shakedown" / "__init__.py").touch()
    (tmp_path / "shakedown" / "__main__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("samples", "questions"):
        (tmp_path / f"{name}.jsonl").write_text("".join(map(sample, range(5))))
    return argparse.Namespace(
        target=tmp_path / "target",
        samples=tmp_path / "samples.jsonl",
        questions=tmp_path / "questions.jsonl",
        states=None,
        gpu="",
        work=tmp_path / "work",
        seconds=60.0,
        out=tmp_path / "rows.json",
    )


def calls_of(given: argparse.Namespace, stage: str) -> list[dict[str, str]]:
    lines = (given.samples.parent / "shakedown" / "calls.jsonl").read_text().splitlines()
    return [options for name, options in map(json.loads, lines) if name == stage]


def test_cases_of_the_same_samples_extract_them_once(growth: ModuleType, given: argparse.Namespace):
    study = growth.Study(given)
    first = growth.Case(name="one", samples=3)
    for case in (first, growth.Case(name="two", samples=3, decay=0.5, teacher_temperature=0.25, seed=7)):
        study.keep(case)
    (extracted,) = calls_of(given, "extract")
    assert len(Path(extracted["--samples"]).read_text().splitlines()) == 3
    trained = calls_of(given, "train")
    assert [each["--states"] for each in trained] == [extracted["--out"]] * 2
    told = {name: trained[1][f"--{name}"] for name in ("decay", "teacher-temperature", "seed", "draft-vocab")}
    assert told == {"decay": "0.5", "teacher-temperature": "0.25", "seed": "7", "draft-vocab": "32000"}
    row = json.loads(given.out.read_text())["two"]
    assert (row["decay"], row["judged"]["tokens_per_round"]["value"]) == (0.5, 2.0)


def test_states_that_are_there_are_taken_for_cases_of_all_samples(
    growth: ModuleType, given: argparse.Namespace
):
    given.states = given.work.parent / "extracted"
    study = growth.Study(given)
    study.keep(growth.Case(name="all"))
    study.keep(growth.Case(name="some", samples=2))
    (extracted,) = calls_of(given, "extract")
    assert [each["--states"] for each in calls_of(given, "train")] == [str(given.states), extracted["--out"]]


def test_a_case_that_is_cut_says_so_and_keeps_its_last_look(
    growth: ModuleType, given: argparse.Namespace, capsys: pytest.CaptureFixture[str]
):
    given.states, given.seconds = given.work.parent / "extracted", 6.0
    growth.Study(given).keep(growth.Case(name="slow", seed=1))
    row = json.loads(given.out.read_text())["slow"]
    assert row["failed"] == "train was cut at the deadline of 6 s"
    assert (row["held_out"]["step"], row["held_out"]["tokens_per_round"]) == (20, 1.5)
    assert "step 20: 1.50 held out" in capsys.readouterr().out


def test_beginnings_of_answers_are_judged_too(growth: ModuleType, given: argparse.Namespace):
    growth.Study(given).keep(growth.Case(name="one"))
    whole, begun = (Path(each["--samples"]) for each in calls_of(given, "evaluate"))
    assert whole == given.questions
    for line in begun.read_text().splitlines():
        found = json.loads(line)
        assert found["mask"] == [[3, 131], [210, 230]]
        assert found["token_ids"] == list(range(230))


def test_every_case_is_a_training_of_its_own(growth: ModuleType):
    assert len({case.name for case in growth.CASES}) == len(growth.CASES)
    assert len({(case.samples, *case.options()) for case in growth.CASES}) == len(growth.CASES)
