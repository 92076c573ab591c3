"""A day on GPUs keeps its lanes: what a job has to itself nothing shares, and one that hangs is ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "gpu_day.py"

PLAN = """
[settings]
word = "hello"

[[job]]
name = "first"
command = "echo {word} $PLACE; date +%s.%N > {out}/first-began; sleep 1; date +%s.%N > {out}/first-ended"
env = { PLACE = "{word}-there" }
needs = ["gpu0"]
limit_s = 60

[[job]]
name = "second"
command = "date +%s.%N > {out}/second-began; exit 3"
needs = ["gpu0", "gpu1"]
limit_s = 60

[[job]]
name = "hangs"
command = "sleep 1000"
limit_s = 1

[[job]]
name = "last"
command = "date +%s.%N > {out}/last-began"
after = ["second", "hangs"]
limit_s = 60
"""


def day(plan: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(PROGRAM), str(plan), "--out", str(out), *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False)


def at(file: Path) -> float:
    return float(file.read_text())


@pytest.mark.slow
def test_lanes_are_kept_and_a_day_that_was_cut_goes_on(tmp_path: Path):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN)
    done = day(plan, out)
    assert done.returncode == 1, done.stderr
    rows = json.loads((out / "day.json").read_text())
    told = {name: (row["ended"], row["code"]) for name, row in rows.items()}
    assert told == {"first": ("done", 0), "second": ("failed", 3), "hangs": ("cut", -2), "last": ("done", 0)}
    assert at(out / "second-began") > at(out / "first-ended")
    assert at(out / "last-began") > at(out / "second-began")
    assert (out / "log" / "first.log").read_text() == "hello hello-there\n"
    again = at(out / "first-began")
    day(plan, out)
    assert at(out / "first-began") == again


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('after = ["second", "hangs"]', 'after = ["nobody"]', "nobody"),
        ('name = "second"', 'name = "first"', "two jobs are named 'first'"),
        ('word = "hello"', "", "--set word"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_refused_before_anything_starts(
    tmp_path: Path, old: str, new: str, what: str
):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.replace(old, new))
    done = day(plan, tmp_path / "out")
    assert (done.returncode, what in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "plan", sorted((PROGRAM.parent / "plans").glob("*.toml")), ids=lambda plan: plan.stem
)
def test_the_plans_we_ship_can_be_read(tmp_path: Path, plan: Path):
    settings = [
        word
        for name in ("model", "sglang", "vllm", "shakedown", "prompts", "head")
        for word in ("--set", f"{name}=x")
    ]
    done = day(plan, tmp_path, "--list", *settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout
