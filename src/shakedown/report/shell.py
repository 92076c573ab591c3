"""A command as a user can paste it: quoted, in lines that fit, secrets asked for by name.

It never runs one.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence

from shakedown.redact import REDACTED

WIDTH = 78
NODES_COMMAND = ("shakedown", "run", "--launch")  # how the launch of several nodes is recorded
_FLAG = re.compile(r"--?([A-Za-z][\w-]*)")
_ASSIGNMENT = re.compile(r"(?:-{1,2})?([A-Za-z_][\w-]*)=")


def quote(token: str, secret: str = "SECRET") -> str:
    """`token` for a shell; what was redacted in it becomes `${secret:?}`, which a shell refuses if unset."""
    if REDACTED in token:
        parts = [re.sub(r'([\\$`"])', r"\\\1", part) for part in token.split(REDACTED)]
        return '"' + f"${{{secret}:?}}".join(parts) + '"'
    if any(unicodedata.category(char).startswith("C") for char in token):
        return "$'" + "".join(_escaped(char) for char in token) + "'"
    return shlex.quote(token)


def _escaped(char: str) -> str:
    if char in "\\'":
        return "\\" + char
    if not unicodedata.category(char).startswith("C"):
        return char
    if "\udc80" <= char <= "\udcff":  # a byte that was no text
        return f"\\x{ord(char) - 0xDC00:02x}"
    return f"\\x{ord(char):02x}" if ord(char) < 0x80 else f"\\U{ord(char):08x}"


def quoted(argv: Sequence[str]) -> list[str]:
    """Every token quoted; a redacted one is asked for by the name of its flag or variable."""
    tokens = []
    for at, token in enumerate(argv):
        before = _FLAG.fullmatch(argv[at - 1]) if at else None
        named = _ASSIGNMENT.match(token) or before
        tokens.append(quote(token, variable(named.group(1)) if named else "SECRET"))
    return tokens


def variable(name: str) -> str:
    """`api-key` → `API_KEY`."""
    return name.replace("-", "_").upper()


def command(
    argv: Sequence[str],
    *,
    env: Iterable[tuple[str, str]] = (),
    unset: Iterable[str] = (),
    before: Sequence[str] = (),
    width: int = WIDTH,
) -> list[str]:
    """Lines that together are one shell command: variables, then `before`, then `argv`."""
    unset, env = tuple(unset), tuple(env)
    odd = any(not (name.isascii() and name.isidentifier()) for name, _ in env)  # no shell assigns these
    assignments = [f"{quote(name)}={quote(value, variable(name))}" for name, value in env]
    cleared = [f"-u {quote(name)}" for name in unset]
    start = [*(["env", *cleared] if unset or odd else []), *assignments, *before]
    return _packed([*start, *_chunks(argv)], width)


def _chunks(argv: Sequence[str]) -> list[str]:
    """Tokens that stay on one line: a flag and its values."""
    chunks: list[str] = []
    for token, text in zip(argv, quoted(argv), strict=True):
        follows_flag = chunks and chunks[-1].startswith("-") and not token.startswith("-")
        if follows_flag and len(chunks[-1]) + len(text) < WIDTH // 2:
            chunks[-1] += " " + text
        else:
            chunks.append(text)
    return chunks


def _packed(chunks: Sequence[str], width: int) -> list[str]:
    lines = [""]
    for chunk in chunks:
        if lines[-1].strip() and len(lines[-1]) + 1 + len(chunk) > width - 2:
            lines.append("  " + chunk)
        else:
            lines[-1] += (" " if lines[-1].strip() else "") + chunk
    return [line + " \\" for line in lines[:-1]] + lines[-1:]
