"""The benchmark of GPU servers, on none: its plants strike whom they should, its rows say what is wrong."""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shakedown.host import procfs

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RANK = """
import sys, time
import torch.distributed as dist
rank, where = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{where}/store", rank=rank, world_size=2)
print("joined", flush=True)
time.sleep(60)
"""
WORKER = """
class Worker:
    def execute_model(self, number):
        print(number, flush=True)
"""
SERVING = """
import time
from vllm.v1.worker.gpu_worker import Worker
for number in range(200):
    Worker().execute_model(number)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def trials():
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("gpu_trial")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def start(tmp_path):
    begun = []

    def begin(told, script: str, *words: str, path: str = "") -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": f"{BENCHMARKS / 'planted_gpu'}:{path}"}
        env["STRIKE"] = json.dumps({"folder": str(tmp_path), **told})
        argv = [sys.executable, "-c", script, *words]
        process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def wait_until(holds) -> None:
    until = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_second_rank_stays_away_once_it_has_joined(start, tmp_path):
    told = {"at": "join", "deed": "absent", "rank": 1}
    ranks = [start(told, RANK, str(number), str(tmp_path)) for number in range(2)]
    assert ranks[0].stdout.readline() == "joined\n"
    wait_until((tmp_path / "struck.json").exists)
    wait_until(lambda: (tmp_path / "struck.json").read_text().endswith("}"))
    assert json.loads((tmp_path / "struck.json").read_text())["pid"] == ranks[1].pid
    assert not select.select([ranks[1].stdout], [], [], 0.5)[0], "it went on"


def test_a_worker_stops_at_the_third_pass_after_it_was_told_to(start, tmp_path):
    package = tmp_path / "vllm" / "v1" / "worker"
    package.mkdir(parents=True)
    (package / "gpu_worker.py").write_text(WORKER)
    told = {"at": "decode", "deed": "stop", "rank": 0}
    worker = start(told, SERVING, path=str(tmp_path))
    assert worker.stdout.readline() == "0\n"
    (tmp_path / "strike").touch()
    wait_until(lambda: procfs.read_stat(worker.pid).state == "T")
    assert json.loads((tmp_path / "struck.json").read_text())["pid"] == worker.pid


def test_the_capture_of_a_graph_is_where_it_is_looked_for(start):
    script = "import torch; print(torch.cuda.CUDAGraph.capture_begin.__wrapped__.__name__, flush=True)"
    process = start({"at": "capture", "deed": "endless", "rank": 0}, script)
    assert process.stdout.readline() == "capture_begin\n"


def test_a_row_says_what_of_it_is_wrong(trials):
    case = next(each for each in all_cases() if each.name.endswith("stopped in decode"))
    right = {"verdict": "hung", "struck": 7, "suspect": {"pid": 7}, "after_fault_s": 4.0}
    assert trials.why_not(case, right) == ""
    assert "not hung" in trials.why_not(case, {**right, "verdict": "slow"})
    assert "struck was 7" in trials.why_not(case, {**right, "suspect": {"pid": 8, "name": "rank 0"}})
    assert "not within 20" in trials.why_not(case, {**right, "after_fault_s": 21.0})
    assert "not struck" in trials.why_not(case, {**right, "struck": None})


def all_cases():
    return importlib.import_module("gpu_cases").CASES


def test_no_case_uses_multicast_and_each_has_a_name_of_its_own(trials):
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        words = trials.command_of(case, "python", Path("/m"), 1, Path("/f"), cpu=False)
        assert {"NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "NVSHMEM_DISABLE_NVLS=1"} < {
            *words
        }
