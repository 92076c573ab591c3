"""Which tensors an engine expects of a drafter, with their shapes, and what it does with those it is given.

It judges no values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from shakedown.engines.lint.facts import DrafterFacts, Finding, misdrafting, not_loading, note
from shakedown.engines.lint.profiles import EngineProfile
from shakedown.engines.lint.settings import Layout, Settings

HEAD, BIAS = "lm_head.weight", ".bias"
SHARED = frozenset({"embed_tokens.weight"})  # the target's is used where the drafter has none
SKIPPED = re.compile(r"t2d|d2t|rotary_emb\.|mask_hidden")
# By which side vLLM's ranks share a matrix.
SHARED_OUT = (
    (re.compile(r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj)\.weight$"), 0),
    (re.compile(r"\.(o_proj|down_proj)\.weight$"), 1),
)
RENAMED = {
    "midlayer": "layers.0",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}


def expected_tensors(settings: Settings, profile: EngineProfile) -> dict[str, tuple[int, ...]]:
    """Names as `layers.0.…` without a prefix, and shapes, of every tensor that this engine reads."""
    hidden, target_hidden, states = settings.hidden, settings.target_hidden, settings.aux_states
    honoured = profile.honoured.get(settings.module or "", frozenset())
    expected: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, target_hidden * states),
        "norm.weight": (hidden,),
        "embed_tokens.weight": (settings.vocab, hidden),
        HEAD: (settings.draft_vocab or settings.vocab, hidden),
    }
    if profile.is_sglang and settings.raw.get("bias"):
        expected["fc.bias"] = (hidden,)
    if "norm_before_fc" in honoured and settings.switch("norm_before_fc"):
        expected["input_norm.weight"] = (target_hidden * states,)
    if "fc_norm" in honoured and (settings.switch("fc_norm") or _is_legacy_fc_norm(settings, profile)):
        expected.update({f"fc_norm.{i}.weight": (target_hidden,) for i in range(states)})
    for number in range(settings.layers):
        layer = _layer(settings, profile, first=number == 0)
        expected.update({f"layers.{number}.{name}": shape for name, shape in layer.items()})
    return expected


def _is_legacy_fc_norm(settings: Settings, profile: EngineProfile) -> bool:
    return profile.is_sglang and bool(settings.raw.get("use_aux_norm"))


def _layer(settings: Settings, profile: EngineProfile, *, first: bool) -> dict[str, tuple[int, ...]]:
    hidden = settings.hidden
    taken = 2 * hidden if first else hidden
    layer: dict[str, tuple[int, ...]] = {
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (settings.intermediate, hidden),
        "mlp.up_proj.weight": (settings.intermediate, hidden),
        "mlp.down_proj.weight": (hidden, settings.intermediate),
    }
    if first or not profile.is_sglang:
        layer["input_layernorm.weight"] = (hidden,)
    if first or profile.is_sglang:  # SGLang's later layers norm with hidden_norm, vLLM's with input_layernorm
        layer["hidden_norm.weight"] = (hidden,)
    attention = (
        _mla(settings, taken) if settings.layout is Layout.MLA else _attention(settings, profile, taken)
    )
    return layer | {f"self_attn.{name}": shape for name, shape in attention.items()}


def _attention(settings: Settings, profile: EngineProfile, taken: int) -> dict[str, tuple[int, ...]]:
    queries, keys = settings.heads * settings.head_dim, settings.kv_heads * settings.head_dim
    tensors: dict[str, tuple[int, ...]] = {
        "q_proj.weight": (queries, taken),
        "k_proj.weight": (keys, taken),
        "v_proj.weight": (keys, taken),
        "o_proj.weight": (settings.hidden, queries),
    }
    if settings.raw.get("attention_bias"):
        tensors["o_proj.bias"] = (settings.hidden,)
        if not profile.is_sglang:
            tensors |= {"q_proj.bias": (queries,), "k_proj.bias": (keys,), "v_proj.bias": (keys,)}
    if settings.layout is Layout.QWEN3:
        tensors |= {"q_norm.weight": (settings.head_dim,), "k_norm.weight": (settings.head_dim,)}
        tensors.pop("o_proj.bias", None)
    return tensors


def _mla(settings: Settings, taken: int) -> dict[str, tuple[int, ...]]:
    """DeepSeek's latent attention; sizes that the config lacks are 0 and fail the comparison by name."""

    def size(key: str) -> int:
        return int(settings.raw.get(key) or 0)

    heads, kv_rank = settings.heads, size("kv_lora_rank")
    nope, rope, value = size("qk_nope_head_dim"), size("qk_rope_head_dim"), size("v_head_dim")
    tensors = {
        "kv_a_proj_with_mqa.weight": (kv_rank + rope, taken),
        "kv_a_layernorm.weight": (kv_rank,),
        "kv_b_proj.weight": (heads * (nope + value), kv_rank),
        "o_proj.weight": (settings.hidden, heads * value),
    }
    rank = size("q_lora_rank")
    if not rank:
        return tensors | {"q_proj.weight": (heads * (nope + rope), taken)}
    return tensors | {
        "q_a_proj.weight": (rank, taken),
        "q_a_layernorm.weight": (rank,),
        "q_b_proj.weight": (heads * (nope + rope), rank),
    }


def placed(name: str, settings: Settings, profile: EngineProfile) -> str:
    """The name under which the engine looks for a tensor of a checkpoint."""
    forgiving = profile.is_sglang and settings.layout is not Layout.MLA
    for old, new in (RENAMED if forgiving else {"midlayer": "layers.0"}).items():
        name = name.replace(old, new)
    return name.removeprefix("model.") if forgiving else name


def judge_tensors(drafter: DrafterFacts, settings: Settings, profile: EngineProfile) -> Iterator[Finding]:
    expected = expected_tensors(settings, profile)
    given = {
        placed(name, settings, profile): fact
        for name, fact in drafter.tensors.items()
        if not SKIPPED.search(name)
    }
    yield from _judge_unknown(sorted(set(given) - set(expected)), settings, profile)
    yield from _judge_missing(set(expected) - set(given), settings, profile)
    for name, shape in sorted(expected.items()):
        if name in given and given[name].shape != shape:
            yield _misshapen(name, given[name].shape, shape, settings, profile)


def _misshapen(
    name: str, given: tuple[int, ...], expected: tuple[int, ...], settings: Settings, profile: EngineProfile
) -> Finding:
    """Of a matrix that ranks may share vLLM takes what the config makes it, and more may be there."""
    what = f"{name} has the shape {list(given)}, its config makes it {list(expected)}"
    evidence, mend = _sizes(settings), "export the config that the weights were trained with"
    side = next((side for names, side in SHARED_OUT if names.search(name)), None)
    if profile.is_sglang or side is None or len(given) != len(expected):
        return not_loading("tensor-shape", what, evidence, mend)
    other = 1 - side
    if given[side] > expected[side] and given[other] == expected[other]:
        return misdrafting("tensor-cut", f"{what}: the rest is left away without a message", evidence, mend)
    return not_loading("tensor-shape", what, evidence, mend)


def _judge_unknown(names: list[str], settings: Settings, profile: EngineProfile) -> Iterator[Finding]:
    """SGLang drops what it does not know; vLLM raises, but for biases and for a norm it was not told of."""
    knows_norm = settings.layout is not Layout.MLA

    def is_dropped(name: str) -> bool:
        return profile.is_sglang or name.endswith(BIAS) or (knows_norm and name.startswith("input_norm."))

    dropped = [name for name in names if is_dropped(name)]
    refused = [name for name in names if name not in dropped]
    mend = "rename them to what the engine reads, set the switch that goes with them, or train without them"
    if dropped:
        yield misdrafting(
            "tensors-dropped",
            f"drops {len(dropped)} tensors without a message: the drafter was trained with them",
            _listed(dropped),
            mend,
        )
    if refused:
        what = f"has no place for {len(refused)} tensors and raises ValueError"
        yield not_loading("tensors-unknown", what, _listed(refused), mend)


def _judge_missing(absent: set[str], settings: Settings, profile: EngineProfile) -> Iterator[Finding]:
    missing = sorted(absent - SHARED - {HEAD})
    if missing:
        yield misdrafting(
            "tensors-missing",
            f"{len(missing)} weights stay as the engine begins them: norms 1, the others as memory was",
            f"{_listed(missing)}; {_sizes(settings)}",
            "export all tensors, and a config with the drafter's own num_hidden_layers",
        )
    if HEAD in absent:
        yield from _judge_headless(settings, profile)
    if SHARED & absent and settings.hidden != settings.target_hidden:
        yield misdrafting(
            "embedding-missing",
            "the target's embedding has another width, and the drafter brings none",
            f"hidden_size {settings.hidden}, target_hidden_size {settings.target_hidden}",
            "export embed_tokens.weight with the drafter",
        )


def _judge_headless(settings: Settings, profile: EngineProfile) -> Iterator[Finding]:
    """vLLM lends the target's head to a drafter without one, SGLang only where draft_vocab_size is null."""
    evidence = f"no {HEAD}; draft_vocab_size {settings.draft_vocab}, vocab_size {settings.vocab}"
    mend = f"export {HEAD} with the drafter"
    if profile.is_sglang and settings.draft_vocab is not None:
        yield misdrafting("head-missing", "its head stays as memory was", evidence, mend)
    elif settings.hidden != settings.target_hidden:
        yield not_loading(
            "head-missing", "the target's head, which it is lent, has another width", evidence, mend
        )
    elif settings.draft_vocab in (None, settings.vocab):
        yield note("head-shared", "drafts with the target's head", evidence)
    else:
        yield misdrafting(
            "head-missing",
            f"drafts with the first {settings.draft_vocab} rows of the target's head, whatever d2t says",
            evidence,
            mend,
        )


def _sizes(settings: Settings) -> str:
    return (
        f"hidden_size {settings.hidden}, num_hidden_layers {settings.layers}, {settings.heads} heads, "
        f"{settings.kv_heads} key/value heads of {settings.head_dim}"
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"
