"""The main job on real engines: what a user's launch is said to be, and why."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from shakedown.provision import SGLANG, VLLM, prepare_engine, prepare_model

pytestmark = pytest.mark.engine


def say(text: str) -> None:
    print(text, file=sys.stderr)


@pytest.fixture(scope="session")
def vllm() -> Path:
    return prepare_engine(VLLM, say)


@pytest.fixture(scope="session")
def sglang() -> Path:
    return prepare_engine(SGLANG, say)


@pytest.fixture(scope="session")
def model(vllm: Path) -> Path:
    return prepare_model(vllm, say)


VLLM_ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


def vllm_launch(python: Path, model: Path, port: int, *flags: str, context: int = 2048) -> list[str]:
    start = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    where = ["--host", "127.0.0.1", "--port", str(port)]
    return [*start, *where, "--max-model-len", str(context), "--dtype", "float32", *flags]


def sglang_launch(python: Path, model: Path, port: int, *flags: str) -> list[str]:
    start = [str(python), "-m", "sglang.launch_server", "--model-path", str(model)]
    where = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    small = ["--attention-backend", "torch_native", "--mem-fraction-static", "0.2", "--max-total-tokens"]
    return [*start, *where, *small, "8192", *flags]


def sglang_env(python: Path) -> dict[str, str]:
    path = f"{python.parent}:{os.environ['PATH']}"
    return {"HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1", "PATH": path}


def phases_of(document: dict) -> set[str]:
    return {span["phase"] for span in document["phases"]}


def test_compiled_vllm_is_silent_for_a_minute_and_serves(shakedown, vllm, model, port, tmp_path):
    env = VLLM_ENV | {"VLLM_CACHE_ROOT": str(tmp_path / "cold")}
    said = shakedown("run", launch=vllm_launch(vllm, model, port), env=env)
    assert (said.document["verdict"], said.code) == ("serves", 0), said.document
    assert {"import", "config", "weight_load", "compile", "kv_cache", "ready"} <= phases_of(said.document)


def test_stated_marks_are_measured_on_a_server_that_speculates(shakedown, vllm, model, port):
    speculation = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'
    marks = ("accept_length >= 1", "accept_length >= 5", "tokens_per_s >= 0.01", "ready_s <= 800")
    options = [word for mark in marks for word in ("--expect", mark)]
    launch = vllm_launch(vllm, model, port, "--enforce-eager", "--speculative-config", speculation)
    said = shakedown("run", *options, launch=launch, env=VLLM_ENV)
    assert (said.document["verdict"], said.code) == ("slow", 1), said.document
    assert [each["met"] for each in said.document["expectations"]] == [True, True, False, True]
    for each in said.document["expectations"]:
        assert each["low"] <= each["value"] <= each["high"]


def test_sglang_serves(shakedown, sglang, model, port):
    said = shakedown("run", launch=sglang_launch(sglang, model, port), env=sglang_env(sglang))
    assert (said.document["verdict"], said.code) == ("serves", 0), said.document
    assert "weight_load" in phases_of(said.document)


def test_transformers_serve_serves(shakedown, vllm, model, port):
    program = vllm.parent / "transformers"
    launch = [str(program), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    launch += ["--dtype", "float32"]  # a CPU without instructions for bfloat16 makes three tokens a second
    said = shakedown("run", launch=launch, env={"HF_HUB_OFFLINE": "1"})
    assert (said.document["verdict"], said.code) == ("serves", 0), said.document


def test_a_variable_that_silences_sglangs_scheduler_is_proven(shakedown, sglang, model, port):
    env = sglang_env(sglang) | {"SGLANG_TEST_STUCK_SCHEDULER_INIT": "600"}
    said = shakedown("isolate", launch=sglang_launch(sglang, model, port), env=env)
    document = said.document
    failing = document["failing"]
    assert (failing["verdict"], failing["wait"]) == ("hung", "waiting"), document
    assert "scheduler" in failing["suspect"]["name"]
    (culprit,) = document["cause"]["factors"]
    assert culprit["name"].startswith("SGLANG_TEST_STUCK_SCHEDULER_INIT")
    assert all(check["value"] for check in document["certificate"].values())
    assert said.code == 0


def test_a_context_longer_than_the_models_is_named_with_a_length_that_works(shakedown, vllm, model, port):
    launch = vllm_launch(vllm, model, port, "--enforce-eager", context=20_000)
    said = shakedown("isolate", launch=launch, env=VLLM_ENV)
    document = said.document
    assert document["verdict"] == "crashed", document
    assert "max_model_len (20000)" in document["failing"]["cause"]
    (culprit,) = document["cause"]["factors"]
    assert culprit["name"].startswith("--max-model-len")
    assert "works" in document["cause"]["value_note"]
    assert said.code == 0


def test_a_truncated_shard_is_named(shakedown, vllm, model, port, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    weights = broken / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    said = shakedown("run", launch=vllm_launch(vllm, broken, port, "--enforce-eager"), env=VLLM_ENV)
    assert (said.document["verdict"], said.code) == ("crashed", 1), said.document
    assert "safetensor" in said.document["cause"].lower()
    assert said.document["phase"] == "weight_load"


def test_an_unknown_flag_is_named(shakedown, vllm, model, port):
    said = shakedown("run", launch=vllm_launch(vllm, model, port, "--enforce-eagre"), env=VLLM_ENV)
    assert (said.document["verdict"], said.code) == ("crashed", 1), said.document
    assert "--enforce-eagre" in said.document["cause"]


def test_random_weights_are_wrong_and_the_flag_that_asks_for_them_is_named(shakedown, vllm, model, port):
    launch = vllm_launch(vllm, model, port, "--enforce-eager", "--load-format", "dummy")
    said = shakedown("run", launch=launch, env=VLLM_ENV)
    assert (said.document["verdict"], said.code) == ("wrong", 1), said.document
    assert "--load-format dummy" in said.document["cause"]


REFUSED_KERNELS = """
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "vllm._C" or name.startswith("vllm._C_"):
            raise ImportError(f"{name}: undefined symbol: _ZN3c104cuda9SetDeviceEi")

sys.meta_path.insert(0, Refuse())
"""


def test_a_kernel_library_that_does_not_load_is_the_broken_rung(shakedown, vllm, model, port, tmp_path):
    """No flag is to blame: the engine's own kernels are, and what they stand on is sound."""
    (tmp_path / "sitecustomize.py").write_text(REFUSED_KERNELS)
    launch = vllm_launch(vllm, model, port, "--enforce-eager", "--max-num-seqs", "4")
    said = shakedown("isolate", launch=launch, env=VLLM_ENV | {"PYTHONPATH": str(tmp_path)})
    cause = said.document["cause"]
    assert (said.code, cause["kind"], cause["rung"]) == (0, "base", "engine kernels"), said.document
    certificate = said.document["certificate"]
    proven = ("safe_mode_fails", "rung_fails", "next_simpler_passes")
    assert [certificate[name]["value"] for name in proven] == [True, True, True]
    assert "--max-num-seqs 4" in {factor["name"] for factor in said.document["cleared"]}
