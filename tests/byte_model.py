"""A tokenizer of bytes in a folder, the smallest target: token n is byte n, then two that mark turns."""

from __future__ import annotations

import json
from pathlib import Path

BEGIN, END = 256, 257
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_model(folder: Path, template: str = CHATML, shift: int = 0) -> Path:
    """`shift` gives every byte another token: another model's tokenizer, for those who mix them up."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = alphabet()
    vocabulary = {letters[(byte + shift) % 256]: byte for byte in range(256)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [
        {"id": BEGIN, "content": "<|im_start|>", **special},
        {"id": END, "content": "<|im_end|>", **special},
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def alphabet() -> list[str]:
    """GPT-2's printable letter for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def encode(text: str) -> list[int]:
    """What the tokenizer makes of a text."""
    parts = text.replace("<|im_start|>", "\0B").replace("<|im_end|>", "\0E").split("\0")
    tokens = list(parts[0].encode())
    for part in parts[1:]:
        tokens += [BEGIN if part[0] == "B" else END, *part[1:].encode()]
    return tokens
