"""A healthy small EAGLE-3 directory, for tests that plant a fault in it. It needs no torch."""

from __future__ import annotations

import json
import random
import struct
from array import array
from pathlib import Path
from typing import Any

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB, DRAFT, LAYERS = 32, 4, 2, 8, 48, 300, 100, 30

TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": INTERMEDIATE,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": False,
}


def healthy_config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": INTERMEDIATE,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": [2, 15, 27],
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 14, 26]},
    }


def healthy_shapes() -> dict[str, tuple[int, ...]]:
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    return {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "midlayer.input_layernorm.weight": (HIDDEN,),
        "midlayer.hidden_norm.weight": (HIDDEN,),
        "midlayer.post_attention_layernorm.weight": (HIDDEN,),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": (HIDDEN, queries),
        "midlayer.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "midlayer.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT, HIDDEN),
    }


def drafted_tokens(seed: int = 0, *, spread: bool = False) -> list[int]:
    """The target tokens of the draft vocabulary, ascending; `spread`: no two of them neighbours."""
    if spread:
        return [3 * i + 1 for i in range(DRAFT)]
    return sorted(random.Random(seed).sample(range(VOCAB), DRAFT))


def offsets(tokens: list[int]) -> list[int]:
    return [token - i for i, token in enumerate(tokens)]


def marks(tokens: list[int]) -> list[bool]:
    return [token in set(tokens) for token in range(VOCAB)]


Stored = tuple[str, tuple[int, ...], bytes]


def floats(shape: tuple[int, ...], seed: int) -> Stored:
    size = 1
    for width in shape:
        size *= width
    chance = random.Random(seed)
    return "F32", shape, array("f", (chance.gauss(0, 0.05) for _ in range(size))).tobytes()


def integers(values: list[int]) -> Stored:
    return "I64", (len(values),), array("q", values).tobytes()


def flags(values: list[bool]) -> Stored:
    return "BOOL", (len(values),), bytes(values)


def write_tensors(file: Path, tensors: dict[str, Stored]) -> None:
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_target(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TARGET))
    tensors = {
        "model.embed_tokens.weight": floats((VOCAB, HIDDEN), 1),
        "lm_head.weight": floats((VOCAB, HIDDEN), 2),
    }
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def head_rows(tokens: list[int]) -> Stored:
    """The rows of the target's head for these tokens, as a trained head still resembles them."""
    _, _, raw = floats((VOCAB, HIDDEN), 2)
    width = 4 * HIDDEN
    return "F32", (len(tokens), HIDDEN), b"".join(raw[t * width : (t + 1) * width] for t in tokens)


def write_drafter(folder: Path, *, spread: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(healthy_config()))
    tokens = drafted_tokens(spread=spread)
    tensors = {name: floats(shape, 3) for name, shape in healthy_shapes().items()}
    tensors["lm_head.weight"] = head_rows(tokens)
    tensors["d2t"], tensors["t2d"] = integers(offsets(tokens)), flags(marks(tokens))
    write_tensors(folder / "model.safetensors", tensors)
    return folder
