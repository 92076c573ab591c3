"""What stands side by side on one GPU in our benchmarks fits on it, and on its ports."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import accept_faults
import accept_setups
import gpu_check
import gpu_check_tasks
import gpu_isolate
import gpu_isolate_rows
from gpu_plants import SLICE_GIB

GPU_GIB = 139  # an H200


@pytest.fixture(params=[1, 2])
def costs(request, tmp_path, monkeypatch):
    """The launches whose seconds are measured on a host with so many GPUs."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\n" + "echo GPU\n" * request.param)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}:/bin:/usr/bin")
    here = Path(sys.executable)
    given = argparse.Namespace(cpu=False, sglang=here, vllm=here, model=tmp_path, head=tmp_path)
    return [task for task in gpu_check_tasks.tasks_of(given, tmp_path) if task.kind == "cost"]


def test_the_launches_whose_seconds_are_measured_fit_on_their_gpus_together(costs):
    held: Counter[str] = Counter()
    for lane in gpu_check_tasks.lanes_of(costs):
        shown = [gpu_check_tasks.LARGE_GIB if task.host.endswith("large") else SLICE_GIB for task in lane]
        assert len({task.gpus for task in lane}) == 1
        held[lane[0].gpus] += max(shown)
    assert max(held.values()) < 0.9 * GPU_GIB
    assert all("--max-total-tokens" in task.command for task in costs)


def test_what_no_time_was_left_for_is_a_row_and_no_process(costs, tmp_path):
    rows = []
    given = argparse.Namespace(model="m", head="h", sglang="s", vllm="v", parts="costs", cpu=False)
    late_s = time.monotonic() - 1.0
    gpu_check.follow(costs[0], given, tmp_path, late_s, lambda name, row: rows.append(row["said"]))
    assert (rows, gpu_check.STARTED) == ([["no time was left for it"]], [])


def test_sglang_outlives_neighbours_that_start_while_it_loads():
    """It ends where less is free, once its weights are there, than its fraction leaves of what was."""
    setup = accept_setups.SETUPS["sglang", "gpu"]
    argv = setup.argv(Path("python"), Path("model"), 1)
    fraction = float(argv[argv.index("--mem-fraction-static") + 1])
    assert "--max-total-tokens" in argv  # and that alone says what it takes
    vllm = accept_setups.SETUPS["vllm", "gpu"].argv(Path("python"), Path("model"), 1)
    each_vllm = GPU_GIB * float(vllm[vllm.index("--gpu-memory-utilization") + 1])
    searches = 4  # in plans/one_gpu.toml, with two servers of each engine
    neighbours = searches * SLICE_GIB + 2 * each_vllm + SLICE_GIB  # the last is the other SGLang
    assert GPU_GIB - neighbours > GPU_GIB * (1 - fraction)


def test_no_two_servers_beside_each_other_have_one_port():
    taken: list[int] = []
    for number in range(len(gpu_isolate_rows.ROWS)):
        first = gpu_isolate.FIRST_PORT + gpu_isolate.PORTS_EACH * number
        taken += [first, first + 10_000]
    for engine in ("vllm", "sglang"):
        for number, _ in enumerate(accept_setups.SETUPS[engine, "gpu"].rows):
            port = accept_faults.FIRST_PORT[engine] + accept_faults.PORTS_APART * number
            taken += [port, port + 100]
    assert [port for port, count in Counter(taken).items() if count > 1] == []
