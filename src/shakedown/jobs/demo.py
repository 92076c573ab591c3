"""`shakedown demo`: the main job on a real engine with a real fault, on a CPU."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from shakedown.core import Launch
from shakedown.errors import EnvironmentProblem
from shakedown.host.reach import free_port
from shakedown.jobs.isolate import isolate_job
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import JobResult, Talk
from shakedown.provision import VLLM, prepare_engine, prepare_model
from shakedown.provision.environments import cache_folder

STORY = """\
Somebody copied a two-node recipe for vLLM to one box. The server starts, says nothing wrong, and never
becomes ready: no error, no port. Shakedown now launches it, watches it, and proves which setting it is."""


def demo_job(talk: Talk, ledger: Path | None, max_launches: int, deadline_s: float) -> JobResult:
    """Installs vLLM and a 135M model once per user, then isolates a launch that hangs in dist_init."""
    if shutil.which("g++") is None:
        raise EnvironmentProblem(
            "g++ is not installed; vLLM compiles on its first logprobs request",
            "on Debian: apt-get install g++",
        )
    python = prepare_engine(VLLM, talk.say)
    model = prepare_model(python, talk.say)
    launch = two_node_recipe(python, model)
    talk.say(STORY)
    request = LaunchRequest(launch=launch, deadline_s=deadline_s, ledger=ledger)
    return isolate_job(request, talk, max_launches=max_launches, resume=None, seed=0)


def two_node_recipe(python: Path, model: Path) -> Launch:
    """Seventeen flags and seven variables of which one group is to blame: node 1 is not there."""
    port, master_port = free_port(), free_port()
    flags = (
        f"--model {model} --host 127.0.0.1 --port {port} --served-model-name smollm2"
        " --max-model-len 2048 --dtype float32 --enforce-eager --max-num-seqs 8 --block-size 32 --seed 0"
        f" --nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --master-port {master_port}"
        " --pipeline-parallel-size 2 --generation-config vllm --uvicorn-log-level warning"
    )
    variables = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(cache_folder() / "vllm-cache"),
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_RPC_TIMEOUT": "20000",
        "OMP_NUM_THREADS": "2",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return Launch(
        argv=(str(python), "-m", "vllm.entrypoints.openai.api_server", *flags.split()),
        env={**os.environ, **variables},
        cwd=Path.cwd(),
    )
