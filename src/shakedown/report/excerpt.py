"""The beginning and the end of a launch's log, and the arguments that the engine says it resolved.

It never reads a file; what it is handed comes from one, so secrets are taken out of it once more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from shakedown.redact import Redactor
from shakedown.report.escape import line_of_block

MOST_BYTES = 256 * 1024  # of either end: a log may be of any size
HEAD_LINES = 40  # engines name version, arguments and backends here
TAIL_LINES = 80  # a traceback of vLLM's three processes is some 70 lines
LONGEST_LINE = 2000
LONGEST_ARGUMENTS = 20_000

_RESOLVED = re.compile(r"non-default args: (\{.*\})|server_args=ServerArgs\((.*)\)")
_PAIR = re.compile(r"(?:^|, |\{)'?([A-Za-z_]\w*)'?(?:=|: )")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExcerpt:
    """`left_out` says what stands between head and tail ("" where the two are the whole log)."""

    head: tuple[str, ...]
    tail: tuple[str, ...] = ()
    left_out: str = ""
    resolved: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, start: bytes, end: bytes, size_bytes: int) -> Self:
        """`start` and `end` are up to MOST_BYTES each; `end` is b"" where `start` is the whole."""
        redactor = Redactor.of({}, ())
        first = _lines(start, redactor)
        resolved = _resolved(first)
        if size_bytes <= len(start):
            if len(first) <= HEAD_LINES + TAIL_LINES:
                return cls(head=_shown(first), resolved=resolved)
            left_out = f"{len(first) - HEAD_LINES - TAIL_LINES} lines left out"
            return cls(
                head=_shown(first[:HEAD_LINES]),
                tail=_shown(first[-TAIL_LINES:]),
                left_out=left_out,
                resolved=resolved,
            )
        last = _lines(end, redactor)
        head, tail = first[:HEAD_LINES], last[1:][-TAIL_LINES:] or last  # the first is a part of a line
        return cls(
            head=_shown(head),
            tail=_shown(tail),
            left_out=f"the middle of {size_bytes / 1e6:.1f} MB left out",
            resolved=resolved,
        )

    @property
    def lines(self) -> tuple[str, ...]:
        return self.head + ((f"… {self.left_out} …",) if self.left_out else ()) + self.tail


def _lines(raw: bytes, redactor: Redactor) -> list[str]:
    lines = redactor.redact_text(raw.decode("utf-8", "replace")).removesuffix("\n").split("\n")
    return [line.rstrip("\r").rpartition("\r")[2] for line in lines]  # of a progress bar its last state


def _shown(lines: list[str]) -> tuple[str, ...]:
    return tuple(line_of_block(line, LONGEST_LINE) for line in lines)


def _resolved(lines: list[str]) -> tuple[tuple[str, str], ...]:
    """Name and value of each, as both engines log them in one line: a dict, or a call."""
    for line in lines:
        if found := _RESOLVED.search(line[:LONGEST_ARGUMENTS]):
            return tuple(_pairs(line_of_block(found[1] or found[2], LONGEST_ARGUMENTS)))
    return ()


def _pairs(text: str) -> list[tuple[str, str]]:
    """Split at the commas outside of brackets and quotes; a value stays as it is written."""
    text = text.removeprefix("{").removesuffix("}")
    pieces, depth, quote, begin = [], 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote and text[at - 1] != "\\" else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            pieces.append(text[begin:at])
            begin = at + 1
    found = []
    for piece in [*pieces, text[begin:]]:
        if named := _PAIR.match(piece.strip()):
            found.append((named[1], piece.strip()[named.end() :]))
    return found
