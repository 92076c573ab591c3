"""How likely each factor is to blame before any experiment, from the failure and past incidents.

It never looks at a launch: frames and phases are handed in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shakedown.core import Factor, FactorKind, Judgement, Phase, Verdict

UNIFORM = 0.05  # no factor is beyond suspicion; the larger mixture is over hypotheses, in beliefs
STACK_FACTOR = 6.0
CHANGED_FACTOR = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """What is known before the search.

    `stacks` are frames of the stuck processes. `changed` are factors that changed since the launch
    last served. `weights` multiply single factors. `values` offers substitutes for a factor: argv
    tokens to add in its place, mildest first. `seen` is a failure already observed, so that a
    launch that serves at first is looked at again. `intermittent`: it was said to come and go.
    """

    stacks: tuple[str, ...] = ()
    changed: frozenset[str] = frozenset()
    weights: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    seen: Judgement | None = None
    intermittent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Factors that act on one thing: how they are called, the words frames use, hits in 142 incidents."""

    names: tuple[str, ...]
    frames: tuple[str, ...]
    hits: int


TOLD_FACTOR = 200.0  # the first cause quotes the flag or variable with its very value
NAMED_FACTOR = 20.0  # the first cause names the very flag or variable
WORD_FACTOR = 3.0  # for each telling word that the two share
_COMMON = (
    "vllm sglang nccl torch cuda enable disable no max min size num backend use test default config the env"
)
COMMON_WORDS = frozenset(_COMMON.split())
_WORD = re.compile(r"[a-z][a-z0-9]+")

FAMILIES: Mapping[str, Family] = {
    "graphs": Family(
        names=("cuda_graph", "cudagraph", "eager", "compilation", "torch_compile", "compile"),
        frames=("graph", "capture", "inductor", "dynamo", "compil"),
        hits=28,
    ),
    "all_reduce": Family(
        names=("all_reduce", "allreduce"),
        frames=("custom_all_reduce", "all_reduce", "allreduce", "quick_reduce"),
        hits=16,
    ),
    "p2p": Family(names=("p2p", "nvls", "nccl"), frames=("nccl", "p2p"), hits=14),
    "speculation": Family(
        names=("speculative", "draft", "eagle", "mtp", "spec_"),
        frames=("spec_decode", "eagle", "draft", "speculative"),
        hits=11,
    ),
    "ranks": Family(
        names=("tensor_parallel", "pipeline_parallel", "data_parallel", "tp_size", "nnodes", "node_rank"),
        frames=("init_process_group", "tcpstore", "rendezvous", "parallel_state", "distributed_c10d"),
        hits=9,
    ),
    "attention": Family(names=("attention",), frames=("attention", "flashinfer", "flash_attn"), hits=8),
    "network": Family(
        names=("socket_ifname", "host_ip", "gloo", "master_addr", "master_port", "dist_init", "_ib_"),
        frames=("gloo", "tcpstore", "rendezvous", "socket"),
        hits=7,
    ),
    "kernels": Family(
        names=("moe", "gemm", "kernel", "sampling"), frames=("moe", "gemm", "deep_gemm", "sampl"), hits=6
    ),
    "overlap": Family(
        names=("overlap", "async_scheduling"), frames=("overlap", "async_schedul", "event_loop"), hits=5
    ),
    "jit_cache": Family(names=("cache_dir", "cache_root"), frames=("jit", "ninja", "nvcc"), hits=5),
    "autotune": Family(names=("autotune",), frames=("autotun",), hits=4),
    "loader": Family(
        names=("load_format", "loader", "mmap", "prefetch"), frames=("safetensors", "load_weights"), hits=3
    ),
    "prefix_cache": Family(
        names=("prefix_cach", "radix", "kv_cache_dtype"), frames=("prefix", "radix"), hits=3
    ),
    "allocator": Family(names=("alloc_conf",), frames=("allocator",), hits=2),
    "memory": Family(
        names=("mem_fraction", "memory_utilization", "max_num_seqs", "max_model_len", "max_num_batched"),
        frames=("outofmemory", "kv_cache_memory"),
        hits=2,
    ),
}

# (verdict, phase the failure showed in) -> hits among the confirmed incidents of that situation
SITUATIONS: Mapping[tuple[Verdict, Phase], Mapping[str, int]] = {
    (Verdict.HUNG, Phase.DIST_INIT): {"p2p": 14, "ranks": 4, "all_reduce": 3, "network": 3},
    (Verdict.HUNG, Phase.GRAPH_CAPTURE): {"graphs": 5, "all_reduce": 1, "jit_cache": 1, "autotune": 1},
    (Verdict.HUNG, Phase.WARM_UP): {"all_reduce": 1, "kernels": 1, "autotune": 1, "speculation": 1},
    (Verdict.HUNG, Phase.COMPILE): {"jit_cache": 2},
    (Verdict.HUNG, Phase.SERVING): {"all_reduce": 5, "graphs": 5, "overlap": 5, "kernels": 3},
    (Verdict.CRASHED, Phase.GRAPH_CAPTURE): {"all_reduce": 4, "graphs": 4, "allocator": 2},
    (Verdict.CRASHED, Phase.WEIGHT_LOAD): {"speculation": 2, "attention": 1},
    (Verdict.CRASHED, Phase.WARM_UP): {"speculation": 2, "memory": 2, "autotune": 1},
    (Verdict.WRONG, Phase.SERVING): {"graphs": 9, "all_reduce": 2, "attention": 2, "speculation": 2},
    (Verdict.SLOW, Phase.SERVING): {"speculation": 3, "ranks": 1},
    (Verdict.SLOW, Phase.WEIGHT_LOAD): {"loader": 3, "jit_cache": 1, "autotune": 1},
}


def weigh(factors: Sequence[Factor], failing: Judgement, clues: Clues) -> dict[str, float]:
    """The share of suspicion of each factor: evidence mixed with a little uniform, summing to 1."""
    traceback = [it.text for it in failing.evidence if it.kind == "traceback"]
    stuck_in = failing.suspect.frame if failing.suspect else ""
    frames = " ".join((*clues.stacks, *traceback, stuck_in, failing.cause))
    told = {factor.name: _evidence(factor, failing, frames.lower(), clues) for factor in factors}
    total = sum(told[name] for name in sorted(told))
    return {name: (1 - UNIFORM) * weight / total + UNIFORM / len(factors) for name, weight in told.items()}


def _evidence(factor: Factor, failing: Judgement, frames: str, clues: Clues) -> float:
    called = f"{factor.name} {factor.was}".lower().replace("-", "_")
    here = SITUATIONS.get((failing.verdict, failing.phase), {})
    weight = 0.5 if factor.kind is FactorKind.FIT else 1.0  # out of memory apart, rarely the answer
    for name, family in FAMILIES.items():
        if any(part in called for part in family.names):
            weight *= 1 + family.hits / 20 + here.get(name, 0) / 2
            if any(word in frames for word in family.frames):
                weight *= STACK_FACTOR
    weight *= TOLD_FACTOR if _quoted(factor.was, frames) else _mentioned(called, frames)
    if factor.name in clues.changed:
        weight *= CHANGED_FACTOR
    return weight * max(clues.weights.get(factor.name, 1.0), 1e-6)


def _quoted(was: str, said: str) -> bool:
    """Whether "--mem-fraction-static 0.001" is in what was said, also with an equals sign or underscores."""
    own, said = (text.lower().replace("-", "_").replace("=", " ") for text in (was, said))
    return " " in own.strip() and own.strip() in said


def _mentioned(called: str, said: str) -> float:
    """How much more a factor is suspected for words of its own name in the first cause.

    "No memory for the KV cache" points at `--kv-cache-memory-bytes`, a wait in `Scheduler.__init__` at a
    variable about the scheduler's start.
    """
    name = called.split("=", 1)[0].split(" ", 1)[0]
    is_option = called.startswith("_") or called.startswith(f"{name}=")
    if not is_option:  # a group's or a default's own words, which a message may use for other reasons
        name = called.partition("(")[0]
    elif len(name) > 5 and name.strip("_") in said.replace("-", "_"):
        return NAMED_FACTOR
    own = {word for word in _WORD.findall(name) if word not in COMMON_WORDS}
    return 1 + WORD_FACTOR * len(own & set(_WORD.findall(said.replace("_", " "))))
