"""Turn a stream of raw output, cut anywhere, into whole redacted lines.

It never lets out a line that is not finished, so no secret can slip through where two chunks meet.
"""

from __future__ import annotations

import re

from shakedown.redact import REDACTED, Redactor, strip_controls

LONGEST_LINE = 64 * 1024
_CUT_MARK = " [line cut]"
_LONGEST_SHAPE = 8 * 1024  # a web token or a key block that begins just before the cut
_REDRAWS = re.compile(rb"(?:(?<=\n)|\A)\r+(?!\n)")  # a bar that begins at the left ends no line
_RETURNS = re.compile(rb"\r+\n?")
_KEY_BODY = re.compile(r"[A-Za-z0-9+/= \t]{0,256}")
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_KEY_END = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY-----")


class Scrubber:
    """Feed it chunks, get redacted UTF-8 lines. A progress bar's `\\r` ends a line."""

    def __init__(self, redactor: Redactor, *, longest_line: int = LONGEST_LINE) -> None:
        self._redactor = redactor
        self._longest_line = longest_line
        self._overlap = max(_LONGEST_SHAPE, redactor.longest * 4)  # bytes of the longest secret
        self._window = longest_line + self._overlap
        self._unfinished = b""
        self._skipping = False  # the rest of a line that was too long
        self._in_key = False

    def feed(self, chunk: bytes) -> bytes:
        data = self._unfinished + chunk
        held = b"\r" if data.endswith(b"\r") else b""  # its newline may be in the next chunk
        data = _RETURNS.sub(b"\n", _REDRAWS.sub(b"", data.removesuffix(b"\r")))
        finished, newline, self._unfinished = data.rpartition(b"\n")
        out = self._scrub(finished) if newline else b""
        if len(self._unfinished) > self._window:
            out += b"" if self._skipping else self._scrub(self._unfinished)
            self._skipping, self._unfinished = True, b""
        self._unfinished += held
        return out

    def flush(self) -> bytes:
        """Let out the last, unfinished line: the stream is over."""
        last, self._unfinished = self._unfinished, b""
        return self._scrub(last) if last.strip(b"\r") else b""

    def skip(self) -> None:
        """Bytes are missing from here on: what is left of the line they end in would be a torn secret."""
        self._unfinished, self._skipping, self._in_key = b"", True, False

    def _scrub(self, block: bytes) -> bytes:
        if self._skipping:
            self._skipping = False
            _, newline, block = block.partition(b"\n")
            if not newline:
                return b""
        lines = block.split(b"\n")
        if max(map(len, lines)) <= self._window:
            return self._redact(block)
        return b"".join(
            self._redact(line) if len(line) <= self._window else self._redact_torn(line) for line in lines
        )

    def _redact(self, block: bytes) -> bytes:
        text = strip_controls(block.decode("utf-8", "replace"))
        if self._in_key or "PRIVATE KEY-----" in text:
            text = "\n".join(self._hide_key(line) for line in text.split("\n"))
        text = self._redactor.redact_text(text)
        if len(text) > self._longest_line:
            lines = [line[: self._longest_line] for line in text.split("\n")]
            text = "\n".join(line + _CUT_MARK * (len(line) == self._longest_line) for line in lines)
        return text.encode("utf-8", "replace") + b"\n"

    def _redact_torn(self, line: bytes) -> bytes:
        """A secret torn by the window's end is not recognised, so its overlap goes as well."""
        kept = self._redact(line[: self._window]).removesuffix(f"{_CUT_MARK}\n".encode())
        return kept[: max(0, min(self._longest_line, len(kept) - self._overlap))] + f"{_CUT_MARK}\n".encode()

    def _hide_key(self, line: str) -> str:
        if not self._in_key:
            begun = _KEY_BEGIN.search(line)
            if begun and not _KEY_END.search(line):
                self._in_key = True
                return line[: begun.start()] + REDACTED
            return line
        if _KEY_END.search(line):
            self._in_key = False
            return REDACTED
        self._in_key = bool(_KEY_BODY.fullmatch(line))
        return REDACTED if self._in_key else line
