"""Faults planted into a healthy EAGLE-3 directory of SmolLM2-135M: what is done to its config and tensors.

It needs torch and safetensors only, so that a host without Shakedown can plant them too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

AUX = "eagle_aux_hidden_state_layer_ids"
VOCAB, HIDDEN = 49152, 576

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Fault = Callable[[Config, Tensors], Any]


def settings(**changed: Any) -> Fault:
    return lambda config, tensors: config.update(changed)


def without(key: str) -> Fault:
    def remove(config: Config, tensors: Tensors) -> None:
        del (config if key in config else tensors)[key]

    return remove


def foreign_nested_only(config: Config, tensors: Tensors) -> None:
    del config["shakedown"], config[AUX]


def nested_inputs(config: Config, tensors: Tensors) -> None:
    config["eagle_config"][AUX] = config[AUX]


def absolute(config: Config, tensors: Tensors) -> None:
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))


def prefixed(config: Config, tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith("midlayer.")]:
        tensors[f"model.{name}"] = tensors.pop(name)


def with_bias(config: Config, tensors: Tensors) -> None:
    tensors["fc.bias"] = torch.zeros(HIDDEN)


def whole_vocabulary(config: Config, tensors: Tensors) -> None:
    config["draft_vocab_size"] = VOCAB
    tensors["lm_head.weight"] = torch.randn(VOCAB, HIDDEN).bfloat16()
    tensors["d2t"] = torch.zeros(VOCAB, dtype=torch.int64)
    tensors["t2d"] = torch.ones(VOCAB, dtype=torch.bool)


def for_a_wider_target(config: Config, tensors: Tensors) -> None:
    config["target_hidden_size"] = 768
    tensors["fc.weight"] = torch.randn(HIDDEN, 3 * 768).bfloat16()


ROPE = {"rope_type": "default", "rope_theta": 100.0}
FAULTS: dict[str, Fault] = {
    "healthy": lambda config, tensors: None,
    "nested layers only, no record": foreign_nested_only,
    "nested layers as inputs": nested_inputs,
    "layers one too far": settings(**{AUX: [3, 16, 28]}),
    "layers in another order": settings(**{AUX: [27, 15, 2]}),
    "a layer that is not there": settings(**{AUX: [2, 15, 31]}),
    "eagle_config null": settings(eagle_config=None),
    "d2t of token ids": absolute,
    "no d2t": without("d2t"),
    "d2t between equal vocabularies": whole_vocabulary,
    "no hidden_norm": without("midlayer.hidden_norm.weight"),
    "no fc": without("fc.weight"),
    "no head": without("lm_head.weight"),
    "a tensor too many": with_bias,
    "names with model. in front": prefixed,
    "norm_before_residual": settings(norm_before_residual=True),
    "norm_output": settings(norm_output=True),
    "another rope": settings(rope_theta=100.0, rope_parameters=ROPE),
    "three layers": settings(num_hidden_layers=3),
    "another width of the MLP": settings(intermediate_size=500),
    "no model_type": without("model_type"),
    "architecture of a plain model": settings(architectures=["LlamaForCausalLM"]),
    "an unknown architecture": settings(architectures=["OddForCausalLM"]),
    "tied head": settings(tie_word_embeddings=True),
    "short": settings(max_position_embeddings=32),
    "no draft_vocab_size": without("draft_vocab_size"),
    "for a wider target": for_a_wider_target,
}


def plant(healthy: Path, folder: Path, name: str) -> Path:
    """A copy of `healthy` with one fault, in a folder of its own below `folder`."""
    config = json.loads((healthy / "config.json").read_text())
    tensors = load_file(str(healthy / "model.safetensors"))
    FAULTS[name](config, tensors)
    copy = folder / name.replace(" ", "_").replace(".", "").replace(",", "")
    copy.mkdir(parents=True, exist_ok=True)
    (copy / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(copy / "model.safetensors"), metadata={"format": "pt"})
    return copy
