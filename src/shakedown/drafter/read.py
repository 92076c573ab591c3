"""An EAGLE-3 directory, of anybody, as a drafter of ours: every tensor placed or refused by name.

It never guesses: a drafter whose arithmetic differs from ours is refused with what differs.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from shakedown.drafter.architecture import AUX_STATES, Drafter, DrafterConfig
from shakedown.drafter.configuration import read_config
from shakedown.drafter.rotary import Rope
from shakedown.drafter.vocabulary import DraftVocabulary
from shakedown.engines.lint import DrafterFacts, LayerRule
from shakedown.engines.lint.layers import intent_of, layers_of
from shakedown.engines.lint.positions import rope_of
from shakedown.errors import DataProblem, UsageError

OTHER_ARITHMETIC = (
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "attention_bias",
    "bias",
)
APART = frozenset({"d2t", "t2d", "embed_tokens.weight"})


def load_drafter(
    folder: Path, *, target_layers: int | None = None, target_architecture: str = "unknown"
) -> tuple[DrafterConfig, Drafter, Tensor]:
    """Its config, its weights in fp32 and d2t, int64 offsets.

    Its own embedding is attached where the directory holds one; otherwise attach the target's. The target's
    facts are needed for a foreign directory only: ours records them. Raises UsageError for a drafter that
    is not of our kind, DataProblem for tensors that are missing, too many or misshapen.
    """
    config = read_config(folder, "give the folder of an EAGLE-3 drafter")
    refuse_other_arithmetic(config, folder)
    tensors = {placed(name): tensor for name, tensor in read_weights(folder).items()}
    ours = drafter_config(config, folder, target_layers, target_architecture)
    drafter = Drafter(ours)
    wanted = drafter.state_dict()
    refuse_misplaced(wanted, tensors, folder)
    drafter.load_state_dict({name: tensors[name].float() for name in wanted})
    if "embed_tokens.weight" in tensors:
        drafter.attach_embedding(tensors["embed_tokens.weight"].float())
    return ours, drafter, read_map(tensors, ours, folder)


def refuse_other_arithmetic(config: Mapping[str, Any], folder: Path) -> None:
    given = config.get("eagle_config")
    block = given if isinstance(given, Mapping) else {}
    speculators = "speculators_config" in config or "transformer_layer_config" in config
    differing = [name for name in OTHER_ARITHMETIC if config.get(name) or block.get(name)]
    if speculators:
        differing.append("the speculators format")
    if "q_lora_rank" in config:
        differing.append("latent attention (MLA)")
    if config.get("num_hidden_layers", 1) != 1:
        differing.append(f"num_hidden_layers {config['num_hidden_layers']}")
    if differing:
        raise UsageError(
            f"{folder} is a drafter of another kind than ours: it has {', '.join(differing)}",
            "one Llama layer with an un-normed residual is what we train, evaluate and warm-start from",
        )


def drafter_config(
    config: Mapping[str, Any], folder: Path, target_layers: int | None, target_architecture: str
) -> DrafterConfig:
    facts = DrafterFacts(config=config, tensors={})
    layers = facts.provenance.get("target_layers") or target_layers or layers_of(facts, None)
    inputs = intent_of(facts, LayerRule.OUTPUT, layers).inputs
    if layers is None or inputs is None or len(inputs) != AUX_STATES:
        raise UsageError(
            f"{folder} does not tell which three layers' inputs it was trained on",
            "give --target, or write eagle_aux_hidden_state_layer_ids into its config.json",
        )
    theta, scaling = rope_of(config)
    architecture = facts.provenance.get("target_architecture", target_architecture)
    try:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return DrafterConfig(
            hidden=hidden,
            target_hidden=config.get("target_hidden_size") or hidden,
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            vocab=config["vocab_size"],
            draft_vocab=config.get("draft_vocab_size") or config["vocab_size"],
            rms_eps=config.get("rms_norm_eps", 1e-6),
            rope=Rope(theta=theta, scaling=scaling or None),
            max_positions=config.get("max_position_embeddings", 2048),
            aux_inputs_of=(inputs[0], inputs[1], inputs[2]),
            target_layers=layers,
            target_architecture=str(architecture),
        )
    except KeyError as missing:
        raise UsageError(f"{folder / 'config.json'} lacks {missing}") from None


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of the directory; a pickle is read with torch's restricted reader."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise UsageError(f"{folder} holds no weights: neither *.safetensors nor pytorch_model*.bin")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            if file.suffix == ".safetensors":
                tensors.update(load_file(file))
            else:
                tensors.update(torch.load(file, map_location="cpu", weights_only=True))
        except (OSError, SafetensorError, pickle.UnpicklingError, RuntimeError, ValueError) as problem:
            raise DataProblem(f"{file} cannot be read: {problem}") from None
    return tensors


def placed(name: str) -> str:
    """Under our name: both engines take `midlayer.` and `layers.0.`."""
    name = name.removeprefix("model.")
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def refuse_misplaced(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], folder: Path) -> None:
    missing = sorted(set(wanted) - set(found))
    unknown = sorted(name for name in set(found) - set(wanted) - APART if "rotary_emb." not in name)
    misshapen = [
        f"{name} is {list(found[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in sorted(wanted.items())
        if name in found and found[name].shape != tensor.shape
    ]
    problems = [f"missing: {', '.join(missing)}"] * bool(missing) + misshapen
    problems += [f"without a place: {', '.join(unknown)}"] * bool(unknown)
    if problems:
        raise DataProblem(
            f"the tensors of {folder} are not those of its config; {'; '.join(problems)}",
            f"shakedown draft lint {folder} says what the engines make of it",
        )
    broken = sorted(name for name in wanted if not bool(torch.isfinite(found[name]).all()))
    if broken:
        raise DataProblem(f"{folder}: not finite: {', '.join(broken)}")


def read_map(tensors: Mapping[str, Tensor], config: DrafterConfig, folder: Path) -> Tensor:
    """d2t, checked: offsets, as both engines take it, that name the tokens of t2d."""
    d2t = tensors.get("d2t")
    if d2t is None:
        if config.draft_vocab != config.vocab:
            raise DataProblem(
                f"{folder} has no d2t, and {config.draft_vocab} of {config.vocab} tokens as draft vocabulary"
            )
        return torch.zeros(config.vocab, dtype=torch.int64)
    if d2t.shape != (config.draft_vocab,):
        raise DataProblem(f"d2t of {folder} is {list(d2t.shape)}, its config says {config.draft_vocab}")
    vocabulary = DraftVocabulary(d2t=d2t.long(), vocab=config.vocab)
    t2d = tensors.get("t2d")
    if t2d is not None and not torch.equal(t2d.bool(), vocabulary.t2d):
        raise DataProblem(
            f"d2t and t2d of {folder} name different tokens",
            "d2t may hold token ids, where both engines expect offsets; see shakedown draft lint",
        )
    return vocabulary.d2t
