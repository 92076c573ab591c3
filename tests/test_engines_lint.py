"""The lint's rules: each planted fault is found in the engines that have it; a healthy drafter has none."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest
from eagle3_directories import (
    DRAFT,
    HIDDEN,
    TARGET,
    VOCAB,
    drafted_tokens,
    healthy_config,
    healthy_shapes,
    marks,
    offsets,
)
from hypothesis import given
from hypothesis import strategies as st

from shakedown.engines.lint import (
    DrafterFacts,
    EngineProfile,
    EngineReport,
    LayerRule,
    Level,
    RowMatch,
    Serving,
    TargetConfig,
    TensorFact,
    lint,
    nearest,
    read_surveys,
    usual_inputs,
    written,
)
from shakedown.engines.lint.layers import captured
from shakedown.engines.lint.survey import survey

SURVEYS = (resources.files("shakedown.engines") / "tables" / "eagle3.json").read_text()
PROFILES = read_surveys(SURVEYS)
TITLES = [profile.title for profile in PROFILES]
SGLANG = ["SGLang 0.5.14", "SGLang 0.5.23"]
VLLM = [title for title in TITLES if title.startswith("vLLM")]


def facts(
    config: dict[str, Any] | None = None,
    shapes: dict[str, tuple[int, ...]] | None = None,
    *,
    tokens: list[int] | None = None,
    **changed: Any,
) -> DrafterFacts:
    tokens = tokens or drafted_tokens()
    known: dict[str, Any] = {
        "config": config or healthy_config(),
        "tensors": {
            name: TensorFact(dtype="BF16", shape=s) for name, s in (shapes or healthy_shapes()).items()
        },
        "d2t": offsets(tokens),
        "t2d": marks(tokens),
    }
    return DrafterFacts(**{**known, **changed})


def judge(
    drafter: DrafterFacts, target: dict[str, Any] | None = TARGET, **changes: Any
) -> dict[str, EngineReport]:
    config = TargetConfig(config={**target, **changes}) if target else None
    return {profile.title: lint(drafter, config, profile, PROFILES) for profile in PROFILES}


def failing(reports: dict[str, EngineReport], rule: str) -> list[str]:
    return [
        title
        for title, report in reports.items()
        if any(f.rule == rule and f.level is Level.ERROR for f in report.findings)
    ]


def rules(reports: dict[str, EngineReport], level: Level) -> set[str]:
    return {f.rule for report in reports.values() for f in report.findings if f.level is level}


RECORD = {"aux_inputs_of": [2, 15, 27], "target_layers": 30, "target_architecture": "LlamaForCausalLM"}


@pytest.mark.parametrize(
    ("changes", "rule", "serving"),
    [
        ({"hidden_size": 2 * HIDDEN}, "other-target", Serving.NOT),
        ({"num_hidden_layers": 32}, "other-target", Serving.WRONGLY),
        ({"num_hidden_layers": 28}, "other-target", Serving.WRONGLY),
        ({"architectures": ["Qwen3ForCausalLM"]}, "other-target", Serving.WRONGLY),
        ({"vocab_size": VOCAB + 128_000}, "vocab-size", Serving.WRONGLY),
    ],
)
def test_another_target_is_told_from_the_drafters_own(changes, rule, serving):
    recorded = facts({**healthy_config(), "shakedown": RECORD})
    assert {report.verdict for report in judge(recorded).values()} == {Serving.AS_TRAINED}
    reports = judge(recorded, **changes)
    for report in reports.values():
        (found,) = [f for f in report.findings if f.rule == rule]
        assert (found.level, found.effect) == (Level.ERROR, serving)


def test_a_padded_vocabulary_is_a_warning():
    reports = judge(facts(), vocab_size=VOCAB + 84)
    assert failing(reports, "vocab-size") == []
    assert all(any(f.rule == "vocab-size" for f in report.findings) for report in reports.values())


@pytest.mark.parametrize("target", [TARGET, None])
@pytest.mark.parametrize("prefix", ["midlayer.", "layers.0."])
def test_a_healthy_drafter_has_no_error_in_any_engine(target, prefix):
    shapes = {name.replace("midlayer.", prefix): shape for name, shape in healthy_shapes().items()}
    reports = judge(facts(shapes=shapes), target)
    assert rules(reports, Level.ERROR) == set()
    assert {report.verdict for report in reports.values()} == {Serving.AS_TRAINED}


def test_a_nested_list_alone_is_right_in_sglang_and_off_by_one_or_lost_in_vllm():
    config = healthy_config()
    del config["eagle_aux_hidden_state_layer_ids"]
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 9, 26]  # not the usual three
    reports = judge(facts(config))
    assert failing(reports, "layer-ids") == VLLM
    whats = {t: f.what for t, r in reports.items() for f in r.findings if f.rule == "layer-ids"}
    assert whats["vLLM 0.32.0 (V1 runner)"] == "captures the inputs of layers (1, 9, 26), not (2, 10, 27)"
    assert whats["vLLM 0.32.0 (V2 runner)"] == "captures the inputs of layers (2, 15, 27), not (2, 10, 27)"
    assert whats["vLLM 0.20.2 (V1 runner)"] == "captures the inputs of layers (2, 15, 27), not (2, 10, 27)"


def test_the_usual_nested_list_alone_is_right_where_vllm_ignores_it():
    config = healthy_config()
    del config["eagle_aux_hidden_state_layer_ids"]
    wrong = failing(judge(facts(config)), "layer-ids")
    assert wrong == [f"vLLM {version} (V1 runner)" for version in ("0.22.1", "0.25.1", "0.32.0")]


def test_a_top_level_list_alone_is_lost_in_sglang():
    config = healthy_config()
    del config["eagle_config"]
    config["eagle_aux_hidden_state_layer_ids"] = [3, 15, 27]
    assert failing(judge(facts(config)), "layer-ids") == SGLANG


def test_one_list_in_both_places_is_wrong_in_one_of_the_engines():
    config = healthy_config()
    config["eagle_aux_hidden_state_layer_ids"] = [1, 14, 26]
    assert failing(judge(facts(config)), "layer-ids") == VLLM
    config["eagle_aux_hidden_state_layer_ids"] = [2, 15, 27]
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 15, 27]
    assert failing(judge(facts(config)), "layer-ids") == SGLANG
    config["shakedown"] = {"aux_inputs_of": [3, 16, 28]}
    assert failing(judge(facts(config)), "layer-ids") == VLLM


def test_deepseek_counts_otherwise_in_sglang():
    kimi = {**TARGET, "architectures": ["KimiK25ForConditionalGeneration"], "num_hidden_layers": 61}
    config = healthy_config()
    config["eagle_aux_hidden_state_layer_ids"] = [2, 30, 58]
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 29, 57]
    assert failing(judge(facts(config), kimi), "layer-ids") == []
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 30, 58]
    assert failing(judge(facts(config), kimi), "layer-ids") == []
    config["eagle_aux_hidden_state_layer_ids"] = [3, 30, 58]
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 29, 57]
    config["shakedown"] = {"aux_inputs_of": [3, 30, 58]}
    reports = judge(facts(config), kimi)
    assert failing(reports, "layer-ids") == SGLANG
    assert any("[3, 30, 58]" in mend for mend in reports[SGLANG[0]].mends)


def test_gpt_oss_counts_otherwise_in_a_newer_sglang():
    gpt = {**TARGET, "architectures": ["GptOssForCausalLM"], "num_hidden_layers": 36}
    config = healthy_config()
    config["eagle_aux_hidden_state_layer_ids"] = [24, 30, 36]
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [24, 30, 36]
    reports = judge(facts(config), gpt)
    assert failing(reports, "layer-ids") == failing(reports, "layer-range") == ["SGLang 0.5.14"]
    assert reports["SGLang 0.5.23"].verdict is Serving.AS_TRAINED


@pytest.mark.parametrize(
    ("change", "rule", "engines"),
    [
        ({"norm_before_residual": True}, "norm-before-residual-ignored", SGLANG),
        ({"norm_before_fc": True}, "norm-before-fc-ignored", ["SGLang 0.5.14"]),
        ({"fc_norm": True}, "fc-norm-ignored", VLLM[:2]),
        ({"norm_output": True}, "norm-output-ignored", VLLM[:2]),
        ({"tie_word_embeddings": True}, "tied-head", SGLANG),
        ({"architectures": ["LlamaForCausalLM"]}, "drafter-architecture", SGLANG),
        ({"architectures": ["OddForCausalLM"]}, "drafter-architecture", TITLES),
        ({"model_type": None}, "model-type-absent", TITLES),
        ({"eagle_config": None}, "eagle-config-shape", SGLANG),
        ({"eagle_config": {"aux_layer_ids": [1, 14, 26]}}, "eagle-config-swallowed", SGLANG),
        ({"sliding_window": 2048}, "sliding-window", TITLES),
        ({"sliding_window": 2048, "layer_types": ["sliding_attention"]}, "sliding-window", SGLANG),
        (
            {"max_position_embeddings": 2048},
            "max-positions",
            [t for t in TITLES if t != "vLLM 0.32.0 (V2 runner)"],
        ),
        ({"num_hidden_layers": 30}, "tensors-missing", TITLES),
        ({"draft_vocab_size": 99}, "d2t-length", TITLES),
        ({"hidden_size": 64}, "tensor-shape", TITLES),
        ({"head_dim": 16}, "tensor-shape", TITLES),
        ({"rope_theta": 500000.0}, "rope-conflict", TITLES),
        ({"shakedown": {"rope": {"rope_theta": 5e5, "rope_type": "default"}}}, "rope", TITLES),
        ({"norm_output": True, "shakedown": {"switches": {}}}, "switch-unlike-training", TITLES),
        ({"eagle_aux_hidden_state_layer_ids": [27, 15, 2], "eagle_config": {}}, "layer-ids", TITLES),
        ({"eagle_aux_hidden_state_layer_ids": [2, 15, 31]}, "layer-range", VLLM),
    ],
)
def test_a_planted_setting_is_caught(change, rule, engines):
    reports = judge(facts({**healthy_config(), **change}))
    assert failing(reports, rule) == engines
    assert all(reports[title].mends for title in engines)


def test_the_order_of_the_numbers_does_not_matter_to_an_engine():
    config = healthy_config() | {"shakedown": {"aux_inputs_of": [2, 15, 27]}}
    config["eagle_aux_hidden_state_layer_ids"] = [27, 15, 2]
    assert rules(judge(facts(config)), Level.ERROR) == set()


def test_a_window_that_is_switched_off_is_none():
    config = {**healthy_config(), "sliding_window": 4096, "use_sliding_window": False}
    assert failing(judge(facts(config)), "sliding-window") == []


def test_a_rope_unlike_the_targets_is_a_warning_for_a_foreign_drafter():
    config = {**healthy_config(), "rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e4}}
    reports = judge(facts(config))
    assert "rope-target" in rules(reports, Level.WARNING)
    assert rules(reports, Level.ERROR) == set()
    scaled = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100000.0}
    reports = judge(facts({**healthy_config(), "rope_theta": None, "rope_parameters": scaled}))
    assert "rope-target" in rules(reports, Level.WARNING)


@pytest.mark.parametrize(
    ("given_as", "shape", "rule_by_engine"),
    [
        ("fc.bias", (HIDDEN,), {"SGLang": "tensors-dropped", "vLLM": "tensors-dropped"}),
        ("model.norm.weight", (HIDDEN,), {"vLLM": "tensors-unknown"}),
        ("input_norm.weight", (3 * HIDDEN,), {"SGLang": "tensors-dropped", "vLLM": "tensors-dropped"}),
        ("midlayer.self_attn.q_norm.weight", (8,), {"SGLang": "tensors-dropped", "vLLM": "tensors-unknown"}),
    ],
)
def test_a_tensor_without_a_place_is_dropped_by_one_engine_and_refused_by_the_other(
    given_as, shape, rule_by_engine
):
    reports = judge(facts(shapes={**healthy_shapes(), given_as: shape}))
    for title, report in reports.items():
        expected = rule_by_engine.get(title.split()[0])
        found = {f.rule for f in report.findings if f.level is Level.ERROR}
        assert found == ({expected} if expected else set()), title


def test_a_missing_tensor_and_a_wrong_shape_are_named():
    shapes = healthy_shapes()
    del shapes["midlayer.hidden_norm.weight"]
    shapes["fc.weight"] = (HIDDEN, 4 * HIDDEN)
    reports = judge(facts(shapes=shapes))
    assert failing(reports, "tensors-missing") == TITLES
    assert failing(reports, "tensor-shape") == TITLES
    evidence = next(f for f in reports[TITLES[0]].findings if f.rule == "tensors-missing").evidence
    assert "layers.0.hidden_norm.weight" in evidence


def test_a_wider_mlp_than_the_config_says_is_cut_by_vllm_and_a_narrower_one_is_refused():
    wide = healthy_config()["intermediate_size"]
    cut = judge(facts({**healthy_config(), "intermediate_size": wide - 4}))
    assert failing(cut, "tensor-cut") == VLLM
    assert failing(cut, "tensor-shape") == SGLANG
    assert (
        failing(judge(facts({**healthy_config(), "intermediate_size": wide + 4})), "tensor-shape") == TITLES
    )


def test_a_drafter_without_a_head_needs_equal_vocabularies():
    shapes = healthy_shapes()
    del shapes["lm_head.weight"]
    assert failing(judge(facts(shapes=shapes)), "head-missing") == TITLES
    whole = {**healthy_config(), "draft_vocab_size": None}
    assert rules(judge(facts(whole, shapes, d2t=None, t2d=None)), Level.ERROR) == set()


def test_sizes_of_the_vocabulary_are_judged():
    config = healthy_config()
    del config["draft_vocab_size"]
    shapes = {**healthy_shapes(), "lm_head.weight": (VOCAB, HIDDEN)}
    assert failing(judge(facts(config, shapes, d2t=None, t2d=None)), "draft-vocab-absent") == SGLANG
    assert failing(judge(facts(d2t=None, t2d=None)), "d2t-missing") == TITLES
    config["draft_vocab_size"] = VOCAB
    same = facts(config, shapes, d2t=[0] * VOCAB, t2d=[True] * VOCAB)
    assert failing(judge(same), "d2t-unplaced") == VLLM


@pytest.mark.parametrize("spread", [False, True])
def test_absolute_token_ids_in_d2t_are_caught_by_what_they_would_mean(spread):
    tokens = drafted_tokens(spread=spread)
    absolute = facts(tokens=tokens, d2t=tokens)
    assert failing(judge(absolute), "d2t-absolute") == TITLES
    assert rules(judge(facts(tokens=tokens)), Level.ERROR) == set()


def test_d2t_that_could_be_either_is_left_undecided_and_settled_by_the_heads_rows():
    sparse = [3 * i + 1 for i in range(DRAFT)]
    tokens = [token // 2 for token in sparse if token // 2 < VOCAB // 2]
    for d2t, wrong in ((tokens, TITLES), (offsets([3 * i for i in range(DRAFT)]), [])):
        unsettled = judge(facts(d2t=d2t, t2d=None))
        assert failing(unsettled, "d2t-absolute") == []
        assert "d2t-undecided" in rules(unsettled, Level.WARNING)
        match = RowMatch(
            rows=48, as_offset=0.05 if wrong else 0.8, as_absolute=0.8 if wrong else 0.05, unrelated=0.04
        )
        assert failing(judge(facts(d2t=d2t, t2d=None, head=match)), "d2t-absolute") == wrong


def test_a_map_of_another_head_disagrees_with_t2d():
    other = facts(tokens=drafted_tokens(1), d2t=offsets(drafted_tokens(2)))
    assert failing(judge(other), "d2t-t2d") == TITLES
    assert failing(judge(facts(d2t=[VOCAB] * DRAFT)), "d2t-broken") == TITLES


def test_an_embedding_of_its_own_is_replaced_by_sglang():
    shapes = {**healthy_shapes(), "embed_tokens.weight": (VOCAB, HIDDEN)}
    assert failing(judge(facts(shapes=shapes, embedding_equal=False)), "embedding-replaced") == SGLANG
    assert rules(judge(facts(shapes=shapes, embedding_equal=True)), Level.ERROR) == set()


def test_a_speculators_directory_loads_in_vllm_only_and_its_default_norms_are_known():
    layer = {
        k: v for k, v in healthy_config().items() if not k.startswith(("eagle", "draft", "arch", "target"))
    }
    config = {
        "speculators_model_type": "eagle3",
        "speculators_config": {"verifier": {"name_or_path": "m"}},
        "draft_vocab_size": DRAFT,
        "transformer_layer_config": layer,
        "eagle_aux_hidden_state_layer_ids": [2, 15, 27],
    }
    shapes = {name.replace("midlayer.", "layers.0."): shape for name, shape in healthy_shapes().items()}
    reports = judge(facts(config, shapes))
    assert failing(reports, "speculators-format") == SGLANG
    assert {reports[title].verdict for title in VLLM} == {Serving.AS_TRAINED}


def test_a_target_that_an_engine_does_not_capture_from_is_refused():
    reports = judge(facts(), TARGET, architectures=["Qwen3NextForCausalLM"])
    unsupported = failing(reports, "target-unsupported")
    assert unsupported == [t for t in VLLM if t.startswith(("vLLM 0.20", "vLLM 0.22"))]
    assert (
        failing(judge(facts(), TARGET, architectures=["NoSuchForCausalLM"]), "target-unsupported") == TITLES
    )


def test_an_mla_drafter_is_judged_by_its_own_tensors():
    mla = {
        "q_lora_rank": 12,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
    }
    config = {**healthy_config(), **mla, "architectures": ["Eagle3DeepseekV2ForCausalLM"]}
    attention = {
        "q_a_proj": (12, 2 * HIDDEN),
        "q_a_layernorm": (12,),
        "q_b_proj": (4 * 12, 12),
        "kv_a_proj_with_mqa": (20, 2 * HIDDEN),
        "kv_a_layernorm": (16,),
        "kv_b_proj": (4 * 16, 16),
        "o_proj": (HIDDEN, 32),
    }
    shapes = {name: shape for name, shape in healthy_shapes().items() if "self_attn" not in name}
    shapes |= {f"midlayer.self_attn.{name}.weight": shape for name, shape in attention.items()}
    assert rules(judge(facts(config, shapes)), Level.ERROR) == set()
    shapes["midlayer.self_attn.kv_b_proj.weight"] = (4 * 12, 16)
    assert failing(judge(facts(config, shapes)), "tensor-shape") == TITLES


def test_the_nearest_version_at_or_below_is_judged_by():
    def found(version: str) -> list[str]:
        return [profile.title for profile in nearest(PROFILES, "sglang", version)]

    assert found("0.5.14.post1") == found("0.5.14") == found("0.5.22") == ["SGLang 0.5.14"]
    assert found("0.5.23") == found("0.6.0rc1") == ["SGLang 0.5.23"]
    assert found("0.4.9") == ["SGLang 0.5.14"]
    assert len(nearest(PROFILES, "vllm", "0.31.0")) == 2


@given(
    rule=st.sampled_from(LayerRule),
    inputs=st.lists(st.integers(1, 60), min_size=1, max_size=4, unique=True).map(sorted),
    layers=st.integers(61, 80),
)
def test_what_is_written_for_an_engine_is_what_it_captures(rule, inputs, layers):
    ids = written(inputs, rule, layers)
    if ids is None:
        assert rule is LayerRule.OUTPUT_IF_FIRST_IS_1
        assert inputs[0] == 1
    else:
        assert captured(ids, rule, layers) == tuple(inputs)


def test_the_usual_layers_can_be_written_for_every_rule():
    for layers in range(7, 130):
        assert all(written(usual_inputs(layers), rule, layers) for rule in LayerRule)


def test_a_survey_reads_an_engines_source(tmp_path):
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (models / "new.py").write_text(
        "\ufeffclass NewForCausalLM:\n"
        "    def set_eagle3_layers_to_capture(self, layer_ids=None):\n"
        "        self.model.layers_to_capture = [val + 1 for val in layer_ids]\n"
        "class ChildForCausalLM(NewForCausalLM): pass\n"
        "class PlainForCausalLM: pass\n"
        "EntryClass = [NewForCausalLM, ChildForCausalLM, PlainForCausalLM]\n"
    )
    (models / "llama_eagle3.py").write_text(
        'class LlamaForCausalLMEagle3: x = getattr(config, "fc_norm", False)\n'
        "EntryClass = [LlamaForCausalLMEagle3]\n"
    )
    row = survey("sglang", tmp_path / "sglang", "9.9")
    (profile,) = read_surveys(json.dumps([row]))
    assert isinstance(profile, EngineProfile)
    assert profile.targets == {"NewForCausalLM": LayerRule.OUTPUT, "ChildForCausalLM": LayerRule.OUTPUT}
    assert profile.drafters == {"LlamaForCausalLMEagle3": "llama_eagle3"}
    assert profile.honoured["llama_eagle3"] == {"fc_norm"}
