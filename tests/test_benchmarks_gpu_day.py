"""A day on GPUs keeps its lanes: what a job has to itself nothing shares, and one that hangs is ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shakedown.host import procfs

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


def argv(plan: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, str(PROGRAM), str(plan), "--out", str(out), *options]


def day(plan: Path, out: Path, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    told = argv(plan, out, *options)
    return subprocess.run(told, capture_output=True, text=True, timeout=50, check=False, cwd=cwd)


def rows_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "day.json").read_text()))


def at(file: Path) -> float:
    return float(file.read_text())


@pytest.mark.slow
def test_lanes_are_kept_and_a_day_that_was_cut_goes_on(tmp_path: Path):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN)
    done = day(plan, out)
    assert done.returncode == 1, done.stderr
    told = {name: (row["ended"], row["code"]) for name, row in rows_of(out).items()}
    assert told == {"first": ("done", 0), "second": ("failed", 3), "hangs": ("cut", -2), "last": ("done", 0)}
    assert at(out / "second-began") > at(out / "first-ended")
    assert at(out / "last-began") > at(out / "second-began")
    assert (out / "log" / "first.log").read_text() == "hello hello-there\n"
    first, second = at(out / "first-began"), at(out / "second-began")
    told = day(plan, out).stdout
    assert "2 not run again without --again: second (failed), hangs (cut)" in told
    assert (at(out / "first-began"), at(out / "second-began")) == (first, second)
    plan.write_text(PLAN.replace("exit 3", "true"))
    day(plan, out, "--again", "--only", "second")
    assert rows_of(out)["second"]["ended"] == "done"
    assert (at(out / "first-began") == first, at(out / "second-began") > second) == (True, True)


WAITS = """
[[job]]
name = "long"
command = "echo $$ >> {out}/pids; until [ -e {out}/go ]; do sleep 0.05; done"
needs = ["gpu0"]
limit_s = 60

[[job]]
name = "next"
command = "cp {out}/day.json {out}/seen.json"
needs = ["gpu0"]
limit_s = 60
"""


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """The folder of a day whose scheduler was killed while its first job ran."""
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(WAITS)
    scheduler = subprocess.Popen(argv(plan, out), stdout=subprocess.PIPE, text=True)
    assert scheduler.stdout is not None
    try:
        assert "started" in scheduler.stdout.readline()
        wait_until(lambda: (out / "pids").is_file() and (out / "pids").read_text().endswith("\n"))
        refused = day(plan, out)
        assert refused.returncode == 2
        assert f"another gpu_day.py is at work in {out}: process {scheduler.pid}" in refused.stderr
        scheduler.kill()
        scheduler.communicate()
        yield out
    finally:
        scheduler.kill()
        (out / "go").touch()


def wait_until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.02)


@pytest.mark.slow
def test_what_a_killed_scheduler_left_running_is_waited_for_and_not_started_twice(killed: Path):
    plan = killed.parent / "plan.toml"
    goes_on = subprocess.Popen(argv(plan, killed), stdout=subprocess.PIPE, text=True)
    assert goes_on.stdout is not None
    assert "still runs" in goes_on.stdout.readline()
    (killed / "go").touch()
    goes_on.communicate(timeout=50)
    assert goes_on.returncode == 1
    assert len((killed / "pids").read_text().split()) == 1
    told = {name: (row["ended"], row["code"]) for name, row in rows_of(killed).items()}
    assert told == {"long": ("unknown", None), "next": ("done", 0)}
    assert json.loads((killed / "seen.json").read_text())["long"]["ended"] == "unknown", "side by side"
    assert "1 not run again without --again: long (unknown)" in day(plan, killed).stdout
    assert day(plan, killed, "--again").returncode == 0
    assert len((killed / "pids").read_text().split()) == 2


@pytest.mark.slow
def test_a_process_that_was_given_the_number_of_a_job_since_is_neither_waited_for_nor_ended(killed: Path):
    rows = rows_of(killed)
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    (killed / "go").touch()
    rows["long"]["pid"] = stranger.pid
    (killed / "day.json").write_text(json.dumps(rows))
    day(killed.parent / "plan.toml", killed)
    assert rows_of(killed)["long"]["ended"] == "unknown"
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_what_a_job_leaves_behind_does_not_outlive_it(tmp_path: Path):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text("""
[[job]]
name = "careless"
command = "sleep 1000 & echo $! > {out}/left"
limit_s = 60
""")
    assert day(plan, out).returncode == 0
    assert rows_of(out)["careless"]["ended"] == "done"
    left = procfs.read_stat(int((out / "left").read_text()))
    assert left is None or left.state == "Z"


def test_a_day_in_a_shells_background_where_interrupts_are_ignored_interrupts_its_jobs(tmp_path: Path):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text("""
[[job]]
name = "hangs"
command = "sleep 1000"
limit_s = 1
""")
    background = ["bash", "-c", 'setsid nohup "$@" > /dev/null 2>&1 & wait', "-", *argv(plan, out)]
    subprocess.run(background, timeout=50, check=False)
    assert (rows_of(out)["hangs"]["ended"], rows_of(out)["hangs"]["code"]) == ("cut", -signal.SIGINT)


def test_a_day_that_is_interrupted_runs_what_it_interrupted_when_it_goes_on(killed: Path):
    plan = killed.parent / "plan.toml"
    goes_on = subprocess.Popen(argv(plan, killed), stdout=subprocess.PIPE, text=True)
    assert goes_on.stdout is not None
    assert "still runs" in goes_on.stdout.readline()
    goes_on.send_signal(signal.SIGTERM)
    goes_on.communicate(timeout=50)
    assert rows_of(killed) == {}
    (killed / "go").touch()
    assert day(plan, killed).returncode == 0


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('after = ["second", "hangs"]', 'after = ["nobody"]', "nobody"),
        ('name = "second"', 'name = "first"', "two jobs are named 'first'"),
        ('word = "hello"', "", "--set word"),
        ('word = "hello"', 'word = "no/such"', "word=no/such: there is no such file or folder"),
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


def test_a_setting_that_is_a_path_is_the_same_path_in_another_folder(tmp_path: Path):
    plan = tmp_path / "plan.toml"
    plan.write_text("""
[settings]
beside = "data"
none = ""

[[job]]
name = "reads"
command = "cd / && cat {beside} {given} && echo {count}{none}"
limit_s = 60
""")
    (tmp_path / "data").write_text("here\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "more").write_text("there\n")
    told = ("--set", "given=folder/more", "--set", "count=3")
    assert day(plan, tmp_path / "out", *told, cwd=tmp_path).returncode == 0
    assert (tmp_path / "out" / "log" / "reads.log").read_text() == "here\nthere\n3\n"


def test_a_job_that_no_plan_has_is_refused(tmp_path: Path):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    done = day(plan, tmp_path / "out", "--only", "first,frist")
    assert (done.returncode, "no job is named frist" in done.stderr) == (2, True)
