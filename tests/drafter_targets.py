"""Tiny random models of the real architectures, saved as their publishers save them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

VOCABULARY = 96
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # layers that differ: a wrong one must be far away
}
MIXTURE = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_key_value_heads": 4,
}

# How Kimi-K2.x writes its text config: rope in the old way, settings that only its own code reads.
PUBLISHED = {
    "rope_theta": 50000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
}


def save_llama(folder: Path) -> None:
    save("Llama", folder, num_key_value_heads=2, tie_word_embeddings=True)


def save_qwen2(folder: Path) -> None:
    save("Qwen2", folder, num_key_value_heads=2)


def save_mixed(folder: Path) -> None:
    """Its upper layers see a window, its lower ones all."""
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 5}
    save("Qwen2", folder, num_key_value_heads=2, **window)


def save_qwen3(folder: Path) -> None:
    save("Qwen3", folder, num_key_value_heads=2, head_dim=8)


def save_qwen3_moe(folder: Path) -> None:
    save("Qwen3Moe", folder, num_key_value_heads=2, head_dim=8, num_experts=4, **MIXTURE)


def save_deepseek(folder: Path) -> None:
    save("DeepseekV3", folder, **LATENT, **MIXTURE)


def save_deepseek_v2(folder: Path) -> None:
    """As its Lite version: queries without a low rank, experts chosen by softmax."""
    lite = {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "head_dim": 8}
    save("DeepseekV2", folder, **{**LATENT, **lite}, **MIXTURE)


def save_kimi(folder: Path) -> None:
    """Kimi-K2.x as published: the text model under `language_model.`, experts packed to four bits, beside a
    vision tower."""
    save_deepseek(folder)
    tensors = load_file(folder / "model.safetensors")
    renamed = {"vision_tower.patch_embed.weight": torch.zeros(2, 2)}
    for name, tensor in tensors.items():
        if ".experts." in name:
            renamed.update(packed(f"language_model.{name.removesuffix('.weight')}", tensor))
        else:
            renamed[f"language_model.{name}"] = tensor.bfloat16()
    save_file(renamed, folder / "model.safetensors")
    text = {**json.loads((folder / "config.json").read_text()), **PUBLISHED}
    del text["rope_parameters"]
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": {**text, "model_type": "kimi_k2"},
        "vision_config": {"model_type": "kimi_k25_vision"},
    }
    (folder / "config.json").write_text(json.dumps(config))


TARGETS: dict[str, Callable[[Path], None]] = {
    "llama": save_llama,
    "qwen2": save_qwen2,
    "mixed": save_mixed,
    "qwen3": save_qwen3,
    "qwen3_moe": save_qwen3_moe,
    "deepseek_v2": save_deepseek_v2,
    "deepseek_v3": save_deepseek,
    "kimi": save_kimi,
}


def save(family: str, folder: Path, **settings: object) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(7)
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **settings})
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.save_pretrained(folder)


def packed(module: str, weight: torch.Tensor, group: int = 16, bits: int = 4) -> dict[str, torch.Tensor]:
    """A weight as compressed-tensors packs it, bit by bit: slow, and plain to read."""
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // group, group)
    scale = (groups.abs().amax(-1) / 7).bfloat16()
    numbers = (groups / scale.float()[:, :, None]).round().clamp(-8, 7).int().view(rows, columns)
    words = torch.zeros(rows, columns * bits // 32, dtype=torch.int64)
    for column in range(columns):
        place, shift = divmod(column * bits, 32)
        words[:, place] |= (numbers[:, column].long() + 8) << shift
    return {
        f"{module}.weight_packed": words.to(torch.int32),
        f"{module}.weight_scale": scale,
        f"{module}.weight_shape": torch.tensor([rows, columns]),
    }
