"""The days on GPUs that we ship, gone through with stand-ins of a moment each: who runs beside whom."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "benchmarks" / "gpu_day.py"
PLANS = sorted((ROOT / "benchmarks" / "plans").glob("*.toml"))
NAMES = ("model", "sglang", "vllm", "shakedown", "prompts", "head", "samples", "questions", "states")
DAY_S = 1650.0  # of half an hour, less what a host takes to start and to unpack

# Who is meant to run beside whom, plan by plan.
BESIDE = {
    "one_gpu": [("faults-vllm", "faults-sglang", "isolate")],
    "two_gpus": [("chain", "growth"), ("parity-vllm-tp2", "parity-sglang-tp2", "isolate")],
    "drafter": [],
}
# In place of every Python of a plan. It writes down who begins and ends, and waits for those beside whom it
# is meant to run: in a plan that ran them one after the other it would fail.
STAND_IN = r"""#!/usr/bin/env bash
case "$*" in
    *"draft build"*) job=chain ;;
    *drafter_training.py*) job=training ;;
    *drafter_growth.py*) job=growth ;;
    *gpu_servers.py*) job=servers ;;
    *torch.distributed.run*) job=ddp ;;
    *accept_mla.py*vllm*) job=parity-vllm-tp2 ;;
    *accept_mla.py*) job=parity-sglang-tp2 ;;
    *gpu_isolate.py*) job=isolate ;;
    *accept_faults.py*vllm*) job=faults-vllm ;;
    *accept_faults.py*) job=faults-sglang ;;
    *gpu_check.py*) job=costs ;;
    *vllm.entrypoints*) job=accept-vllm ;;
    *) job=accept-sglang ;;
esac
folder=FOLDER
printf 'begin %s\n' $job >> $folder/events
printf '%s\n' "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" "PYTHONPATH=$PYTHONPATH" \
    "NCCL_NVLS_ENABLE=$NCCL_NVLS_ENABLE" "$@" > $folder/told-$job
if [ $job = chain ]; then
    [ ! -e $folder/broken ] || exit 1
    mkdir -p built/work/synth-0a/train built/work/synth-0a/questions built/work/extract-0b
    touch built/work/synth-0a/train/samples.jsonl built/work/synth-0a/questions/samples.jsonl
    sleep 0.5
    printf 'states of it\n' >> $folder/events
    touch built/work/extract-0b/done.json
fi
for other in $(cat $folder/beside-$job 2> /dev/null); do
    until grep -q "^begin $other$" $folder/events; do [ $SECONDS -lt 20 ] || exit 1; sleep 0.05; done
done
sleep 0.2
printf 'end %s\n' $job >> $folder/events
"""


class Gone:
    """A day of a plan that was gone through in `folder`."""

    def __init__(self, name: str, folder: Path, *, broken: bool = False, **settings: str) -> None:
        stand_in, out = folder / "stand-in", folder / "out"
        stand_in.write_text(STAND_IN.replace("FOLDER", str(folder)))
        stand_in.chmod(0o755)
        if broken:
            (folder / "broken").touch()
        (folder / "prompts.jsonl").touch()
        for jobs in BESIDE[name]:
            for job in (
                jobs[:1] if jobs[0] == "chain" else jobs
            ):  # growth waits for the chain's states by itself
                (folder / f"beside-{job}").write_text(" ".join(other for other in jobs if other != job))
        given = {name: str(stand_in) for name in NAMES} | {"prompts": str(folder / "prompts.jsonl")}
        plan = ROOT / "benchmarks" / "plans" / f"{name}.toml"
        argv = [sys.executable, str(PROGRAM), str(plan), "--out", str(out)]
        argv += [word for pair in (given | settings).items() for word in ("--set", "=".join(pair))]
        env = {**os.environ, "PYTHONPATH": "/ours"}
        self.done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
        self.folder, self.out = folder, out
        self.needs = {
            job["name"]: set(job.get("needs", ())) for job in tomllib.loads(plan.read_text())["job"]
        }
        self.rows = {name: row["ended"] for name, row in json.loads((out / "day.json").read_text()).items()}
        events = (folder / "events").read_text().splitlines()
        self.begin = {job: events.index(f"begin {job}") for job in self.needs if f"begin {job}" in events}
        self.end = {job: self.last(events, f"end {job}") for job in self.begin}
        self.states = events.index("states of it") if "states of it" in events else None

    @staticmethod
    def last(events: list[str], told: str) -> int:
        """A job that calls its program twice ends with the second."""
        return max((at for at, event in enumerate(events) if event == told), default=len(events))

    def told(self, job: str) -> list[str]:
        return (self.folder / f"told-{job}").read_text().splitlines()

    def shared(self) -> list[tuple[str, str]]:
        """The pairs that ran at once and need the same."""
        return [
            (one, other)
            for one, other in combinations(self.begin, 2)
            if self.needs[one] & self.needs[other]
            and self.begin[one] < self.end[other]
            and self.begin[other] < self.end[one]
        ]


@pytest.mark.slow
def test_on_two_gpus_the_drafter_grows_on_the_chains_own_states_and_what_is_measured_is_alone(tmp_path: Path):
    (tmp_path / "rivals").mkdir()
    day = Gone("two_gpus", tmp_path, rivals=str(tmp_path / "rivals"), api_servers="3")
    assert day.done.returncode == 0, (day.done.stdout, day.rows)
    assert day.shared() == []
    assert day.states is not None
    assert day.states < day.begin["growth"] < day.end["chain"]
    assert day.begin["servers"] > max(day.end["chain"], day.end["growth"])
    assert min(day.begin[job] for job in ("isolate", "parity-vllm-tp2")) > day.end["ddp"] > day.end["servers"]
    built = day.out / "chain" / "built" / "work"
    growth = day.told("growth")
    for option, made in {
        "--samples": "synth-0a/train/samples.jsonl",
        "--questions": "synth-0a/questions/samples.jsonl",
        "--states": "extract-0b",
    }.items():
        assert growth[growth.index(option) + 1] == str(built / made)
    assert growth[0] == "CUDA_VISIBLE_DEVICES=1"
    assert f"PYTHONPATH={tmp_path / 'rivals'}:/ours" in day.told("training")
    for job in ("ddp", "parity-vllm-tp2", "parity-sglang-tp2"):
        assert "NCCL_NVLS_ENABLE=0" in day.told(job)
    recipe = tomllib.loads((day.out / "chain" / "recipe.toml").read_text())
    served = (
        f"{tmp_path / 'stand-in'} -m vllm.entrypoints.cli.main serve {{target}} --api-server-count 3 --host"
    )
    assert recipe["synth"]["command"].strip().startswith(served)


@pytest.mark.slow
def test_on_two_gpus_a_chain_that_fails_takes_only_what_needs_its_states_along(tmp_path: Path):
    day = Gone("two_gpus", tmp_path, broken=True)
    assert day.done.returncode == 1
    assert {job for job, ended in day.rows.items() if ended == "failed"} == {"chain", "growth"}
    assert "the chain has no states" in (day.out / "log" / "growth.log").read_text()
    assert set(day.rows) == set(day.needs)


@pytest.mark.slow
def test_on_one_gpu_what_measures_speed_or_memory_is_alone(tmp_path: Path):
    day = Gone("one_gpu", tmp_path)
    assert day.done.returncode == 0, (day.done.stdout, day.rows)
    assert day.shared() == []
    beside = ("faults-vllm", "faults-sglang", "isolate")
    assert day.end["accept-vllm"] < day.begin["accept-sglang"] < day.end["accept-sglang"]
    assert day.end["accept-sglang"] < min(day.begin[job] for job in beside)
    assert max(day.end[job] for job in beside) < day.begin["costs"]


@pytest.mark.slow
def test_on_a_drafters_day_each_has_the_gpu_to_itself_and_the_chains_states_grow(tmp_path: Path):
    (tmp_path / "rivals").mkdir()
    day = Gone("drafter", tmp_path, rivals=str(tmp_path / "rivals"))
    assert day.done.returncode == 0, (day.done.stdout, day.rows)
    assert day.end["training"] < day.begin["chain"] < day.end["chain"] < day.begin["growth"]
    growth = day.told("growth")
    states = day.out / "chain" / "built" / "work" / "extract-0b"
    assert growth[growth.index("--states") + 1] == str(states)
    assert f"PYTHONPATH={tmp_path / 'rivals'}:/ours" in day.told("training")


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_the_plans_we_ship_are_over_in_their_half_hour_if_each_job_takes_as_long_as_expected(
    tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.chdir(ROOT)
    plans = importlib.import_module("gpu_plan")
    jobs = plans.read_plan(plan, tmp_path, dict.fromkeys(NAMES, "x"))
    assert all(job.takes_s < job.limit_s for job in jobs)
    times = plans.timetable(jobs)
    assert max(end_s for _, end_s in times.values()) <= DAY_S
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(plan), "--out", str(tmp_path / "out"), "--list"]
        + [word for name in NAMES for word in ("--set", f"{name}=x")],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:-1]] == list(times)
    assert not (tmp_path / "out").exists()
