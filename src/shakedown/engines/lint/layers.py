"""Which three layers' inputs a drafter was trained on, and which ones an engine would capture for it.

A number is always the index of the layer whose *input* is meant: what the Hugging Face library calls
`hidden_states[k]`. It never judges anything but layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shakedown.engines.lint.facts import (
    AUX_KEY,
    DrafterFacts,
    Finding,
    TargetConfig,
    misdrafting,
    not_loading,
    note,
    warning,
)
from shakedown.engines.lint.profiles import EngineProfile, LayerRule

KNOWN_EAGLE_KEYS = frozenset(
    {AUX_KEY, "use_aux_hidden_state", "norm_before_fc", "layer_ids", "use_input_layernorm_in_first_layer"}
    | {"use_last_layernorm", "use_mtp_layernorm", "parallel_draft_step", "next_layer_regular"}
)


def usual_inputs(layers: int) -> tuple[int, ...]:
    """Near the beginning, the middle and the end: what every trainer and engine takes by default."""
    return (2, layers // 2, layers - 3)


def captured(ids: Sequence[int], rule: LayerRule, layers: int | None) -> tuple[int, ...]:
    match rule:
        case LayerRule.INPUT:
            return tuple(ids)
        case LayerRule.OUTPUT:
            return tuple(k + 1 for k in ids)
        case LayerRule.OUTPUT_IF_FIRST_IS_1:
            return tuple(k + 1 for k in ids) if ids and ids[0] == 1 else tuple(ids)
        case LayerRule.OUTPUT_UNLESS_LAST_IS_N:
            return tuple(ids) if max(ids, default=0) == layers else tuple(k + 1 for k in ids)


def written(inputs: Sequence[int], rule: LayerRule, layers: int | None) -> tuple[int, ...] | None:
    """The numbers that make an engine of this rule capture `inputs`; None where no numbers do."""
    for ids in (tuple(k - 1 for k in inputs), tuple(inputs)):
        if min(ids, default=0) >= 0 and captured(ids, rule, layers) == tuple(inputs):
            return ids
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The layers a drafter was trained on, as far as its files tell. `inputs` None: they do not."""

    inputs: tuple[int, ...] | None
    because: str


def nested_ids(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    block = config.get("eagle_config")
    return _ids(block.get(AUX_KEY)) if isinstance(block, Mapping) else None


def top_level_ids(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    return _ids(config.get(AUX_KEY))


def _ids(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, (list, tuple)) and value and all(isinstance(k, int) for k in value):
        return tuple(value)
    return None


def intent_of(drafter: DrafterFacts, rule: LayerRule, layers: int | None) -> Intent:
    """By what is surest first. `rule` is SGLang's for this target: the trainers' nested lists follow it."""
    recorded = _ids(drafter.provenance.get("aux_inputs_of"))
    if recorded:
        return Intent(inputs=recorded, because="its config records them")
    top, nested = top_level_ids(drafter.config), nested_ids(drafter.config)
    meant = captured(nested, rule, layers) if nested else None
    usual = usual_inputs(layers) if layers else None
    if top and (drafter.is_speculators or not nested):
        return Intent(inputs=top, because=f"top-level {AUX_KEY} counts layer inputs")
    if top and meant and top != meant:
        if usual in (top, meant):
            return Intent(inputs=usual, because="the usual three, which one of its two lists names")
        return Intent(inputs=None, because=f"its two lists disagree: {list(top)} and {list(meant)}")
    if nested and nested == usual and meant != usual:
        return Intent(inputs=usual, because="its nested list names the usual three as inputs")
    if nested:
        return Intent(inputs=meant, because="trainers write the nested list in SGLang's numbers")
    return Intent(inputs=usual, because="no list is given, so the usual three")


def layers_of(drafter: DrafterFacts, target: TargetConfig | None) -> int | None:
    """The target's layer count: told, recorded, or the one for which the drafter's numbers are the usual."""
    if target and target.layers:
        return target.layers
    recorded = drafter.provenance.get("target_layers")
    if isinstance(recorded, int):
        return recorded
    top, nested = top_level_ids(drafter.config), nested_ids(drafter.config)
    for inputs in (top, tuple(k + 1 for k in nested) if nested else None, nested):
        if inputs and len(inputs) == 3 and usual_inputs(inputs[2] + 3) == inputs:
            return inputs[2] + 3
    return None


def rule_for(profile: EngineProfile, target: TargetConfig | None) -> LayerRule:
    usual = LayerRule.OUTPUT if profile.is_sglang else LayerRule.INPUT
    return profile.targets.get(target.architecture, usual) if target else usual


def mend_of(inputs: Sequence[int], rule: LayerRule, layers: int | None) -> str:
    nested = written(inputs, rule, layers)
    top = f'"{AUX_KEY}": {list(inputs)}'
    if nested is None:
        return f"write {top} at the top level for vLLM; SGLang cannot be told these layers"
    return f'write {top} at the top level and "eagle_config": {{"{AUX_KEY}": {list(nested)}}}'


def judge_layers(
    drafter: DrafterFacts, target: TargetConfig | None, profile: EngineProfile, sglang_rule: LayerRule
) -> Iterator[Finding]:
    """`sglang_rule` is how the newest SGLang counts for this target: what the drafter's trainer wrote for."""
    layers = layers_of(drafter, target)
    intent = intent_of(drafter, sglang_rule, layers)
    yield from _judge_block(drafter.config, profile)
    ids, rule, place = _ids_read(drafter.config, profile, target)
    takes = captured(ids, rule, layers) if ids else (usual_inputs(layers) if layers else None)
    takes = tuple(sorted(set(takes))) if takes else None  # every model captures as it passes the layers
    mend = mend_of(intent.inputs, sglang_rule, layers) if intent.inputs else "ask its trainer for the layers"
    evidence = f"{place}; trained on the inputs of {_shown(intent.inputs)}: {intent.because}"
    if intent.inputs is None:
        yield warning(
            "layer-ids-unclear",
            f"captures the inputs of layers {_shown(takes)}, right or not",
            evidence,
            mend,
        )
    elif takes is None:
        yield warning(
            "layer-ids-default",
            "captures its default layers, (2, N//2, N-3) of a target of N",
            evidence,
            mend,
        )
    elif takes != intent.inputs:
        yield misdrafting(
            "layer-ids",
            f"captures the inputs of layers {_shown(takes)}, not {_shown(intent.inputs)}",
            evidence,
            mend,
        )
    elif ids is None and (top_level_ids(drafter.config) or nested_ids(drafter.config)):
        yield note(
            "layer-ids-default", "ignores the configured layers; its default happens to be the same", place
        )
    yield from _judge_range(takes, layers, profile, rule_for(profile, target))


def _ids_read(
    config: Mapping[str, Any], profile: EngineProfile, target: TargetConfig | None
) -> tuple[tuple[int, ...] | None, LayerRule, str]:
    """The numbers this engine reads, how it counts, and where it read them."""
    top, nested = top_level_ids(config), nested_ids(config)
    if profile.reads_top_level and top:
        return top, LayerRule.INPUT, f"top-level {AUX_KEY} {list(top)}"
    if profile.reads_nested and nested:
        return nested, rule_for(profile, target), f"eagle_config.{AUX_KEY} {list(nested)}"
    unread = top or nested
    where = "top level" if top else "eagle_config"
    given = f"ignores {AUX_KEY} {list(unread)} in {where}" if unread else f"no {AUX_KEY} is given"
    return None, LayerRule.INPUT, given


def _judge_block(config: Mapping[str, Any], profile: EngineProfile) -> Iterator[Finding]:
    """`eagle_config` itself. SGLang reads it inside a bare except: what is misspelt there has no message."""
    if "eagle_config" not in config:
        return
    block = config["eagle_config"]
    if not isinstance(block, Mapping):
        if profile.is_sglang:
            yield not_loading(
                "eagle-config-shape",
                "eagle_config is no object: asking it for use_aux_hidden_state raises AttributeError",
                f"eagle_config is {block!r}",
                "remove eagle_config or make it an object",
            )
        return
    unknown = sorted(set(block) - KNOWN_EAGLE_KEYS)
    if profile.is_sglang and AUX_KEY in block and nested_ids(config) is None:
        yield not_loading(
            "eagle-config-value",
            f"eagle_config.{AUX_KEY} is no list of layer numbers",
            f"it is {block[AUX_KEY]!r}",
            "write a list of three numbers",
        )
    elif profile.is_sglang and AUX_KEY not in block and any("layer" in key for key in unknown):
        yield misdrafting(
            "eagle-config-swallowed",
            f"eagle_config has no {AUX_KEY}: SGLang takes its default layers without a message",
            f"it has {', '.join(unknown)}",
            f"rename the key to {AUX_KEY}",
        )
    elif unknown:
        yield note("eagle-config-unknown", "keys of eagle_config that no engine reads", ", ".join(unknown))
    if block.get("use_aux_hidden_state") is False:
        yield misdrafting(
            "no-aux-states",
            "use_aux_hidden_state is false: the drafter would be given the last state alone",
            "eagle_config.use_aux_hidden_state false",
            "set it to true",
        )


def _judge_range(
    takes: Sequence[int] | None, layers: int | None, profile: EngineProfile, rule: LayerRule
) -> Iterator[Finding]:
    """SGLang's models have no place to capture what leaves the last layer, but for those that count to N."""
    if not takes:
        return
    ends_before = profile.is_sglang and rule is not LayerRule.OUTPUT_UNLESS_LAST_IS_N
    last = (layers - 1 if ends_before else layers) if layers else None
    if last is not None and (min(takes) < 0 or max(takes) > last):
        yield not_loading(
            "layer-range",
            f"cannot capture the inputs of layers {_shown(takes)}: fewer states than fc takes would arrive",
            f"the target has {layers} layers, the last input it can capture is that of layer {last}",
            "train on layers it can capture",
        )


def _shown(inputs: Sequence[int] | None) -> str:
    return f"({', '.join(map(str, inputs))})" if inputs else "unknown layers"
