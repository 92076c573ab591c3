"""A drafter's config as an engine reads it: the defaults of the Hugging Face library filled in.

It judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from shakedown.engines.lint.facts import AUX_KEY
from shakedown.engines.lint.profiles import EngineProfile

MOVED = ("draft_vocab_size", "target_hidden_size", "norm_before_fc", "fc_norm", "norm_output", AUX_KEY)


class Layout(Enum):
    LLAMA = "llama"
    QWEN3 = "qwen3"
    MLA = "mla"


MODULE_LAYOUTS = {
    "llama_eagle3": Layout.LLAMA,
    "qwen3_eagle3": Layout.QWEN3,
    "deepseek_eagle3": Layout.MLA,
    "kimi_k25_eagle3": Layout.MLA,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What decides names and shapes of tensors. `draft_vocab` None is null or absent."""

    architecture: str
    module: str | None  # of the engine, that loads this architecture
    layout: Layout
    hidden: int
    target_hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    draft_vocab: int | None
    draft_vocab_given: bool
    aux_states: int
    raw: Mapping[str, Any]

    def switch(self, name: str) -> bool:
        """A flag as the drafter's config sets it, at the top level or in eagle_config."""
        block = self.raw.get("eagle_config")
        nested = block.get(name) if isinstance(block, Mapping) else None
        return bool(nested if nested is not None else self.raw.get(name, False))


def as_transformers(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A speculators config the way vLLM turns it into a plain one; any other config as it is."""
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        return config
    moved = {key: config[key] for key in MOVED if config.get(key) is not None}
    kind = "Qwen3" if layer.get("model_type") == "qwen3" else "Llama"
    return {
        **layer,
        **moved,
        "norm_before_residual": config.get("norm_before_residual", True),
        "architectures": [f"Eagle3{kind}ForCausalLM"],
    }


def read_settings(config: Mapping[str, Any], profile: EngineProfile) -> Settings:
    config = as_transformers(config) if profile.speculators else config
    architecture = str((config.get("architectures") or ["none"])[0])
    if not profile.is_sglang and not (architecture.startswith("Eagle3") or architecture.endswith("Eagle3")):
        architecture = f"Eagle3{architecture}"  # vLLM puts it in front
    module = profile.drafters.get(architecture)
    hidden = int(config.get("hidden_size") or 4096)
    heads = int(config.get("num_attention_heads") or 32)
    return Settings(
        architecture=architecture,
        module=module,
        layout=MODULE_LAYOUTS.get(module or "", Layout.LLAMA),
        hidden=hidden,
        target_hidden=int(config.get("target_hidden_size") or hidden),
        intermediate=int(config.get("intermediate_size") or 11008),
        layers=int(config.get("num_hidden_layers") or 32),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocab=int(config.get("vocab_size") or 32000),
        draft_vocab=config.get("draft_vocab_size"),
        draft_vocab_given="draft_vocab_size" in config,
        aux_states=_aux_states(config, profile, module),
        raw=config,
    )


def _aux_states(config: Mapping[str, Any], profile: EngineProfile, module: str | None) -> int:
    """How many states the engine concatenates before fc: 3 where it reads no count."""
    honoured = profile.honoured.get(module or "", frozenset())
    counts = "num_aux_hidden_states" in honoured
    if counts and isinstance(config.get("num_aux_hidden_states"), int):
        return int(config["num_aux_hidden_states"])
    block = config.get("eagle_config")
    nested = block.get(AUX_KEY) if isinstance(block, Mapping) else None
    if nested is None and module == "kimi_k25_eagle3":
        nested = config.get(AUX_KEY)
    reads_list = counts or module == "kimi_k25_eagle3"
    return len(nested) if reads_list and isinstance(nested, list) and nested else 3
