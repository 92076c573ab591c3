"""A trained drafter as one directory that SGLang and both runners of vLLM serve.

It never leaves a directory it could not read back tensor by tensor.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from shakedown import __version__
from shakedown.drafter.architecture import DrafterConfig
from shakedown.drafter.read import load_drafter
from shakedown.drafter.vocabulary import DraftVocabulary
from shakedown.engines.lint import EngineProfile, LayerRule, written
from shakedown.engines.lint.facts import AUX_KEY, PROVENANCE
from shakedown.engines.lint.positions import rope_of
from shakedown.engines.lint.switches import SWITCHES
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError

STORED = torch.bfloat16
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def export_drafter(
    folder: Path,
    config: DrafterConfig,
    weights: Mapping[str, Tensor],
    d2t: Tensor,
    *,
    engines: Iterable[EngineProfile],
    embedding: Tensor | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Writes `folder`, which must not hold anything yet, whole or not at all; weights in bf16.

    `embedding` [vocab, hidden] is needed where the drafter's width is not the target's: the engines share
    the target's otherwise. Raises UsageError where no numbers make `engines` capture the drafter's layers,
    EnvironmentProblem where it cannot be written.
    """
    settings = config_of(config, sglang_numbers(config, engines), provenance or {})
    stored = tensors_of(config, weights, d2t, embedding)
    try:
        folder = folder.resolve()  # of "." there is neither a name nor a parent
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty", "give --out a new folder")
        write_beside(folder, config, settings, stored)
    except (OSError, SafetensorError) as problem:
        raise EnvironmentProblem(f"{folder} could not be written: {problem}") from None


def write_beside(
    folder: Path, config: DrafterConfig, settings: Mapping[str, Any], stored: Mapping[str, Tensor]
) -> None:
    """Writes it under a name that nobody has, reads it back, and only then calls it `folder`.

    A folder that is there is filled, not replaced: it may be a mount, or somebody's working directory.
    """
    there = folder.exists()
    around = folder if there else folder.parent
    around.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=around))
    try:
        part = beside / folder.name  # the one above it only its owner may read
        part.mkdir()
        (part / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
        save_file(dict(stored), part / WEIGHTS, metadata={"format": "pt"})
        refuse_unlike(part, config, stored)
        if not there:
            part.rename(folder)
            return
        for file in (WEIGHTS, CONFIG):  # without its config it is no drafter yet
            (part / file).rename(folder / file)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def withdraw(folder: Path, *, keep_folder: bool) -> None:
    """Takes an export back, and nothing else that may lie there."""
    for file in (CONFIG, WEIGHTS):
        (folder / file).unlink(missing_ok=True)
    if not keep_folder:
        folder.rmdir()


def sglang_numbers(config: DrafterConfig, engines: Iterable[EngineProfile]) -> tuple[int, ...]:
    """What to write into eagle_config so that every SGLang captures the drafter's layers."""
    rules = {
        profile.targets.get(config.target_architecture, LayerRule.OUTPUT)
        for profile in engines
        if profile.is_sglang
    }
    found = {
        written(config.aux_inputs_of, rule, config.target_layers) for rule in rules or {LayerRule.OUTPUT}
    }
    if len(found) != 1 or (numbers := found.pop()) is None:
        raise UsageError(
            f"no numbers make every SGLang capture the inputs of layers {list(config.aux_inputs_of)}"
            f" of {config.target_architecture}",
            "train on the usual layers: 2, N//2 and N-3",
        )
    return numbers


def config_of(
    config: DrafterConfig, nested: tuple[int, ...], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """config.json: the rope in the spelling of Transformers 4 and 5, the layers in that of each engine."""
    theta, scaling = turns(config)
    rope = {**(scaling or {"rope_type": "default"}), "rope_theta": theta}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden,
        "target_hidden_size": config.target_hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": config.vocab,
        "draft_vocab_size": config.draft_vocab,
        "rms_norm_eps": config.rms_eps,
        "max_position_embeddings": config.max_positions,
        "rope_theta": theta,
        "rope_scaling": scaling or None,
        "rope_parameters": rope,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "num_aux_hidden_states": len(config.aux_inputs_of),
        AUX_KEY: list(config.aux_inputs_of),
        "eagle_config": {"use_aux_hidden_state": True, AUX_KEY: list(nested)},
        PROVENANCE: {
            "aux_inputs_of": list(config.aux_inputs_of),
            "target_layers": config.target_layers,
            "target_architecture": config.target_architecture,
            "rope": rope,
            "switches": dict.fromkeys(SWITCHES, False),
            "version": __version__,
            **provenance,
        },
    }


def tensors_of(
    config: DrafterConfig, weights: Mapping[str, Tensor], d2t: Tensor, embedding: Tensor | None
) -> dict[str, Tensor]:
    stored = {name: tensor.detach().cpu().to(STORED).contiguous() for name, tensor in weights.items()}
    if config.hidden != config.target_hidden:
        if embedding is None:
            raise DataProblem(
                f"the drafter is {config.hidden} wide, its target {config.target_hidden}:"
                " it needs an embedding of its own"
            )
        stored["embed_tokens.weight"] = embedding.detach().cpu().to(STORED).contiguous()
    if config.draft_vocab != config.vocab:  # vLLM has no place for a map between equal vocabularies
        vocabulary = DraftVocabulary(d2t=d2t.cpu().long(), vocab=config.vocab)
        stored |= {"d2t": vocabulary.d2t.contiguous(), "t2d": vocabulary.t2d}
    return stored


def turns(config: DrafterConfig) -> tuple[float, dict[str, Any]]:
    """Its rope, however its scaling was spelt."""
    return rope_of({"rope_theta": config.rope.theta, "rope_scaling": config.rope.scaling})


def refuse_unlike(folder: Path, config: DrafterConfig, stored: Mapping[str, Tensor]) -> None:
    """Reads the directory as anybody would and compares: config, maps, and every tensor bit by bit."""
    found_config, found, d2t = load_drafter(folder)
    if found_config != replace(config, rope=found_config.rope) or turns(found_config) != turns(config):
        raise DataProblem(f"{folder} reads back as {found_config}, exported was {config}")
    for name, tensor in found.state_dict().items():
        if not torch.equal(tensor, stored[name].float()):
            raise DataProblem(f"{folder}: {name} does not read back as it was written")
    if "d2t" in stored and not torch.equal(d2t, stored["d2t"]):
        raise DataProblem(f"{folder}: d2t does not read back as it was written")
