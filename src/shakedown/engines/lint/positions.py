"""The drafter's positions: rotary embedding, longest sequence and attention window, against the target's.

It judges only what the config says: no rotation can be read from weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shakedown.engines.lint.facts import (
    DrafterFacts,
    Finding,
    TargetConfig,
    misdrafting,
    not_loading,
    note,
    warning,
)
from shakedown.engines.lint.profiles import EngineProfile
from shakedown.engines.lint.settings import Settings

DEFAULT_THETA = 10000.0
DEFAULT_LENGTH = 2048
UNTOLD = frozenset({"rope_theta", "rope_type", "type"})  # said apart, or the same thing twice


def rope_of(config: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Base and scaling as Transformers 5 reads them: rope_parameters before rope_theta and rope_scaling."""
    block = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(block, Mapping):
        block = {}
    theta = float(block.get("rope_theta") or config.get("rope_theta") or DEFAULT_THETA)
    kind = block.get("rope_type") or block.get("type") or "default"
    scaling = {key: value for key, value in block.items() if key not in UNTOLD and value is not None}
    return theta, {} if kind == "default" else {"rope_type": kind, **scaling}


def judge_positions(
    drafter: DrafterFacts, settings: Settings, target: TargetConfig | None, profile: EngineProfile
) -> Iterator[Finding]:
    yield from _judge_rope(drafter, settings.raw, target)
    yield from _judge_spelling(settings.raw)
    if target:
        yield from _judge_length(settings.raw, target, profile)
    yield from _judge_window(settings, profile)


def _judge_rope(
    drafter: DrafterFacts, raw: Mapping[str, Any], target: TargetConfig | None
) -> Iterator[Finding]:
    theta, scaling = rope_of(raw)
    recorded = drafter.provenance.get("rope")
    if isinstance(recorded, Mapping):
        trained = rope_of({"rope_parameters": recorded})
        if trained != (theta, scaling):
            yield misdrafting(
                "rope",
                "rotates by another rope than the drafter was trained with",
                f"config: {_shown(theta, scaling)}; recorded at export: {_shown(*trained)}",
                f'set "rope_parameters": {dict(recorded)}',
            )
        return
    if target and rope_of(target.text) != (theta, scaling):
        yield warning(
            "rope-target",
            "rotates by another rope than the target; right only if the drafter was trained so",
            f"drafter: {_shown(theta, scaling)}; target: {_shown(*rope_of(target.text))}",
            "compare with the config that the drafter was trained with",
        )


def _judge_spelling(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Transformers 4 does not know rope_parameters; of both spellings Transformers 5 takes that one."""
    block = raw.get("rope_parameters")
    if not isinstance(block, Mapping):
        return
    theta, scaling = rope_of(raw)
    old = rope_of({key: raw.get(key) for key in ("rope_theta", "rope_scaling")})
    if raw.get("rope_theta") is not None and old != (theta, scaling):
        yield misdrafting(
            "rope-conflict",
            "rope_parameters and rope_theta/rope_scaling disagree: Transformers 5 takes one, 4 the other",
            f"{_shown(theta, scaling)} against {_shown(*old)}",
            "write the same in both",
        )
    elif raw.get("rope_theta") is None and theta != DEFAULT_THETA:
        yield note(
            "rope-spelling",
            f"under Transformers 4 it would rotate by {DEFAULT_THETA:g}: that reads rope_theta only",
            f"rope_parameters {dict(block)}, no rope_theta",
        )


def _judge_length(raw: Mapping[str, Any], target: TargetConfig, profile: EngineProfile) -> Iterator[Finding]:
    longest = target.number("max_position_embeddings")
    own = int(raw.get("max_position_embeddings") or DEFAULT_LENGTH)
    if longest is None or own >= longest:
        return
    evidence = f"max_position_embeddings {own}, the target's {longest}"
    mend = f'set "max_position_embeddings": {longest}'
    if profile.runner == "V1":
        yield misdrafting(
            "max-positions",
            f"drafts nothing in a step in which a sequence is longer than the drafter's {own} positions",
            evidence,
            mend,
        )
    elif profile.raises_max_positions:
        yield note("max-positions", f"raises the drafter's {own} positions to the server's length", evidence)
    elif profile.refuses_short_drafters:
        yield not_loading(
            "max-positions",
            "raises ValueError: the target's length is above the drafter's",
            evidence,
            f"{mend}, or SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1, or --context-length {own}",
        )
    else:
        yield misdrafting(
            "max-positions",
            f"reads rotations past the end of its table beyond position {own}",
            evidence,
            f"{mend}, or --max-model-len {own}",
        )


def _judge_window(settings: Settings, profile: EngineProfile) -> Iterator[Finding]:
    raw = settings.raw
    window = raw.get("sliding_window")
    kinds = (raw.get("layer_types") or [])[: settings.layers]  # the target's, where copied, is longer
    slides = "sliding_attention" in kinds or (not kinds and raw.get("use_sliding_window", window is not None))
    if not window or not slides:
        return
    evidence = f"sliding_window {window}, layer_types {kinds}"
    if profile.is_sglang:
        yield misdrafting(
            "sliding-window",
            f"attends to everything: beyond {window} tokens unlike in training",
            evidence,
            f"serve with --speculative-draft-window-size {window}",
        )
    elif "sliding_attention" not in kinds:
        yield misdrafting(
            "sliding-window",
            f"attends to everything: beyond {window} tokens unlike in training; it reads layer_types only",
            evidence,
            'set "layer_types": ["sliding_attention"]',
        )


def _shown(theta: float, scaling: Mapping[str, Any]) -> str:
    return f"theta {theta:g}" + (f", {dict(scaling)}" if scaling else "")
