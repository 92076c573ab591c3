"""What `accept_faults.py` launches: of each engine its command, how faults are planted in it, and its rows.

It starts nothing. Another engine is another `Setup` in SETUPS.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from accept_engines import install_plant, vllm_argv

SAME = frozenset({"same"})
ANY = frozenset({"same", "undecided"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`blame`: what may be said; `pattern`: what the states of `stage` may look like."""

    name: str
    blame: frozenset[str]
    pattern: frozenset[str] = ANY
    stage: str = "verification"
    plant: str = ""
    drafts: int = 3
    argv: tuple[str, ...] = ()


def healthy(name: str, *argv: str, drafts: int = 3, **named: object) -> Row:
    return Row(name=f"healthy, {name}", blame=frozenset({"none"}), argv=argv, drafts=drafts, **named)  # type: ignore[arg-type]


def captured(plant: str, *patterns: str, argv: tuple[str, ...] = ()) -> Row:
    blame, pattern = frozenset({"capture"}), frozenset(patterns)
    return Row(name=plant, plant=plant, blame=blame, pattern=pattern, argv=argv)


def drafted(plant: str, *argv: str) -> Row:
    return Row(name=plant, plant=plant, blame=frozenset({"drafter_path"}), argv=argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """An engine on one kind of device.

    `argv(python, model, port)` is the plain server, to which the drafter is added; `plant(folder, name)`
    gives the variables that plant a fault in a server started with them. `cache`: a variable naming a folder
    of compiled code, which no row may share with another: a planted fault would be in it, or be missing.
    """

    argv: Callable[[Path, Path, int], list[str]]
    plant: Callable[[Path, str], dict[str, str]]
    rows: tuple[Row, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cache: str = ""


VLLM_ROWS = (
    healthy("3 drafts"),
    healthy("1 draft", drafts=1),
    healthy("5 drafts", drafts=5),
    healthy("bfloat16", "--dtype", "bfloat16"),
    # No prefill in chunks: with a drafter it kills this vLLM on a CPU ("CPU Generator does not use offset").
    healthy("no prefix cache", "--no-enable-prefix-caching"),
    captured("ids+1", "layer_shift"),
    captured("ids-1", "layer_shift"),
    captured("residual", "residual_missing"),
    captured("norm", "final_norm_applied"),
    captured("permuted", "permuted_slots"),
    captured("late", "stale", "token_shift"),
    drafted("d2t"),
    drafted("rope"),
    drafted("embedding"),
)

EAGER = "--enforce-eager"
# As many tokens a step as a prompt of these has not: the shortest has some forty.
CHUNKS = ("--enable-chunked-prefill", "--max-num-batched-tokens", "32", "--max-num-seqs", "4")

# The first five compiled and with CUDA graphs, so that some run side by side while the rest, which start
# sooner, wait: `late` keeps states in Python between two steps, and the faults of the drafter lie in its
# weights, its config and its first line.
VLLM_GPU_ROWS = (
    healthy("3 drafts"),
    captured("ids+1", "layer_shift"),
    captured("residual", "residual_missing"),
    healthy("prefill in chunks", *CHUNKS, stage="chunked prefill", pattern=SAME),
    healthy("1 draft", drafts=1),
    healthy("eager, no prefix cache", EAGER, "--no-enable-prefix-caching", stage="prefill", pattern=SAME),
    captured("late", "stale", "token_shift", argv=(EAGER,)),
    drafted("d2t", EAGER),
    drafted("rope", EAGER),
    drafted("embedding", EAGER),
)


def vllm_gpu_argv(python: Path, model: Path, port: int) -> list[str]:
    """With a cache of a stated size: vLLM measures how much is free, and a neighbour's start spoils that."""
    start = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    small = ["--max-model-len", "2048", "--gpu-memory-utilization", "0.06", "--max-num-seqs", "8"]
    cache = ["--kv-cache-memory-bytes", str(2**30)]
    return [*start, *small, *cache, "--host", "127.0.0.1", "--port", str(port)]


# All with CUDA graphs: the tap and `late` lie outside of them, the other plants are captured in them.
SGLANG_GPU_ROWS = (
    healthy("3 drafts"),
    captured("ids+1", "layer_shift"),
    captured("late", "stale", "token_shift"),
    drafted("d2t"),
    drafted("rope"),
    healthy("no overlap", "--disable-overlap-schedule"),
    healthy("prefill in chunks", "--chunked-prefill-size", "32", stage="chunked prefill", pattern=SAME),
    healthy("no prefix cache", "--disable-radix-cache", stage="prefill", pattern=SAME),
    captured("residual", "residual_missing"),
    drafted("embedding"),
)


def sglang_gpu_argv(python: Path, model: Path, port: int) -> list[str]:
    """With so few tokens of cache that servers beside each other leave each other enough of the GPU.

    The fraction limits nothing then. What it leaves of the GPU must be free once the weights are there, and
    to neighbours that start meanwhile a small one left too little: SGLang ended.
    """
    start = [str(python), "-m", "sglang.launch_server", "--model-path", str(model)]
    kernels = ["--attention-backend", "triton", "--sampling-backend", "pytorch", "--grammar-backend", "none"]
    small = ["--mem-fraction-static", "0.9", "--max-total-tokens", "16384", "--max-running-requests", "8"]
    ports = ["--host", "127.0.0.1", "--port", str(port), "--nccl-port", str(port + 100)]
    return [*start, *kernels, *small, "--cuda-graph-max-bs", "8", *ports]


SETUPS: dict[tuple[str, str], Setup] = {
    ("vllm", "cpu"): Setup(
        argv=vllm_argv, plant=install_plant, rows=VLLM_ROWS, env={"VLLM_CPU_KVCACHE_SPACE": "1"}
    ),
    ("vllm", "gpu"): Setup(
        argv=vllm_gpu_argv,
        plant=install_plant,
        rows=VLLM_GPU_ROWS,
        env={"VLLM_USE_FLASHINFER_SAMPLER": "0"},
        cache="VLLM_CACHE_ROOT",
    ),
    ("sglang", "gpu"): Setup(
        argv=sglang_gpu_argv, plant=partial(install_plant, engine="sglang"), rows=SGLANG_GPU_ROWS
    ),
}
