"""What the lint needs to know of a drafter's folder and its target's: configs, shapes, maps, a few rows.

It judges nothing and needs no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shakedown.engines.lint import DrafterFacts, RowMatch, TargetConfig, TensorFact
from shakedown.errors import UsageError
from shakedown.jobs.weight_files import StoredTensor, Unreadable, cosine, find_weights

SAMPLED_ROWS = 48
NUMBERS = frozenset(
    {
        "hidden_size",
        "target_hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "draft_vocab_size",
        "max_position_embeddings",
        "num_aux_hidden_states",
        "rope_theta",
    }
)
LISTS = frozenset({"architectures", "layer_types"})
BLOCKS = ("transformer_layer_config", "text_config", "rope_parameters", "rope_scaling", "eagle_config")
FLOATS = ("BF16", "F16", "F32")
ZERO_ROWS = 16  # one row in so many may be 0: rows of a head that no token uses are, in some targets
CLOSE = 2**-7  # two roundings to bfloat16


def read_target_config(folder: Path) -> TargetConfig:
    return TargetConfig(
        config=read_json(folder / "config.json", "--target is the folder of a model's checkpoint")
    )


def read_drafter_facts(folder: Path, target: Path | None) -> DrafterFacts:
    """Raises UsageError where the folder holds no config; weights that cannot be read are a fact."""
    config = read_json(folder / "config.json", "give the folder of an EAGLE-3 drafter")
    tensors, broken = find_weights(folder)
    if not tensors and not broken:
        raise UsageError(
            f"{folder} holds no weights: neither *.safetensors nor pytorch_model*.bin",
            "give the folder of an EAGLE-3 drafter, as it was downloaded or exported",
        )
    try:
        d2t, t2d = _integers(_ending(tensors, "d2t")), _flags(_ending(tensors, "t2d"))
    except Unreadable as problem:
        d2t, t2d, broken = None, None, (*broken, str(problem))
    target_tensors = find_weights(target)[0] if target else {}
    return DrafterFacts(
        config=config,
        tensors={name: TensorFact(dtype=t.dtype, shape=t.shape) for name, t in tensors.items()},
        d2t=d2t,
        t2d=t2d,
        head=match_head(tensors, target_tensors, d2t),
        embedding_equal=compare_embeddings(tensors, target_tensors),
        dead_weights=dead_weights(tensors),
        broken_files=broken,
    )


def read_json(file: Path, hint: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except OSError as problem:
        raise UsageError(f"{file} cannot be read: {problem.strerror}", hint) from None
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{file} is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{file} is not a JSON object")
    refuse_unlike_config(found, file)
    return found


def refuse_unlike_config(found: Mapping[str, Any], file: Path) -> None:
    """Raises UsageError where what is counted is no number, or what is listed no list."""
    blocks = [found, *(block for key in BLOCKS if isinstance(block := found.get(key), dict))]
    for block in blocks:
        for key, value in block.items():
            if key in NUMBERS and value is not None and not is_number(key, value):
                raise UsageError(f"{file}: {key} is {value!r}, which is no number")
            if key in LISTS and value is not None and not isinstance(value, list | str):
                raise UsageError(f"{file}: {key} is {value!r}, which is no list")


def is_number(key: str, value: Any) -> bool:
    """Also "8192", of which Python makes a number."""
    try:
        return math.isfinite(float(value) if key == "rope_theta" else int(value))
    except (TypeError, ValueError, OverflowError):
        return False


def match_head(
    drafter: Mapping[str, StoredTensor], target: Mapping[str, StoredTensor], d2t: tuple[int, ...] | None
) -> RowMatch | None:
    """Rows of the drafter's head against those of the target's that d2t would mean, read either way."""
    own, theirs = _ending(drafter, "lm_head.weight"), head_of(target)
    if d2t is None or not _comparable(own, theirs) or not own or not theirs:
        return None
    vocab, count = theirs.shape[0], min(own.shape[0], len(d2t))
    readings: list[tuple[float, float, float]] = []
    for row in sampled_rows(count):
        offset, absolute = row + d2t[row], d2t[row]
        if offset != absolute and 0 <= offset < vocab and 0 <= absolute < vocab:
            other = (offset + vocab // 2 + 1) % vocab
            mine = own.row(row)
            if not any(mine) or not all(map(math.isfinite, mine)):
                continue  # told as dead
            offset_, absolute_, other_ = (cosine(mine, theirs.row(k)) for k in (offset, absolute, other))
            readings.append((offset_, absolute_, other_))
    if not readings:
        return None
    means = [sum(column) / len(readings) for column in zip(*readings, strict=True)]
    return RowMatch(rows=len(readings), as_offset=means[0], as_absolute=means[1], unrelated=means[2])


def dead_weights(tensors: Mapping[str, StoredTensor]) -> tuple[str, ...]:
    """Matrices of which rows looked at are no numbers, or all 0 more often than unused tokens explain."""
    found = []
    for name, tensor in sorted(tensors.items()):
        if tensor.dtype not in FLOATS or len(tensor.shape) != 2 or not all(tensor.shape):
            continue
        rows = [tensor.row(row) for row in sampled_rows(tensor.shape[0])]
        odd = sum(not all(map(math.isfinite, row)) for row in rows)
        empty = sum(not any(row) for row in rows)
        if odd:
            found.append(f"{name}: {odd} of {len(rows)} rows looked at hold what is no finite number")
        elif empty * ZERO_ROWS > len(rows):
            found.append(f"{name}: {empty} of {len(rows)} rows looked at are all 0")
    return tuple(found)


def sampled_rows(count: int) -> range:
    return range(0, count, max(1, count // SAMPLED_ROWS))


def compare_embeddings(
    drafter: Mapping[str, StoredTensor], target: Mapping[str, StoredTensor]
) -> bool | None:
    """Whether the drafter's own embedding is the target's; None where one of them is absent."""
    own, theirs = _ending(drafter, "embed_tokens.weight"), _ending(target, "embed_tokens.weight")
    if not _comparable(own, theirs) or not own or not theirs:
        return None
    rows = min(own.shape[0], theirs.shape[0])
    return all(
        abs(a - b) <= CLOSE * abs(b)
        for row in sampled_rows(rows)
        for a, b in zip(own.row(row), theirs.row(row), strict=True)
    )


def head_of(target: Mapping[str, StoredTensor]) -> StoredTensor | None:
    """The target's head; its embedding where the two are tied."""
    return _ending(target, "lm_head.weight") or _ending(target, "embed_tokens.weight")


def _comparable(own: StoredTensor | None, theirs: StoredTensor | None) -> bool:
    return bool(
        own
        and theirs
        and len(own.shape) == len(theirs.shape) == 2
        and own.shape[1] == theirs.shape[1]
        and own.dtype in FLOATS
        and theirs.dtype in FLOATS
    )


def _ending(tensors: Mapping[str, StoredTensor], name: str) -> StoredTensor | None:
    return next((t for key, t in sorted(tensors.items()) if key == name or key.endswith(f".{name}")), None)


def _integers(tensor: StoredTensor | None) -> tuple[int, ...] | None:
    return tuple(tensor.integers()) if tensor else None


def _flags(tensor: StoredTensor | None) -> tuple[bool, ...] | None:
    return tuple(map(bool, tensor.whole())) if tensor and tensor.dtype in ("BOOL", "U8") else None
