"""Training in several processes: what they answer, and what is left when their starter is killed."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import psutil
import pytest
from stand_ins import eventually

from shakedown.cli.draft import train
from shakedown.drafter.plan import TrainPlan
from shakedown.errors import DataProblem, EnvironmentProblem
from shakedown.jobs.draft_train import TrainRequest
from shakedown.jobs.train_crew import command, read_result, train_in_crew

STARTER = """
import subprocess, sys, time
from shakedown.jobs.train_crew import end_with_parent
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], preexec_fn=end_with_parent)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_kill_of_the_starter_ends_what_it_started():
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    assert starter.stdout
    child = psutil.Process(int(starter.stdout.readline()))
    starter.kill()
    starter.communicate()
    assert eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, within_s=5)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_what_all_of_them_refuse_is_told_once(tmp_path: Path):
    with pytest.raises(DataProblem, match="nowhere is neither a folder nor the name of a model"):
        train_in_crew(str(tmp_path / "nowhere"), tmp_path, tmp_path / "out", TrainPlan(), 2)


def test_a_first_process_that_was_ended_does_not_say_that_nothing_is_wrong():
    said = json.dumps({"error": "interrupted; what was started has been ended", "hints": []})
    with pytest.raises(EnvironmentProblem, match="ended before the first of them could answer") as caught:
        read_result(said, 1, 2)
    assert "another of them failed" in caught.value.hints[0]


def test_every_setting_of_the_plan_reaches_the_processes():
    plan = TrainPlan(
        start="before", epochs=2, steps=3, draft_vocab=64, intermediate=32, learning_rate=0.5, decay=0.7,
        teacher_temperature=0.5, freeze_head=True, pack_rows=128, batch_packs=4, seed=9,
    )  # fmt: skip
    assert all(getattr(plan, each.name) != each.default for each in fields(plan) if each.name != "processes")
    argv = command("target", Path("states"), Path("out"), plan, 2)
    given = argv[argv.index("train") + 1 :]
    with click.Context(train, ignore_unknown_options=False) as context:
        options, _, _ = train.make_parser(context).parse_args(given)
    wanted = {each.name: str(getattr(plan, each.name)) for each in fields(plan) if each.name != "processes"}
    assert {name: str(options[name]) for name in wanted} == wanted
    recipe = TrainRequest.of("target", Path("states"), Path("out"), plan).recipe  # in one process
    shared = {each.name for each in fields(recipe)} & {each.name for each in fields(plan)} - {"batch_packs"}
    assert {name: getattr(recipe, name) for name in shared} == {name: getattr(plan, name) for name in shared}
