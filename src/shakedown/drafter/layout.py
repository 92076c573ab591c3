"""Where a checkpoint keeps its decoder: the names of its tensors, told from the names alone.

It opens no file, and guesses nothing about a tensor that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from shakedown.errors import UsageError

# What stands before `embed_tokens`, `layers.N` and `norm`: a plain model, Kimi-K2.x as published (its text
# model beside a vision tower), and the same as transformers saves it.
STEMS = ("model.", "language_model.model.", "model.language_model.")
HEADS = ("lm_head.weight", "language_model.lm_head.weight")

# A quantised weight is several tensors; each stands for the weight of its module.
QUANTISED = r"weight_(?:packed|scale|scale_inv|shape|zero_point|g_idx)"
PROJECTIONS = r"(?:gate|up|down)_proj\.weight"
KNOWN = re.compile(
    r"(?:input|post_attention)_layernorm\.weight"
    r"|self_attn\.(?:[qkvo]_proj\.(?:weight|bias)|[qk]_norm\.weight|rotary_emb\.inv_freq)"
    r"|self_attn\.(?:q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|q_a_layernorm|kv_a_layernorm)\.weight"
    r"|self_attn\.(?:q_a_proj|kv_a_proj_with_mqa)\.bias"
    rf"|mlp\.{PROJECTIONS}|mlp\.experts\.\d+\.{PROJECTIONS}|mlp\.shared_experts?\.{PROJECTIONS}"
    r"|mlp\.(?:gate|shared_expert_gate)\.weight|mlp\.gate\.e_score_correction_bias"
)
GROUPED = tuple(f"self_attn.{name}_proj.weight" for name in "qkvo")
LATENT = tuple(
    f"self_attn.{name}.weight" for name in ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj")
)
LATENT_QUERY = tuple(f"self_attn.{name}.weight" for name in ("q_a_proj", "q_a_layernorm", "q_b_proj"))
DENSE = tuple(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`stem` stands before the decoder's names; `head` is None where the head is the embedding."""

    stem: str
    head: str | None
    latent_attention: bool
    experts: int

    @property
    def embedding(self) -> str:
        return f"{self.stem}embed_tokens.weight"

    @property
    def final_norm(self) -> str:
        return f"{self.stem}norm.weight"

    def layer(self, index: int) -> str:
        return f"{self.stem}layers.{index}."


def find_layout(names: Collection[str], layers: int, *, tied: bool) -> Layout:
    """The layout of a checkpoint that holds these tensors.

    `tied` is what its config says of head and embedding; a head of its own wins. Raises UsageError with
    what is missing, or with what a decoder of this kind does not have.
    """
    stem = next((stem for stem in STEMS if f"{stem}embed_tokens.weight" in names), None)
    if stem is None:
        raise UsageError(
            f"the target's layout is unknown: missing is embed_tokens.weight under {', '.join(STEMS)}",
            f"its tensors are such as {some(names)}",
        )
    inside = tensors_by_layer(names, f"{stem}layers.", layers)
    missing = [f"{stem}norm.weight"] if f"{stem}norm.weight" not in names else []
    head = next((head for head in HEADS if head in names), None)
    if head is None and not tied:
        missing.append(f"{HEADS[0]} (the config does not tie head and embedding)")
    for index, found in enumerate(inside):
        missing += [f"{stem}layers.{index}.{name}" for name in missing_of_layer(found)]
    if missing:
        raise UsageError(f"the target's layout is unknown: missing is {some(missing)}")
    unknown = sorted(
        {without_numbers(name) for found in inside for name in found if not KNOWN.fullmatch(name)}
    )
    if unknown:
        raise UsageError(
            f"the target's layout is unknown: its layers hold {some(unknown)}",
            "known are Llama-type layers with grouped attention, DeepSeek-V3's latent attention, and"
            " mixtures of experts of both",
        )
    return Layout(
        stem=stem,
        head=head,
        latent_attention=LATENT[0] in inside[0],
        experts=max(count_experts(found) for found in inside),
    )


def tensors_by_layer(names: Iterable[str], stem: str, layers: int) -> list[set[str]]:
    """Names inside each layer, a quantised weight under its plain name. Layers past the last are left out:
    DeepSeek-V3 keeps its multi-token-prediction layer there."""
    inside: list[set[str]] = [set() for _ in range(layers)]
    for name in names:
        if name.startswith(stem):
            number, _, rest = name[len(stem) :].partition(".")
            if number.isdigit() and int(number) < layers:
                inside[int(number)].add(re.sub(rf"\.{QUANTISED}$", ".weight", rest))
    return inside


def missing_of_layer(found: Collection[str]) -> list[str]:
    wanted = list(NORMS)
    if LATENT[0] in found:
        wanted += LATENT
        if GROUPED[0] not in found:
            wanted += LATENT_QUERY
    else:
        wanted += GROUPED
    experts = count_experts(found)
    if experts or "mlp.gate.weight" in found:
        wanted += ["mlp.gate.weight"]
        wanted += [f"mlp.experts.{n}.{name[4:]}" for n in range(max(experts, 1)) for name in DENSE]
    else:
        wanted += DENSE
    return [name for name in wanted if name not in found]


def count_experts(found: Iterable[str]) -> int:
    numbers = [
        int(name.split(".")[2]) for name in found if name.startswith("mlp.experts.") and name[12].isdigit()
    ]
    return max(numbers, default=-1) + 1


def without_numbers(name: str) -> str:
    return re.sub(r"\.\d+\.", ".N.", name)


def some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 5} more" if len(ordered) > 5 else ""
    return ", ".join(ordered[:5]) + more
