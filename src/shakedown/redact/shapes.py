"""Secrets and mischief that can be told by their shape alone: tokens, key blocks, terminal escapes.

It knows no names and no values, and no pattern backtracks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SHAPES = tuple(
    (needle, re.compile(pattern))
    for needle, pattern in (
        ("hf_", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{20,256}+"),
        ("sk-", r"(?<![A-Za-z0-9])sk-(?=[A-Za-z_-]{0,40}\d)[\w-]{20,256}+"),
        ("github_pat_", r"(?<![A-Za-z0-9])github_pat_\w{20,256}+"),
        *((f"gh{kind}_", rf"(?<![A-Za-z0-9])gh{kind}_[A-Za-z0-9]{{20,256}}+") for kind in "pousr"),
        ("glpat-", r"(?<![A-Za-z0-9])glpat-[\w-]{16,256}+"),
        ("xox", r"(?<![A-Za-z0-9])xox[abprs]-[\w-]{10,256}+"),
        ("nvapi-", r"(?<![A-Za-z0-9])nvapi-[\w-]{20,256}+"),
        ("AIza", r"(?<![A-Za-z0-9])AIza[\w-]{30,64}+"),
        ("IA", r"(?<![A-Za-z0-9])A[KS]IA[A-Z0-9]{16}(?![A-Z0-9])"),
        ("eyJ", r"(?<![\w-])eyJ[\w-]{8,4096}+\.[\w-]{4,8192}+(?:\.[\w-]{0,4096}+)?"),
        ("earer ", r"(?<![A-Za-z0-9])(?<=[Bb]earer )[\w.~+/=-]{8,4096}+"),
        ("://", r"(?<=://)[^\s/@:\"']{0,256}+:[^\s/@\"']{1,256}+(?=@)"),
        ("://", r"(?<=://)[^\s/@:\"']{16,256}+(?=@)"),
        (
            "PRIVATE KEY-----",
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[A-Za-z0-9+/= \t\r\n]|\\[nr])*+"
            r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?",
        ),
    )
)
_ESCAPE = re.compile(
    r"\x1b\][^\x07\x1b\n]{0,4096}+(?:\x07|\x1b\\)?"  # titles and links
    r"|(?:\x1b\[|\x9b)[0-?]{0,64}+[ -/]{0,16}+[@-~]?|\x1b[PX^_][^\x1b\n]{0,4096}+(?:\x1b\\)?"
    r"|\x1b[ -/]{0,4}+[0-~]?"
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shaped_spans(text: str) -> Iterator[tuple[int, int]]:
    for needle, pattern in _SHAPES:
        if needle in text:
            yield from (found.span() for found in pattern.finditer(text))


def strip_controls(text: str) -> str:
    """Drop terminal escapes, control characters but tab and newline, and marks that reorder text."""
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPE.sub("", text)
    return _CONTROL.sub("", text)
