"""Tell what was drawn by chance, as keys are, from what people name: paths, models, versions, options.

It judges text alone, and never says that what was drawn is a secret: a commit's hash is drawn, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SHORTEST = 20  # of 62 signs 20 hold 119 bits; shorter ones are too often a build's or a pod's name
# Changes between letters and digits or of case, per sign. Drawn: hex 0.47, base62 0.45, base32 0.30 on
# average; 97 to 99.9 % of drawn base62 and hex pass. Named: models, wheels and kernels below 0.2.
_LEAST_CHANGES = 0.22
_LEAST_SIGNS = 10  # different ones: not a mask such as 0xffff0000ffff0000
_PIECE = re.compile(r"[A-Za-z0-9+/_~-]{20,4096}+={0,2}")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CHANGE = re.compile(r"(?=[A-Za-z][0-9]|[0-9][A-Za-z]|[a-z][A-Z])")  # `Qwen` begins a word: no change
_CLASSES = (re.compile("[a-z]"), re.compile("[A-Z]"), re.compile("[0-9]"))


def drawn_pieces(text: str, *, mixed: bool = False) -> Iterator[str]:
    """The parts of `text` that look drawn. `mixed`: only with both cases and digits, as no hash is written.

    A UUID is an id of a run, a GPU or a machine, so it is none.
    """
    text = _UUID.sub(" ", text)
    for found in _PIECE.finditer(text):
        piece = found[0]
        if "/" in piece:
            is_url = piece.startswith("//") and text[: found.start()].endswith(":")
            yield from _drawn_of_path(piece, is_url=is_url)
        elif _is_drawn(piece, mixed=mixed):
            yield piece


def _drawn_of_path(piece: str, *, is_url: bool) -> Iterator[str]:
    """Base64 may hold a `/`; a path of this machine never names a key, what follows `://` may."""
    if not is_url and piece.startswith(("/", "~/")):
        return
    longest = max(piece.split("/"), key=len)
    whole = not is_url and _is_drawn(longest, mixed=True, shortest=6)
    if whole and _is_drawn(piece.replace("/", ""), mixed=True):
        yield piece
    else:
        yield from (part for part in piece.split("/") if _is_drawn(part, mixed=True))


def _is_drawn(piece: str, *, mixed: bool, shortest: int = _SHORTEST) -> bool:
    kinds = sum(bool(kind.search(piece)) for kind in _CLASSES)
    if len(piece) < shortest or kinds < (3 if mixed else 2) or len(set(piece)) < min(_LEAST_SIGNS, shortest):
        return False
    if piece.count("_") + piece.count("-") > max(3, len(piece) // 10):  # words, joined: `tp8_pp2_dp4_ep32`
        return False
    return len(_CHANGE.findall(piece)) >= _LEAST_CHANGES * len(piece)
