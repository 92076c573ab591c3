"""Targets: read alone from their checkpoints, computed as transformers does, refused where unknown."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from drafter_targets import (
    PUBLISHED,
    SMALL,
    TARGETS,
    VOCABULARY,
    packed,
    save_deepseek,
    save_kimi,
    save_llama,
)
from safetensors.torch import load_file, save_file

from shakedown.drafter.decoder import Decoder
from shakedown.drafter.dequantise import dequantise
from shakedown.drafter.layout import find_layout
from shakedown.drafter.target import Target, read_target
from shakedown.errors import UsageError


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, Path]:
    """Every target, saved once."""
    folders = {}
    for name, save in TARGETS.items():
        folders[name] = tmp_path_factory.mktemp(name)
        save(folders[name])
    return folders


def ladder(target: Target, tokens: torch.Tensor, dtype: torch.dtype, *, streamed: bool) -> list[torch.Tensor]:
    """The input of every layer, what the last one gives, and that after the final norm."""
    decoder = Decoder(target, dtype, "cpu")
    everything = range(target.layers)
    runs = [[number] for number in everything] if streamed else [list(everything)]
    states, rungs = decoder.embed(tokens), []
    with torch.no_grad():
        for run in runs:
            with decoder.loaded(run), decoder.watched(run) as seen:
                states = decoder.forward(states)
                rungs += [seen[number] for number in run]
        return [*rungs, states, decoder.norm(states)]


def by_transformers(path: Path, tokens: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    with torch.no_grad():
        states: tuple[torch.Tensor, ...] = model.model(tokens, output_hidden_states=True).hidden_states
    return states


TOKENS = torch.randint(VOCABULARY, (2, 19), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in TARGETS if name != "kimi"])
def test_states_are_those_of_transformers_to_the_bit(saved, name, dtype):
    reference = by_transformers(saved[name], TOKENS, dtype)
    target = read_target(saved[name])
    for streamed in (False, True):
        found = ladder(target, TOKENS, dtype, streamed=streamed)
        assert len(found) == target.layers + 2
        assert all(torch.equal(found[k], reference[k]) for k in range(target.layers))
        assert torch.equal(found[-1], reference[-1])


YARN = {**PUBLISHED["rope_scaling"], "rope_type": "yarn", "rope_theta": PUBLISHED["rope_theta"]}


def test_a_published_kimi_is_computed_from_its_packed_experts(saved, tmp_path):
    """Against transformers with the same weights, unpacked by hand into a plain DeepSeek-V3."""
    save_deepseek(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_parameters": YARN}))
    plain = load_file(tmp_path / "model.safetensors")
    for name, tensor in plain.items():
        if ".experts." in name:
            parts = packed("x", tensor)
            scale = parts["x.weight_scale"].float().repeat_interleave(16, 1)
            plain[name] = (tensor / scale).round().clamp(-8, 7) * scale
        else:
            plain[name] = tensor.bfloat16().float()
    save_file(plain, tmp_path / "model.safetensors", metadata={"format": "pt"})
    reference = by_transformers(tmp_path, TOKENS, torch.float32)
    target = read_target(saved["kimi"])
    assert target.architecture == "KimiK25ForConditionalGeneration"
    assert target.layout.latent_attention
    assert target.layout.experts == 4
    found = ladder(target, TOKENS, torch.float32, streamed=True)
    for k in range(target.layers):
        torch.testing.assert_close(found[k], reference[k], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[-1], reference[-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", list(TARGETS))
def test_facts_embedding_head_and_norm_are_read_alone(saved, name):
    target = read_target(saved[name])
    assert target.aux_inputs_of == (2, 4, 5)
    assert (target.hidden_size, target.layers, target.vocab_size) == (32, 8, VOCABULARY)
    assert target.embedding().shape == target.head().shape == (VOCABULARY, 32)
    assert torch.equal(target.embedding(), target.head()) == (name == "llama")
    assert target.final_norm().shape == (32,)
    assert target.facts.weights_sha256 == read_target(saved[name]).facts.weights_sha256
    assert target.rope_theta == (50000.0 if name == "kimi" else 10000.0)
    assert (target.rope_scaling is None) == (name != "kimi")


def test_packed_weights_are_counted_as_what_they_unpack_to(saved):
    plain = read_target(saved["deepseek_v3"]).weights
    packed_ones = read_target(saved["kimi"]).weights
    assert plain.numbers() == sum(
        tensor.numel() for tensor in load_file(plain.folder / "model.safetensors").values()
    )
    assert packed_ones.numbers("language_model.") == plain.numbers()
    assert packed_ones.numbers("language_model.model.layers.7.") == plain.numbers("model.layers.7.")


def test_one_changed_byte_of_a_small_checkpoint_changes_its_fingerprint(tmp_path):
    save_llama(tmp_path)
    before = read_target(tmp_path).facts.weights_sha256
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    assert read_target(tmp_path).facts.weights_sha256 != before


def test_rope_is_read_in_the_old_and_the_new_way(tmp_path):
    save_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    scaling = {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    old = {**config, "rope_theta": 50000.0, "rope_scaling": scaling}
    new = {**config, "rope_parameters": {**scaling, "rope_theta": 50000.0}}
    for found in (old, new):
        (tmp_path / "config.json").write_text(json.dumps(found))
        target = read_target(tmp_path)
        assert (target.rope_theta, target.rope_scaling) == (50000.0, scaling)


# What compressed-tensors 0.17.0 made of random numbers [2, 16]: words, scales, and the weight in bfloat16.
GOLDEN = {
    4: (
        [1941112316, -2039208647, -411690296, 1234015512],
        "0.027587890625 0.036865234375 0.0250244140625 0.01318359375"
        " 0.03076171875 0.10302734375 0.08251953125 0.08447265625",
        "0.1103515625 0.193359375 -0.0830078125 -0.220703125 -0.1845703125 0.1103515625 -0.1845703125"
        " -0.036865234375 0.0250244140625 -0.125 -0.0751953125 -0.150390625 -0.052734375 -0.01318359375"
        " -0.0263671875 0.0 0.0 0.123046875 0.0615234375 -0.21484375 -0.2060546875 -0.10302734375"
        " -0.10302734375 0.6171875 0.0 -0.578125 -0.248046875 0.08251953125 0.421875 0.0 0.08447265625"
        " -0.337890625",
    ),
    8: (
        [-1311218862, -1819075085, -1054824562, 545241353, -1745565153, 1925971619, -2145248073, -2060082048],
        "0.07958984375 0.1015625 0.103515625 0.10400390625"
        " 0.06982421875 0.0164794921875 0.064453125 0.0286865234375",
        "-3.65625 -2.3125 7.0 3.90625 11.6875 -10.0625 1.9296875 1.9296875 1.453125 4.03125 -9.9375 6.71875"
        " -12.375 5.9375 -0.10400390625 -10.0 -6.78125 5.15625 8.125 1.609375 0.578125 2.078125 1.234375"
        " -0.23046875 3.546875 -6.4375 -6.0625 0.0 0.0 1.03125 -2.15625 0.1435546875",
    ),
}


def numbers(text: str) -> torch.Tensor:
    return torch.tensor([float(word) for word in text.split()]).bfloat16().view(2, -1)


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_integers_unpack_as_compressed_tensors_unpacks_them(bits):
    words, scale, weight = GOLDEN[bits]
    parts = {
        "weight_packed": torch.tensor(words, dtype=torch.int32).view(2, -1),
        "weight_scale": numbers(scale),
        "weight_shape": torch.tensor([2, 16]),
    }
    assert torch.equal(dequantise(parts, "m", torch.bfloat16), numbers(weight))


def test_fp8_blocks_are_scaled_each_by_its_own_factor():
    weight = torch.ones(130, 260).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    plain = dequantise({"weight": weight, "weight_scale_inv": scale}, "m", torch.float32)
    corners = [plain[0, 0], plain[127, 128], plain[0, 259], plain[128, 127], plain[129, 255], plain[129, 256]]
    assert torch.stack(corners).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    "parts",
    [
        {"weight": torch.ones(2, 2).to(torch.float8_e4m3fn)},
        {"weight": torch.ones(2, 2).to(torch.float8_e4m3fn), "weight_scale": torch.ones(1)},
        {
            "weight_packed": torch.ones(2, 2, dtype=torch.int32),
            "weight_scale": torch.ones(2, 1),
            "weight_shape": torch.tensor([2, 16]),
            "weight_zero_point": torch.ones(1, 1, dtype=torch.int32),
        },
        {},
    ],
)
def test_a_weight_in_an_unknown_form_is_refused(parts):
    with pytest.raises(UsageError, match=r"layers\.3\.mlp is quantised in an unknown form"):
        dequantise(parts, "layers.3.mlp", torch.float32)


def names_of(path: Path) -> set[str]:
    return set(load_file(path / "model.safetensors"))


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        ("model.norm.weight", "model.norm.weight"),
        ("model.layers.3.self_attn.kv_b_proj.weight", "model.layers.3.self_attn.kv_b_proj.weight"),
        ("model.layers.7.mlp.experts.2.up_proj.weight", "model.layers.7.mlp.experts.2.up_proj.weight"),
        ("lm_head.weight", "the config does not tie head and embedding"),
        ("model.embed_tokens.weight", "embed_tokens.weight under model., language_model.model."),
    ],
)
def test_a_checkpoint_that_lacks_a_tensor_is_refused_with_its_name(saved, dropped, said):
    names = names_of(saved["deepseek_v3"]) - {dropped}
    with pytest.raises(UsageError, match="layout is unknown: missing is") as refused:
        find_layout(names, 8, tied=False)
    assert said in refused.value.message


def test_layers_of_another_kind_are_refused_with_what_they_hold(saved):
    names = names_of(saved["llama"]) | {f"model.layers.{n}.self_attn.sinks" for n in range(8)}
    with pytest.raises(UsageError, match=r"its layers hold self_attn\.sinks"):
        find_layout(names, 8, tied=True)


def test_a_model_of_other_names_is_refused_with_what_it_holds(tmp_path):
    config = transformers.GPT2Config(vocab_size=16, n_embd=8, n_layer=8, n_head=2, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="missing is num_hidden_layers in"):
        read_target(tmp_path)
    with pytest.raises(UsageError, match=r"missing is embed_tokens\.weight") as refused:
        find_layout(names_of(tmp_path), 8, tied=True)
    assert "transformer.h.0" in refused.value.hints[0]


def test_a_prediction_layer_past_the_last_is_left_out(saved):
    names = names_of(saved["deepseek_v3"]) | {"model.layers.8.eh_proj.weight", "model.layers.8.enorm.weight"}
    assert find_layout(names, 8, tied=False).layer(7) == "model.layers.7."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab_size": 95}, r"embedding model\.embed_tokens\.weight is \[96, 32\].* 95 tokens"),
        ({"embedding_multiplier": 12.0}, r"embedding_multiplier is 12\.0"),
        ({"model_type": "gemma2"}, "family gemma2, which scales its embedding"),
        ({"hidden_size": None}, "missing is hidden_size"),
        ({"num_hidden_layers": 9}, r"missing is model\.layers\.8"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(tmp_path, change, said):
    save_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UsageError, match=said):
        read_target(tmp_path)


def test_too_few_layers_to_tell_the_captured_ones_apart_are_refused(tmp_path):
    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 6})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="has 6 layers"):
        _ = read_target(tmp_path).aux_inputs_of


@pytest.mark.parametrize("content", [None, "[]", "{"])
def test_a_folder_without_a_readable_config_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=r"config\.json"):
        read_target(tmp_path)


def test_weights_that_are_torn_or_absent_are_named(tmp_path):
    save_kimi(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"model\.safetensors cannot be read"):
        read_target(tmp_path)
    file.unlink()
    with pytest.raises(UsageError, match="holds neither"):
        read_target(tmp_path)
    shutil.copy(tmp_path / "config.json", tmp_path / "model.safetensors.index.json")
    with pytest.raises(UsageError, match=r"index\.json cannot be read"):
        read_target(tmp_path)
