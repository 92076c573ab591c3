"""Reads a server's output as lines and says which of them show that something moved.

It never trusts a line: bytes, repeats, heartbeats and waiting phrases are not progress.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shakedown.core import Engine, LogLine
from shakedown.watch.patterns import Phrases, compile_or_escape

LINE_CHARS = 8192  # longer lines are cut; one vLLM config line has 4,000
TEMPLATE_CHARS = 400
TEMPLATES = 20_000  # a flood of ever new lines stops counting as progress here
LINES_PER_FEED = 4000  # the rest waits for the next feed, so that a flood cannot stall a step
PENDING_BYTES = 8 << 20

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BREAKS = re.compile(rb"\r\n|\n|\r")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBERS = re.compile(r"\d[\d.,:]*")
_LONG_HEX = re.compile(r"[0-9a-fA-F]{8,}")
_PERCENT = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3})?) ?%")
_FRACTION = re.compile(r"(?<![\d./])(\d{1,9}) ?/ ?(\d{1,9})(?![\d/])")
# "attempt 3/10" and "waited 40 %" rise in a hang too.
_VAIN = re.compile(
    r"\b(?:re-?try|retries|retrying|attempts?|wait(?:ed|ing)?|elapsed|time-?out|timed out)\b", re.I
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedLine:
    """One line of output. `number` counts from 1; `noise` is folded in a live view; `moved` is progress."""

    number: int
    line: LogLine
    rank: str
    pid: int | None
    noise: bool
    moved: bool

    @property
    def text(self) -> str:
        return self.line.text


def template(text: str) -> str:
    """What is left of a line once numbers, hex, paths and quoted strings are masked."""
    unquoted = _QUOTED.sub("'…'", text[:TEMPLATE_CHARS])
    return " ".join(_mask(word) for word in unquoted.split())


def _mask(word: str) -> str:
    if word.count("/") > 1 or (word.startswith(("./", "~/", "/")) and len(word) > 2):
        return "<path>"
    if word.startswith("0x") or any(map(_looks_random, _LONG_HEX.findall(word))):
        return "<hex>"
    return _NUMBERS.sub("#", word)


def _looks_random(run: str) -> bool:
    return any(c.isdigit() for c in run) and any(c.isalpha() for c in run)


def counter(text: str) -> float | None:
    """How far a line says a piece of work has come (0-1): `45%` or `3/30`; None if it says nothing."""
    head = text[:TEMPLATE_CHARS]
    if _VAIN.search(head):
        return None
    fractions = [int(n) / int(m) for n, m in _FRACTION.findall(head) if int(n) <= int(m) > 0]
    percents = [float(p) / 100 for p in _PERCENT.findall(head)]
    return max(fractions + [p for p in percents if p <= 1], default=None)


# A dump of stacks (py-spy's or Python's own) says where something stands, not that it moved.
_FRAME = re.compile(
    r'\s*File "[^"]+", line \d+|\s+\S.* \(\S+:\d+\)$'
    r"|(?:Current t|T)hread (?:0x|\d+ \()|Process \d+: |Python v\d"
)


class LogReader:
    """Cuts bytes into lines and remembers every template, with the highest counter seen in it."""

    def __init__(self, engine: Engine) -> None:
        self._waiting = Phrases(engine.waiting_phrases)
        self._noise = Phrases(engine.noise)
        self._alarm = Phrases(engine.alarms)
        self._rank = compile_or_escape(engine.rank_pattern) if engine.rank_pattern else None
        self._pending = b""
        self._number = 0
        self._highest: dict[tuple[str, str], float] = {}

    @property
    def hungry(self) -> bool:
        """False while so much is pending that reading more would only use memory."""
        return len(self._pending) < PENDING_BYTES

    @property
    def behind(self) -> bool:
        """True if whole lines are still pending."""
        return b"\n" in self._pending

    def feed(self, data: bytes, at_s: float, *, last: bool = False) -> tuple[WatchedLine, ...]:
        """The lines that `data` completes (`last`: also the unfinished one), stamped `at_s`."""
        pieces = _BREAKS.split(self._pending + data, LINES_PER_FEED)
        if last and len(pieces) <= LINES_PER_FEED:
            self._pending = b""
        else:
            rest = pieces.pop()  # of a line without an end, its beginning is enough
            self._pending = rest if _BREAKS.search(rest) else rest[:PENDING_BYTES]
        return tuple(self._read(piece, at_s) for piece in pieces if piece.strip())

    def _read(self, piece: bytes, at_s: float) -> WatchedLine:
        text = _ESCAPES.sub("", piece[:LINE_CHARS].decode("utf-8", "replace")).rstrip()
        rank, pid = self._who(text)
        waiting = self._waiting(text)
        self._number += 1
        return WatchedLine(
            number=self._number,
            line=LogLine(at_s=at_s, text=text),
            rank=rank,
            pid=pid,
            noise=waiting or self._noise(text),
            moved=not waiting and not self._stands_still(text) and self._is_new(rank, text),
        )

    def _stands_still(self, text: str) -> bool:
        return self._alarm(text) or _FRAME.match(text, 0, TEMPLATE_CHARS) is not None

    def _who(self, text: str) -> tuple[str, int | None]:
        found = self._rank.search(text, 0, 200) if self._rank else None
        groups = found.groupdict() if found else {}
        pid = groups.get("pid") or ""
        return (groups.get("rank") or "").strip(), int(pid) if pid.isdecimal() else None

    def _is_new(self, rank: str, text: str) -> bool:
        key = (rank, template(text))
        value = counter(text)
        known = self._highest.get(key)
        if known is None:
            if len(self._highest) >= TEMPLATES:
                return False
            self._highest[key] = -1.0 if value is None else value
            return True
        if value is None or value <= known:
            return False
        self._highest[key] = value
        return True
