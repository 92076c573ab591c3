"""What is launched, planted and expected: one row for each server that `gpu_servers.py` starts."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# Two ranks can share these heads; on a CPU three ranks share those that the model has.
SHAPE = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1536}
CPU_RANKS = 3
PLANTS = Path(__file__).parent / "planted_gpu"

# No NVLink multicast: on a lent machine it is not ours to use.
ON_GPU = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "4",  # many servers share the cores
    "MAX_JOBS": "8",
}


class At(StrEnum):
    """Where a server is struck. LOAD is told from its log, and from outside; the others are in strike.py."""

    NEVER = "never"
    LOAD = "load"
    JOIN = "join"
    CAPTURE = "capture"
    DECODE = "decode"


class Deed(StrEnum):
    NONE = "none"
    STOP = "stop"
    ABSENT = "absent"
    ENDLESS = "endless"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`gpu`: where a server of one rank stands. `within_s`: how soon after the deed it must be hung."""

    name: str
    engine: str
    at: At = At.NEVER
    deed: Deed = Deed.NONE
    ranks: int = 1
    gpu: int = 0
    within_s: float = 120.0
    cold: bool = False
    graphs: bool = False
    dumps: bool = False  # a CUDA core dump may be asked for
    ras_port: int | None = None  # else NCCL's own

    @property
    def needs_kernels(self) -> bool:
        """Whether it comes so far that kernels are compiled: on caches that nobody else holds locks of."""
        return self.at in (At.CAPTURE, At.DECODE)

    @property
    def on_cpu(self) -> bool:
        """Whether it can be tried without a GPU: SGLang has no ranks there, and nobody has kernels."""
        alone = self.ranks == 1 or self.engine == "vllm"
        return alone and self.at is not At.CAPTURE and self.deed is not Deed.ENDLESS and not self.cold


def _one(engine: str, name: str, **more: object) -> Case:
    return Case(name=f"{engine}: {name}", engine=engine, **more)  # type: ignore[arg-type]


def _two(engine: str, name: str, **more: object) -> Case:
    return _one(engine, f"rank 1 of 2 {name}", ranks=2, **more)


SGLANG, VLLM = "sglang", "vllm"
CASES = (
    _one(SGLANG, "first start, cold", gpu=0, cold=True, graphs=True),
    _one(VLLM, "first start, cold", gpu=1, cold=True, graphs=True),
    _one(SGLANG, "scheduler stopped while it loads", at=At.LOAD, deed=Deed.STOP, within_s=20.0),
    _one(VLLM, "engine core stopped while it loads", gpu=1, at=At.LOAD, deed=Deed.STOP, within_s=20.0),
    _one(
        SGLANG,
        "endless kernel as it captures",
        gpu=1,
        at=At.CAPTURE,
        deed=Deed.ENDLESS,
        graphs=True,
        dumps=True,
    ),
    _one(SGLANG, "endless kernel in decode", gpu=0, at=At.DECODE, deed=Deed.ENDLESS, graphs=True),
    _one(VLLM, "endless kernel in decode", gpu=1, at=At.DECODE, deed=Deed.ENDLESS),
    _two(SGLANG, "stopped before the first all-reduce", at=At.JOIN, deed=Deed.STOP, within_s=20.0),
    _two(VLLM, "stopped before the first all-reduce", at=At.JOIN, deed=Deed.STOP, within_s=20.0),
    _two(SGLANG, "stopped in capture", at=At.CAPTURE, deed=Deed.STOP, graphs=True, within_s=20.0),
    _two(VLLM, "stopped in capture", at=At.CAPTURE, deed=Deed.STOP, graphs=True, within_s=20.0),
    _two(SGLANG, "stopped in decode", at=At.DECODE, deed=Deed.STOP, graphs=True, within_s=20.0),
    _two(VLLM, "stopped in decode", at=At.DECODE, deed=Deed.STOP, within_s=20.0),
    _two(SGLANG, "away before the first all-reduce", at=At.JOIN, deed=Deed.ABSENT),
    _two(VLLM, "away before the first all-reduce", at=At.JOIN, deed=Deed.ABSENT),
    _two(SGLANG, "away in decode", at=At.DECODE, deed=Deed.ABSENT, graphs=True, ras_port=28101),
    _two(VLLM, "away in decode", at=At.DECODE, deed=Deed.ABSENT, ras_port=28102),
)

# Log lines by which the benchmark knows where a server is.
LOADS = {SGLANG: "Load weight begin", VLLM: "Starting to load model"}
READY = {SGLANG: "The server is fired up and ready to roll", VLLM: "Application startup complete"}
STRUCK_TITLE = {SGLANG: "sglang::scheduler", VLLM: "VLLM::EngineCor"}


def command_of(
    case: Case, python: str, model: Path, port: int, folder: Path, *, cpu: bool, caches: Path | None = None
) -> list[str]:
    """The words after `shakedown run --`. `caches`: where kernels are kept; None: where they always are."""
    env = environment(case, folder, cpu=cpu)
    if caches is not None and not cpu:
        env |= cache_variables(caches)
    env["PATH"] = f"{Path(python).parent}:{os.environ['PATH']}"  # ninja stands beside the interpreter
    flags = _sglang(case, cpu=cpu) if case.engine == SGLANG else _vllm(case, cpu=cpu)
    module = "sglang.launch_server" if case.engine == SGLANG else "vllm.entrypoints.openai.api_server"
    model_flag = "--model-path" if case.engine == SGLANG else "--model"
    where = [model_flag, str(model), "--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy"]
    return ["env", *(f"{key}={value}" for key, value in env.items()), python, "-m", module, *where, *flags]


def environment(case: Case, folder: Path, *, cpu: bool) -> dict[str, str]:
    env = {"PYTHONPATH": str(PLANTS), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if case.at in (At.JOIN, At.CAPTURE, At.DECODE):
        told = {"at": case.at, "deed": case.deed, "rank": int(case.ranks > 1), "folder": str(folder)}
        env["STRIKE"] = json.dumps(told)
    if cpu:
        env |= {"SGLANG_USE_CPU_ENGINE": "1"} if case.engine == SGLANG else {"VLLM_CPU_KVCACHE_SPACE": "1"}
        return env | ({"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if case.ranks > 1 else {})
    env |= ON_GPU
    if case.ranks == 1:
        env["CUDA_VISIBLE_DEVICES"] = str(case.gpu)
    if case.engine == SGLANG:
        env["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "0"  # others stand on these GPUs
    else:
        env |= {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}
    if case.ras_port:
        env["NCCL_RAS_ADDR"] = f"localhost:{case.ras_port}"
    if case.dumps:
        env |= {
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
            "CUDA_COREDUMP_PIPE": str(folder / "pipe.%h.%p"),
            "CUDA_COREDUMP_FILE": str(folder / "core.%h.%p.nvcudmp"),
            "CUDA_COREDUMP_GENERATION_FLAGS": "skip_global_memory,skip_shared_memory,skip_local_memory",
        }
    return env


def cache_variables(folder: Path) -> dict[str, str]:
    """For everything that compiles."""
    names = (
        "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT",
        "SGLANG_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "TVM_FFI_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME",
    )  # fmt: skip
    return {name: str(folder / name.lower()) for name in names}


def _sglang(case: Case, *, cpu: bool) -> list[str]:
    flags = ["--context-length", "2048", "--grammar-backend", "none", "--max-total-tokens", "8192"]
    if cpu:
        flags += ["--device", "cpu", "--attention-backend", "torch_native", "--mem-fraction-static", "0.2"]
        return [*flags, "--disable-overlap-schedule"]
    # The fraction is of what is free as it starts; the tokens bound it, and neighbours take of it meanwhile.
    flags += [
        "--mem-fraction-static",
        "0.5",
        "--attention-backend",
        "triton",
        "--sampling-backend",
        "pytorch",
    ]
    flags += ["--cuda-graph-max-bs", "4", "--json-model-override-args", json.dumps(SHAPE)]
    if not case.graphs:
        flags += ["--disable-cuda-graph"]
    elif not case.cold:
        flags += ["--disable-prefill-cuda-graph"]
    if case.ranks > 1:  # the custom one would stand in for NCCL
        flags += ["--tp", str(case.ranks), "--disable-custom-all-reduce"]
    return flags


def _vllm(case: Case, *, cpu: bool) -> list[str]:
    flags = ["--max-model-len", "2048", "--max-num-seqs", "8", "--max-num-batched-tokens", "2048"]
    if not case.graphs:
        flags += ["--enforce-eager"]
    if cpu:
        return [*flags, *(["--tensor-parallel-size", str(CPU_RANKS)] if case.ranks > 1 else [])]
    # A stated size is not profiled: what neighbours take and give back meanwhile would count as its own.
    flags += ["--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", str(1 << 30)]
    flags += ["--hf-overrides", json.dumps(SHAPE)]
    if case.ranks > 1:
        flags += ["--tensor-parallel-size", str(case.ranks), "--disable-custom-all-reduce"]
    return flags
