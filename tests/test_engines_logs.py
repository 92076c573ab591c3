"""Markers and phrases against excerpts of real logs."""

import re
from pathlib import Path

import pytest

from shakedown.core import Engine, Phase
from shakedown.engines import engine_named

LOGS = Path(__file__).parent / "logs"
ENGINES = ["vllm", "sglang", "transformers", "generic"]


def lines(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_text().splitlines()


def phases(engine: Engine, name: str) -> list[Phase]:
    seen: list[Phase] = []
    for line in lines(name):
        seen += [m.phase for m in engine.markers if re.search(m.pattern, line) and m.phase not in seen]
    return seen


P = Phase
LOADED = [P.CONFIG, P.DIST_INIT, P.WEIGHT_LOAD]
SERVED = [P.WARM_UP, P.BIND, P.READY, P.SERVING]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm-0.32.0-cpu-compiled", [*LOADED, P.COMPILE, P.KV_CACHE, *SERVED]),
        ("vllm-0.32.0-cpu-two-nodes", [P.CONFIG, P.DIST_INIT]),
        ("vllm-0.32.0-cpu-cache-too-big", [*LOADED, P.KV_CACHE]),
        ("vllm-0.32.0-cpu-worker-lost", LOADED),
        ("vllm-0.32.0-unknown-flag", [P.CONFIG]),
        ("vllm-0.25.1-gpu-eagle3", [*LOADED, P.POST_LOAD, P.COMPILE, P.KV_CACHE, P.GRAPH_CAPTURE, *SERVED]),
        ("sglang-0.5.14-gpu-eagle3", [*LOADED, P.POST_LOAD, P.KV_CACHE, P.GRAPH_CAPTURE, *SERVED]),
        ("sglang-0.5.14-cpu", [*LOADED, P.POST_LOAD, P.KV_CACHE, *SERVED]),
        ("sglang-0.5.14-cpu-crash", [*LOADED, P.POST_LOAD, P.KV_CACHE, P.GRAPH_CAPTURE]),
        ("sglang-0.5.14-h200-tp2-crash", LOADED),
        ("transformers-5.19-cpu", [P.WEIGHT_LOAD, P.BIND, P.READY, P.SERVING]),
    ],
)
def test_a_real_log_passes_its_phases_in_order(name, expected):
    found = phases(engine_named(name.partition("-")[0]), name)
    assert found == expected
    assert found == sorted(found, key=lambda phase: phase.order)


@pytest.mark.parametrize("name", ENGINES)
def test_every_pattern_compiles_and_stays_linear(name):
    engine = engine_named(name)
    long = "Capture (" * 4000 + "bs=9 " * 4000 + " |" * 4000
    for pattern in (
        *(marker.pattern for marker in engine.markers),
        *engine.waiting_phrases,
        *engine.noise,
        *engine.fatal,
        *engine.not_a_cause,
        *engine.alarms,
        engine.rank_pattern,
    ):
        assert not re.search(r"[+*]\)[+*]|\.\*.*\.\*", pattern), f"{pattern} may be slow"
        re.search(pattern, long)


def test_ranks_are_read_from_the_prefix():
    vllm, sglang = engine_named("vllm").rank_pattern, engine_named("sglang").rank_pattern
    found = re.match(vllm, "(Worker_TP1_EP1 pid=2951) INFO 11-29 14:47:11 [x.py:1] text")
    assert found
    assert (found["rank"], found["pid"]) == ("Worker_TP1_EP1", "2951")
    found = re.match(sglang, "[2026-11-29 14:27:13 DP1 TP3] Load weight begin.")
    assert found
    assert found["rank"] == "DP1 TP3"
    found = re.match(sglang, "[2026-11-29 14:27:13] Load weight begin.")
    assert found
    assert found["rank"] is None


def causes(engine: Engine, name: str) -> list[str]:
    return [
        line
        for line in lines(name)
        if re.search(r"\w(?:Error|Exception)\b", line)
        and not any(re.search(pattern, line) for pattern in engine.not_a_cause)
    ]


def test_the_first_error_that_may_be_a_cause_is_the_cause():
    vllm, sglang = engine_named("vllm"), engine_named("sglang")
    assert "on kv cache allocation is less than requested" in causes(vllm, "vllm-0.32.0-cpu-cache-too-big")[0]
    assert "unified_attention_with_output" in causes(sglang, "sglang-0.5.14-cpu-crash")[0]


def test_a_worker_killed_from_outside_leaves_no_cause_in_the_log():
    assert causes(engine_named("vllm"), "vllm-0.32.0-cpu-worker-lost") == []


@pytest.mark.parametrize(
    ("name", "fatal"),
    [
        ("vllm-0.32.0-cpu-compiled", False),
        ("vllm-0.25.1-gpu-eagle3", False),
        ("sglang-0.5.14-gpu-eagle3", False),
        ("sglang-0.5.14-cpu", False),
        ("transformers-5.19-cpu", False),
        ("vllm-0.32.0-cpu-two-nodes", False),
        ("vllm-0.32.0-cpu-cache-too-big", True),
        ("vllm-0.32.0-cpu-worker-lost", True),
        ("vllm-0.32.0-unknown-flag", True),
        ("sglang-0.5.14-cpu-crash", True),
        ("sglang-0.5.14-h200-tp2-crash", True),
    ],
)
def test_only_a_dead_process_is_fatal(name, fatal):
    engine = engine_named(name.partition("-")[0])
    assert any(re.search(p, line) for line in lines(name) for p in engine.fatal) is fatal


def test_the_healthy_compile_warning_is_a_waiting_phrase():
    engine = engine_named("vllm")
    found = [
        line
        for line in lines("vllm-0.32.0-cpu-compiled")
        if any(re.search(p, line) for p in engine.waiting_phrases)
    ]
    assert any("shared memory broadcast block" in line for line in found)


def phase_of(engine: Engine, *stack: str) -> Phase | None:
    for fragment, phase in engine.frame_phases:
        if any(fragment in frame for frame in stack):
            return phase
    return None


def test_a_silent_process_is_placed_by_its_stack():
    vllm, sglang = engine_named("vllm"), engine_named("sglang")
    worker = (
        "_create_c10d_store (torch/distributed/rendezvous.py:199)",
        "init_process_group (torch/distributed/distributed_c10d.py:1892)",
        "init_distributed_environment (vllm/distributed/parallel_state.py:1953)",
        "CPUWorker.init_device (vllm/v1/worker/cpu_worker.py:154)",
    )
    assert phase_of(vllm, *worker) is Phase.DIST_INIT
    loading = "safetensors_weights_iterator (vllm/model_executor/model_loader/weight_utils.py:1208)"
    assert phase_of(vllm, loading) is Phase.WEIGHT_LOAD
    compiling = "compile_fx_inner (site-packages/torch/_inductor/compile_fx.py:900)"
    assert phase_of(vllm, compiling, "determine_available_memory (x.py:1)") is Phase.COMPILE
    assert phase_of(sglang, "capture_one_batch_size (x.py:1)") is Phase.GRAPH_CAPTURE
    importing = "_find_and_load (<frozen importlib._bootstrap>:1176)"
    assert phase_of(sglang, importing) is Phase.IMPORT
    assert phase_of(sglang, importing, "load_model (x.py:1)") is Phase.WEIGHT_LOAD


def test_a_process_that_waits_for_its_child_is_known():
    waits = engine_named("vllm").waits_for_child
    for frame in (
        "wait_for_engine_startup (vllm/v1/engine/utils.py:1398)",
        "WorkerProc.wait_for_ready (vllm/v1/executor/multiproc_executor.py:799)",
        "MessageQueue.acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:864)",
        "main (multiprocessing/resource_tracker.py:227)",
    ):
        assert any(fragment in frame for fragment in waits), frame
    worker = "_create_c10d_store (torch/distributed/rendezvous.py:199)"
    assert not any(fragment in worker for fragment in waits)
    launcher = "_wait_for_scheduler_ready (sglang/srt/entrypoints/engine.py:1357)"
    assert any(fragment in launcher for fragment in engine_named("sglang").waits_for_child)
