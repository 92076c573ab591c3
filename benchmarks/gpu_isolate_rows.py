"""The planted causes of `gpu_isolate.py`: a command each, what is wrong with it, and what must be blamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine_causes import Planted
from gpu_plants import IN_CUSTOM, WITHOUT_P2P, cut_file, more_heads, narrow_fc

from shakedown.jobs.rungs import WEIGHTS

BARE = (
    *("{python}", "-m", "sglang.launch_server", "--model-path", "{model}", "--host", "127.0.0.1"),
    *("--port", "{port}", "--context-length", "4096", "--cuda-graph-max-bs", "8", "--random-seed", "1"),
    *("--stream-interval", "2", "--max-running-requests", "16"),
)
ON_GPU = (*BARE, "--sampling-backend", "pytorch", "--grammar-backend", "none")
TRITON = ("--attention-backend", "triton")
EAGLE3 = (
    *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "{head}"),
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "4"),
)
VLLM_ON_GPU = (
    *("{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--host", "127.0.0.1"),
    *("--port", "{port}", "--max-model-len", "4096", "--gpu-memory-utilization", "0.5", "--seed", "0"),
    *("--max-num-seqs", "16", "--uvicorn-log-level", "warning"),
    *("--speculative-config", '{"method": "eagle3", "model": "{head}", "num_speculative_tokens": 3}'),
)
ON_CPU = (
    *("{python}", "-m", "sglang.launch_server", "--model-path", "{model}", "--host", "127.0.0.1"),
    *("--port", "{port}", "--device", "cpu", "--attention-backend", "torch_native"),
    *("--max-total-tokens", "8192", "--random-seed", "1", "--stream-interval", "2"),
)
VLLM_ON_CPU = (
    *("{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--host", "127.0.0.1"),
    *("--port", "{port}", "--max-model-len", "2048", "--enforce-eager", "--seed", "0"),
    *("--speculative-config", '{"method": "eagle3", "model": "{head}", "num_speculative_tokens": 3}'),
)
VARIABLES: Mapping[str, Mapping[str, str]] = {
    "sglang": {"SGLANG_LOG_MS": "1", "OMP_NUM_THREADS": "4", "NCCL_DEBUG": "WARN"},
    "vllm": {"VLLM_LOGGING_LEVEL": "INFO", "OMP_NUM_THREADS": "4", "VLLM_CACHE_ROOT": "{caches}/vllm"},
    "vllm on the CPU": {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": "{caches}/vllm",
        "OMP_NUM_THREADS": "2",
    },
    "sglang on the CPU": {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_LOG_MS": "1", "OMP_NUM_THREADS": "2"},
}
SPECULATION = "speculative decoding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`gpus`: the GPUs it sees. `head`, `model`: make the drafter or the model of the row in its folder.
    `plant`: what is added to the host's preparation of every process. `rung`: to be blamed, not a factor."""

    id: str
    kind: str
    truth: tuple[str, ...]
    command: tuple[str, ...]
    engine: str = "sglang"
    gpus: str = "0"
    env: Mapping[str, str] = field(default_factory=dict)
    head: Callable[[Path, Path], Path] | None = None
    model: Callable[[Path, Path], Path] | None = None
    plant: str = ""
    rung: str = ""

    @property
    def ranks(self) -> int:
        return len(self.gpus.split(","))

    @property
    def planted(self) -> Planted:
        return Planted(id=self.id, engine=self.engine, kind=self.kind, truth=self.truth)


STUCK = {"SGLANG_TEST_STUCK_SCHEDULER_INIT": "600"}
ROWS = (
    Row(
        id="sgl-hang",
        kind="variable, a hang",
        truth=("SGLANG_TEST_STUCK_SCHEDULER_INIT",),
        command=(*ON_GPU, *TRITON, *EAGLE3),
        env=STUCK,
    ),
    Row(
        id="sgl-variable",
        kind="variable and drafter",
        # The module that the drafter's class is in: the target's own serves without it.
        truth=("SGLANG_DISABLED_MODEL_ARCHS", SPECULATION),
        command=(*ON_GPU, *TRITON, *EAGLE3),
        gpus="1",
        env={"SGLANG_DISABLED_MODEL_ARCHS": "llama_eagle3"},
    ),
    Row(
        id="sgl-flag",
        kind="flag",
        truth=("--mem-fraction-static",),
        command=(*ON_GPU, *TRITON, *EAGLE3, "--mem-fraction-static", "0.001"),
    ),
    Row(
        id="sgl-backend",
        kind="flag and drafter",
        truth=("--attention-backend", SPECULATION),
        command=(*ON_GPU, "--attention-backend", "torch_native", *EAGLE3),
        gpus="1",
    ),
    Row(
        id="sgl-drafter",
        kind="a cut drafter",
        truth=(SPECULATION,),
        command=(*ON_GPU, *TRITON, *EAGLE3),
        head=cut_file,
    ),
    Row(
        id="sgl-weights",
        kind="cut weights: no flag's fault",
        truth=(),
        command=BARE,
        gpus="1",
        model=cut_file,
        rung=WEIGHTS,
    ),
    Row(
        id="vllm-flag",
        kind="flag",
        engine="vllm",
        truth=("--kv-transfer-config",),
        command=(
            *VLLM_ON_GPU,
            *("--kv-transfer-config", '{"kv_connector": "nosuch", "kv_role": "kv_both"}'),
        ),
        gpus="1",
    ),
    Row(
        id="vllm-drafter",
        kind="a drafter with a narrow fc",
        engine="vllm",
        truth=(SPECULATION,),
        command=VLLM_ON_GPU,
        head=narrow_fc,
    ),
    Row(
        id="tp2-p2p",
        kind="variable, a rank stays away",
        truth=("NCCL_P2P_DISABLE",),
        command=(*ON_GPU, *TRITON, "--tp-size", "2"),
        gpus="0,1",
        env={"NCCL_P2P_DISABLE": "1"},
        model=more_heads,
        plant=WITHOUT_P2P,
    ),
    Row(
        id="tp2-custom",
        kind="default, a rank stays away",
        truth=("custom all-reduce",),
        command=(*ON_GPU, *TRITON, "--tp-size", "2"),
        gpus="0,1",
        model=more_heads,
        plant=IN_CUSTOM,
    ),
)
CPU_ROWS = (
    Row(
        id="cpu-hang",
        kind="variable, a hang",
        engine="sglang on the CPU",
        truth=("SGLANG_TEST_STUCK_SCHEDULER_INIT",),
        command=ON_CPU,
        env=STUCK,
    ),
    Row(
        id="cpu-model",
        kind="a model with more heads",
        engine="sglang on the CPU",
        truth=("--swa-full-tokens-ratio",),
        command=(*ON_CPU, "--swa-full-tokens-ratio", "5"),
        model=more_heads,
    ),
    Row(
        id="cpu-drafter",
        kind="a drafter with a narrow fc",
        engine="vllm on the CPU",
        truth=(SPECULATION,),
        command=VLLM_ON_CPU,
        head=narrow_fc,
    ),
)
