"""What is known of a drafter and its target before anything is loaded, and what is found wrong with them.

It reads no file and names no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

AUX_KEY = "eagle_aux_hidden_state_layer_ids"
PROVENANCE = "shakedown"  # the block of a config in which our own export says how the drafter was trained


class Level(StrEnum):
    ERROR = "error"  # this engine would not load it, or draft wrongly
    WARNING = "warning"  # it may be wrong, and the files alone cannot decide it
    NOTE = "note"  # harmless


class Serving(StrEnum):
    """The verdict for one engine; later is worse."""

    AS_TRAINED = "serves as trained"
    WRONGLY = "loads but drafts wrongly"
    NOT = "does not load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found. `mend` is what the user can do about it; "" where nothing needs doing."""

    rule: str
    level: Level
    effect: Serving
    what: str
    evidence: str
    mend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFact:
    dtype: str  # as safetensors writes it: BF16, F32, I64, BOOL
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMatch:
    """How well the drafter's head rows fit the target's, by mean cosine over `rows` sampled draft tokens."""

    rows: int
    as_offset: float  # row i against the target's row i + d2t[i]
    as_absolute: float  # row i against the target's row d2t[i]
    unrelated: float  # row i against a target's row that neither reading names


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFacts:
    """An EAGLE-3 directory as it lies on disk; None where a file, a tensor or the target is absent."""

    config: Mapping[str, Any]
    tensors: Mapping[str, TensorFact]
    d2t: Sequence[int] | None = None
    t2d: Sequence[bool] | None = None
    head: RowMatch | None = None
    embedding_equal: bool | None = None  # its own embedding rows against the target's
    dead_weights: tuple[str, ...] = ()  # "tensor: what", of rows looked at that are no numbers or all 0
    broken_files: tuple[str, ...] = ()  # "file: why", of weight files that end too early or cannot be read

    @property
    def is_speculators(self) -> bool:
        return "speculators_model_type" in self.config or "speculators_config" in self.config

    @property
    def provenance(self) -> Mapping[str, Any]:
        block = self.config.get(PROVENANCE)
        return block if isinstance(block, Mapping) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """A target's config.json."""

    config: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        return str((self.config.get("architectures") or ["unknown"])[0])

    @property
    def text(self) -> Mapping[str, Any]:
        """The language model's own settings: nested in configs of multimodal models."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, Mapping) else self.config

    def number(self, key: str) -> int | None:
        value = self.text.get(key)
        return value if isinstance(value, int) else None

    @property
    def layers(self) -> int | None:
        return self.number("num_hidden_layers")


def not_loading(rule: str, what: str, evidence: str, mend: str) -> Finding:
    return Finding(rule=rule, level=Level.ERROR, effect=Serving.NOT, what=what, evidence=evidence, mend=mend)


def misdrafting(rule: str, what: str, evidence: str, mend: str) -> Finding:
    return Finding(
        rule=rule, level=Level.ERROR, effect=Serving.WRONGLY, what=what, evidence=evidence, mend=mend
    )


def warning(rule: str, what: str, evidence: str, mend: str) -> Finding:
    return Finding(
        rule=rule, level=Level.WARNING, effect=Serving.AS_TRAINED, what=what, evidence=evidence, mend=mend
    )


def note(rule: str, what: str, evidence: str) -> Finding:
    return Finding(rule=rule, level=Level.NOTE, effect=Serving.AS_TRAINED, what=what, evidence=evidence)
