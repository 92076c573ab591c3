"""Whether an engine drafts for this target at all, and honours the switches its drafter was trained with.

It judges neither layers nor tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shakedown.engines.lint.facts import (
    DrafterFacts,
    Finding,
    TargetConfig,
    misdrafting,
    not_loading,
    warning,
)
from shakedown.engines.lint.profiles import EngineProfile
from shakedown.engines.lint.settings import Settings

SWITCHES = {
    "norm_before_residual": "the residual gets the un-normed fc output; in training it got the normed one",
    "norm_before_fc": "it does not norm the concatenated states before fc",
    "fc_norm": "it does not norm each state before fc",
    "norm_output": "the next draft step gets the state before the final norm; in training the normed one",
}


def judge_support(
    drafter: DrafterFacts, settings: Settings, target: TargetConfig | None, profile: EngineProfile
) -> Iterator[Finding]:
    if target and target.architecture not in profile.targets:
        fallback = "" if profile.is_sglang else "; its Transformers backend may (--model-impl transformers)"
        yield not_loading(
            "target-unsupported",
            f"captures no states for EAGLE-3 from {target.architecture}",
            f"{profile.title} does so for {len(profile.targets)} architectures{fallback}",
            _other_version(profile),
        )
    if drafter.is_speculators and not profile.speculators:
        yield not_loading(
            "speculators-format",
            "has no reader for the speculators format",
            "speculators_config in config.json; the layer's sizes stand in transformer_layer_config",
            "export a plain EAGLE-3 directory",
        )
        return
    if settings.module is None:
        known = ", ".join(sorted(profile.drafters))
        yield not_loading(
            "drafter-architecture",
            f"has no drafter class {settings.architecture}",
            f"architectures {drafter.config.get('architectures')!r}; it has {known}",
            'set "architectures": ["LlamaForCausalLMEagle3"] where the layer is a Llama layer',
        )
    if not drafter.is_speculators and not drafter.config.get("model_type"):
        yield not_loading(
            "model-type-absent",
            "cannot tell the class of the config",
            "no model_type in config.json",
            'set "model_type": "llama"',
        )
    for why in drafter.broken_files:
        yield not_loading("weights-unreadable", "cannot read the weights", why, "copy the file again")
    for why in drafter.dead_weights:
        yield misdrafting(
            "weights-dead",
            "drafts nothing of use: weights are no numbers, or all 0",
            why,
            "copy the file again; where its source is the same, train again",
        )


def _other_version(profile: EngineProfile) -> str:
    return (
        f"use a newer {profile.engine}, or the other engine" if not profile.live else "use the other engine"
    )


def judge_switches(drafter: DrafterFacts, settings: Settings, profile: EngineProfile) -> Iterator[Finding]:
    honoured = profile.honoured.get(settings.module or "", frozenset())
    recorded = drafter.provenance.get("switches")
    for name, effect in SWITCHES.items():
        if isinstance(recorded, Mapping) and bool(recorded.get(name)) != settings.switch(name):
            yield misdrafting(
                "switch-unlike-training",
                f"{name} is {settings.switch(name)}; the drafter was trained with the contrary",
                "the config beside what was recorded at export",
                f'set "{name}": {str(bool(recorded.get(name))).lower()}',
            )
        if not settings.switch(name):
            continue
        top_level = bool(settings.raw.get(name))
        if name not in honoured:
            yield misdrafting(
                f"{name.replace('_', '-')}-ignored",
                f"ignores {name}: {effect}",
                f"{name} is true",
                "serve it with an engine that honours it, or train without",
            )
        elif not top_level and f"eagle_config.{name}" not in honoured:
            yield misdrafting(
                "switch-nested",
                f"reads {name} at the top level only: {effect}",
                f"eagle_config.{name} is true",
                f'set "{name}": true at the top level',
            )
    if settings.raw.get("quantization_config"):
        yield from _judge_quantisation(drafter)


def _judge_quantisation(drafter: DrafterFacts) -> Iterator[Finding]:
    kinds = {fact.dtype for name, fact in drafter.tensors.items() if name.endswith("proj.weight")}
    if kinds and kinds <= {"BF16", "F16", "F32"}:
        yield warning(
            "quantisation-leftover",
            "may look for quantised weights that are not there",
            f"quantization_config is set, all projections are {', '.join(sorted(kinds))}",
            "remove quantization_config, copied from the target's config",
        )
