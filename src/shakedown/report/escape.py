"""Untrusted text (logs, stacks, names) made harmless for a terminal, for Markdown and for HTML.

It never leaves a control character, and never trusts a line because of where it came from.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

LONGEST = 300  # characters of one untrusted line; the ledger and the log have the whole

_ESCAPE_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
# Plain prose renders as itself; anything with a sign that Markdown may read goes into a code span.
_PLAIN = re.compile(r"(?:[^\W_]|(?<=[^\W_])_(?=[^\W_])|[ .,;:()'\"/%+=?–—…-])*")
_LINKED = re.compile(r"://|www\.|\d[.)] ")
_BACKTICKS = re.compile(r"`+")


def clean(text: str, limit: int = LONGEST) -> str:
    """One line: escape codes and invisible characters gone, white space folded, cut to `limit`."""
    folded = " ".join(_ESCAPE_CODES.sub("", text).split())
    shown = " ".join(visible(folded).split())  # folded again: what was between two spaces may be gone
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def line_of_block(text: str, limit: int = LONGEST) -> str:
    """One line of a log or a listing: its indentation is kept, all else is as in `clean`."""
    shown = visible(_ESCAPE_CODES.sub("", text).expandtabs(4)).rstrip()
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def storable(text: str) -> str:
    """`text` as any stream takes it: undecodable bytes become `\\xNN`."""
    raw = text.encode("utf-8", "surrogateescape") if _only_bytes(text) else text.encode("utf-8", "replace")
    return raw.decode("utf-8", "backslashreplace")


def visible(text: str) -> str:
    """`text` without control, format and undecodable characters; white space is kept."""
    return "".join(char for char in text if not unicodedata.category(char).startswith("C"))


def _only_bytes(text: str) -> bool:
    return all("\udc80" <= char <= "\udcff" for char in text if unicodedata.category(char) == "Cs")


def code(text: str, limit: int = LONGEST) -> str:
    """A code span, in which neither Markdown nor HTML nor a @mention means anything."""
    inner = clean(text, limit) or " "
    ticks = "`" * (_longest_run(inner) + 1)
    pad = " " if inner[0] == "`" or inner[-1] == "`" else ""
    return f"{ticks}{pad}{inner}{pad}{ticks}"


def prose(text: str, limit: int = LONGEST) -> str:
    """A sentence as it is where it is harmless, else in a code span."""
    line = clean(text, limit)
    return line if _PLAIN.fullmatch(line) and not _LINKED.search(line) else code(line, limit)


def cell(text: str, limit: int = 120) -> str:
    """A code span for a table, where even there a bar would end the cell; empty for no text."""
    return code(text, limit).replace("|", "\\|") if clean(text) else ""


def fenced(lines: Iterable[str], language: str = "") -> list[str]:
    """A code block whose fence is longer than any in it."""
    body = [visible(line).rstrip() for line in lines]
    fence = "`" * max(3, _longest_run("\n".join(body)) + 1)
    return [fence + language, *body, fence]


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)
