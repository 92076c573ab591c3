"""The model that is drafted for: the facts of its config, and its embedding, head and final norm alone.

It never loads a layer, and never guesses at a config that changes what these three mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shakedown.drafter.configuration import read_config
from shakedown.drafter.layout import Layout, find_layout
from shakedown.drafter.manifest import TargetFacts
from shakedown.drafter.weights import Weights
from shakedown.errors import UsageError

# Settings of other families that scale embeddings, states or logits: a drafter that shares the embedding and
# learns from the head would silently be wrong by that factor.
SCALES = {
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "scale_emb": 1.0,
    "final_logit_softcapping": None,
}
SCALED_FAMILIES = ("gemma",)  # scale by their code, without a word in the config
LEAST_LAYERS = 7  # below, two of the three captured layers fall together


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A checkpoint in a folder. `text_config` is the decoder's part of its config.json."""

    path: Path
    architecture: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    rms_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    max_positions: int
    text_config: Mapping[str, Any]
    layout: Layout
    weights: Weights

    @property
    def aux_inputs_of(self) -> tuple[int, int, int]:
        """The layers whose inputs are captured. Raises UsageError for a decoder that is too short."""
        if self.layers < LEAST_LAYERS:
            raise UsageError(
                f"{self.path} has {self.layers} layers; the inputs of layers 2, N/2 and N-3 differ only from"
                f" {LEAST_LAYERS} layers on"
            )
        return (2, self.layers // 2, self.layers - 3)

    @property
    def facts(self) -> TargetFacts:
        return TargetFacts(
            path=str(self.path),
            architecture=self.architecture,
            hidden_size=self.hidden_size,
            layers=self.layers,
            vocab_size=self.vocab_size,
            weights_sha256=self.weights.fingerprint(),
        )

    def embedding(self) -> torch.Tensor:
        """[V, H], as stored."""
        return self.weights.tensor(self.layout.embedding)

    def head(self) -> torch.Tensor:
        """[V, H], as stored; the embedding where the two are tied."""
        return self.weights.tensor(self.layout.head or self.layout.embedding)

    def final_norm(self) -> torch.Tensor:
        """[H], as stored."""
        return self.weights.tensor(self.layout.final_norm)


def read_target(path: Path) -> Target:
    """Raises UsageError where the folder is no target that we understand, saying what is missing."""
    config = read_config(path, "--target is the folder of a model's checkpoint")
    text = config.get("text_config") or config
    layers = wanted(text, "num_hidden_layers", path)
    heads = wanted(text, "num_attention_heads", path)
    hidden = wanted(text, "hidden_size", path)
    refuse_scaled(text, path)
    weights = Weights(path)
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    target = Target(
        path=path,
        architecture=str((config.get("architectures") or ["unknown"])[0]),
        hidden_size=hidden,
        intermediate_size=wanted(text, "intermediate_size", path),
        layers=layers,
        heads=heads,
        kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=text.get("head_dim") or hidden // heads,
        vocab_size=wanted(text, "vocab_size", path),
        rms_eps=wanted(text, "rms_norm_eps", path),
        rope_theta=rope_theta(text),
        rope_scaling=rope_scaling(text),
        max_positions=wanted(text, "max_position_embeddings", path),
        text_config=text,
        layout=find_layout(weights.files.keys(), layers, tied=tied),
        weights=weights,
    )
    refuse_other_shapes(target)
    return target


def wanted(text: Mapping[str, Any], key: str, path: Path) -> Any:
    if text.get(key) is None:
        raise UsageError(f"the target's layout is unknown: missing is {key} in {path / 'config.json'}")
    return text[key]


def rope_theta(text: Mapping[str, Any]) -> float:
    """Written at the top until transformers 4, within `rope_parameters` since."""
    return float(text.get("rope_theta") or (text.get("rope_parameters") or {}).get("rope_theta") or 10000.0)


def rope_scaling(text: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = dict(text.get("rope_scaling") or text.get("rope_parameters") or {})
    found.pop("rope_theta", None)
    return found if found.get("rope_type", found.get("type", "default")) != "default" else None


def refuse_scaled(text: Mapping[str, Any], path: Path) -> None:
    family = str(text.get("model_type", ""))
    if family.startswith(SCALED_FAMILIES):
        raise UsageError(f"{path} is of the family {family}, which scales its embedding: not supported")
    for key, neutral in SCALES.items():
        if text.get(key, neutral) not in (neutral, None):
            raise UsageError(f"{path / 'config.json'}: {key} is {text[key]}: such targets are not supported")


def refuse_other_shapes(target: Target) -> None:
    """A config beside another model's weights."""
    for name, what in ((target.layout.embedding, "embedding"), (target.layout.head, "head")):
        if name is not None and target.weights.shape(name) != (target.vocab_size, target.hidden_size):
            raise UsageError(
                f"{target.path}: the {what} {name} is {list(target.weights.shape(name))}; config.json says"
                f" {target.vocab_size} tokens of width {target.hidden_size}"
            )


def find_checkpoint(name: str) -> Path:
    """The folder of a target that is given as a folder, or by its name in the local cache of Hugging Face.

    Nothing is downloaded. Raises UsageError where it is neither.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        raise UsageError(
            f"{name} is neither a folder nor the name of a model in the local cache",
            "--target is the folder of a model's checkpoint",
        ) from None
