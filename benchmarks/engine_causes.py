"""Launches of real engines on a CPU with a planted cause each, and what must be blamed for it.

It launches nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}'

# Every launch carries these innocents, so that there is somebody to blame wrongly.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "vllm": (
        *("{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"),
        *("--host", "127.0.0.1", "--port", "{port}", "--max-model-len", "2048", "--dtype", "bfloat16"),
        *("--enforce-eager", "--seed", "0", "--uvicorn-log-level", "warning", "--disable-log-stats"),
    ),
    "sglang": (
        *("{python}", "-m", "sglang.launch_server", "--model-path", "{model}", "--host", "127.0.0.1"),
        *("--port", "{port}", "--device", "cpu", "--attention-backend", "torch_native"),
        *("--mem-fraction-static", "0.2", "--max-total-tokens", "8192", "--random-seed", "1"),
        *("--log-level", "info", "--stream-interval", "2"),
    ),
}
VARIABLES: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": "{work}/cache",
        "VLLM_LOGGING_LEVEL": "INFO",
        "OMP_NUM_THREADS": "2",
    },
    "sglang": {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_LOG_MS": "1", "OMP_NUM_THREADS": "2"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """`argv` and `env` come to the engine's own; `truth` are beginnings of the factors to blame, all of them.

    `drop` leaves out the flags named, with their values. `make` puts files into the row's folder and
    says what {model} is.
    """

    id: str
    engine: str
    kind: str
    truth: tuple[str, ...]
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    make: Callable[[Path, Path], Path] | None = None


def config_of_vllm(work: Path, model: Path) -> Path:
    lines = ("max-num-seqs: 8", "long-prefill-token-threshold: 4096", "disable-cascade-attn: true")
    (work / "serve.yaml").write_text("\n".join(lines) + "\n")
    return model


def config_of_sglang(work: Path, model: Path) -> Path:
    lines = ("max-running-requests: 8", "schedule-conservativeness: -1.0", "decode-log-interval: 10")
    (work / "serve.yaml").write_text("\n".join(lines) + "\n")
    return model


def changed_norm(work: Path, model: Path) -> Path:
    """The model with one value of its config changed; the weights are links."""
    changed = work / "model"
    changed.mkdir()
    for entry in model.iterdir():
        (changed / entry.name).symlink_to(entry)
    config = json.loads((model / "config.json").read_text())
    (changed / "config.json").unlink()
    (changed / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 10.0}))
    return changed


BROKEN_CACHE = """
def register():
    from vllm.v1.core import kv_cache_manager as managing
    plain = managing.KVCacheManager.__init__
    def init(self, *arguments, enable_caching=True, **named):
        if enable_caching:
            raise RuntimeError("the block pool of the prefix cache is corrupt")
        plain(self, *arguments, enable_caching=enable_caching, **named)
    managing.KVCacheManager.__init__ = init
"""


def broken_prefix_cache(work: Path, model: Path) -> Path:
    """A plug-in that breaks what vLLM does by default, and only that."""
    about = work / "plugin" / "broken_cache-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-cache\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nbroken = broken_cache:register\n")
    (work / "plugin" / "broken_cache.py").write_text(BROKEN_CACHE)
    return model


ROWS = (
    Planted(
        id="vllm-flag",
        engine="vllm",
        kind="flag",
        argv=("--kv-transfer-config", '{"kv_connector": "nosuch", "kv_role": "kv_both"}'),
        truth=("--kv-transfer-config",),
    ),
    Planted(
        id="vllm-group",
        engine="vllm",
        kind="group",
        argv=("--enable-lora", "--max-loras", "4", "--max-cpu-loras", "2"),
        truth=("LoRA",),
    ),
    Planted(
        id="vllm-variable",
        engine="vllm",
        kind="variable",
        env={"VLLM_RPC_BASE_PATH": "{work}/gone"},  # where its sockets go
        truth=("VLLM_RPC_BASE_PATH",),
    ),
    Planted(
        id="vllm-default",
        engine="vllm",
        kind="default",
        env={"PYTHONPATH": "{work}/plugin"},
        make=broken_prefix_cache,
        truth=("prefix caching",),
    ),
    Planted(
        id="vllm-two-flags",
        engine="vllm",
        kind="interaction of two",
        argv=("--async-scheduling", "--speculative-config", NGRAM, "--max-num-seqs", "8"),
        truth=("--async-scheduling", "speculative decoding"),
    ),
    Planted(
        id="vllm-two-numbers",
        engine="vllm",
        kind="interaction of two",
        argv=("--max-num-batched-tokens", "64", "--max-num-seqs", "128"),
        truth=("--max-num-batched-tokens", "--max-num-seqs"),
    ),
    Planted(
        id="vllm-number",
        engine="vllm",
        kind="numeric value",
        argv=("--max-model-len", "16384", "--max-num-seqs", "8"),
        drop=("--max-model-len",),
        truth=("--max-model-len 16384",),
    ),
    Planted(
        id="vllm-config-file",
        engine="vllm",
        kind="value in a config file",
        argv=("--config", "{work}/serve.yaml"),
        make=config_of_vllm,
        truth=("--long-prefill-token-threshold",),
    ),
    Planted(
        id="vllm-model-config",
        engine="vllm",
        kind="value in a config file",
        argv=("--max-num-seqs", "8"),
        make=changed_norm,
        truth=("config.json rms_norm_eps",),
    ),
    Planted(
        id="vllm-expectation",
        engine="vllm",
        kind="expectation missed",
        # Prose that quotes itself gives 4.3 tokens a round, and less than 2 where repeating costs a little.
        argv=("--speculative-config", NGRAM, "--override-generation-config", '{"repetition_penalty": 1.05}'),
        drop=("--disable-log-stats",),
        options=("--expect", "accept_length >= 3"),
        truth=("--override-generation-config",),
    ),
    Planted(
        id="vllm-two-nodes",
        engine="vllm",
        kind="group, a hang",
        argv=(
            *("--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1"),
            *("--master-port", "{other_port}", "--pipeline-parallel-size", "2"),
        ),
        truth=("multi-node layout",),
    ),
    Planted(
        id="sglang-flag",
        engine="sglang",
        kind="flag",
        argv=("--swa-full-tokens-ratio", "5"),
        truth=("--swa-full-tokens-ratio",),
    ),
    Planted(id="sglang-group", engine="sglang", kind="group", argv=("--enable-lora",), truth=("LoRA",)),
    Planted(
        id="sglang-two-numbers",
        engine="sglang",
        kind="interaction of two",
        argv=("--page-size", "128", "--chunked-prefill-size", "1000"),
        truth=("--page-size", "--chunked-prefill-size"),
    ),
    Planted(
        id="sglang-number",
        engine="sglang",
        kind="numeric value",
        argv=("--context-length", "16384"),
        truth=("--context-length",),
    ),
    Planted(
        id="sglang-config-file",
        engine="sglang",
        kind="value in a config file",
        argv=("--config", "{work}/serve.yaml"),
        make=config_of_sglang,
        truth=("--schedule-conservativeness",),
    ),
    Planted(
        id="sglang-variable",
        engine="sglang",
        kind="variable, a hang",
        env={"SGLANG_TEST_STUCK_SCHEDULER_INIT": "600"},
        truth=("SGLANG_TEST_STUCK_SCHEDULER_INIT",),
    ),
)


def command_of(row: Planted) -> tuple[str, ...]:
    """The engine's command, less what the row drops, with the row's flags."""
    words = list(COMMANDS[row.engine])
    for flag in row.drop:
        at = words.index(flag)
        ends = next(
            (n for n, word in enumerate(words[at + 1 :], at + 1) if word.startswith("--")), len(words)
        )
        del words[at:ends]
    return (*words, *row.argv)


def matches(named: tuple[str, ...], truth: tuple[str, ...]) -> tuple[bool, bool, tuple[str, ...]]:
    """(exactly these, all of these, the innocents among the named)."""
    innocents = tuple(name for name in named if not any(name.startswith(it) for it in truth))
    contains = all(any(name.startswith(it) for name in named) for it in truth)
    return contains and len(named) == len(truth), contains, innocents
