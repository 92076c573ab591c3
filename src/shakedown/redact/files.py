"""Learn the secrets that a launch reads from files: its `--config`, token files, the hub's own token.

It reads regular files of bounded size only, and keeps nothing of what is not secret.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shakedown.redact.chance import drawn_pieces
from shakedown.redact.names import Name, given_is_secret, judge_name, may_be_drawn
from shakedown.redact.pairs import named_arguments, named_spans
from shakedown.redact.shapes import shaped_spans

_MOST_BYTES = 1 << 20
_SETTINGS = re.compile(r"(?i)(?:.*[-_.])?(?:config|env[-_]file|config[-_]file|settings)")
_HOLDS = re.compile(r"(?i)[-_]?(?:path|file)$")  # `HF_TOKEN_PATH`, `--api-key-file`
_PAIR = re.compile(r"\s*(?:export\s+)?[\"']?(?P<name>[A-Za-z][\w.-]{0,63})[\"']?\s*[:=]\s*(?P<value>.*)")
_ITEM = re.compile(r"\s*-\s+(?P<value>.+)")


def written_secrets(env: Mapping[str, str], argv: Sequence[str], cwd: Path) -> frozenset[str]:
    """The secret values in the files that the launch names or would find by itself."""
    found: set[str] = set()
    given = [(name, value) for _, name, value in named_arguments(argv)]
    for name, value in given:
        if _SETTINGS.fullmatch(name) and (text := _read(cwd, value)):
            found.update(_of_settings(text))
    for name, value in (*env.items(), *given):
        bare = _HOLDS.sub("", name)
        if bare != name and judge_name(bare) is not Name.PLAIN and (text := _read(cwd, value)):
            found.add(text.strip())
    home = env.get("HF_HOME") or os.path.join(env.get("HOME", "/nowhere"), ".cache", "huggingface")
    if text := _read(cwd, os.path.join(home, "token")):
        found.add(text.strip())
    return frozenset(found - {""})


def _read(cwd: Path, place: str) -> str:
    """ "" for what is no small regular file: a pipe would be emptied, and a device would never end."""
    try:
        descriptor = os.open(cwd / place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):  # a value may be JSON, too long for a name, or hold a NUL
        return ""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            return ""
        return os.read(descriptor, _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _of_settings(text: str) -> Iterator[str]:
    for start, stop in (*named_spans(text), *shaped_spans(text)):
        yield text[start:stop]
    name = ""
    for line in text.splitlines():
        if pair := _PAIR.fullmatch(line):
            name = pair["name"]
        found = pair or _ITEM.fullmatch(line)  # an item belongs to the name above it
        value = found["value"].split(" #")[0].strip().strip("\"',") if found else ""
        if given_is_secret(name, value):
            yield value
        elif may_be_drawn(name):
            yield from drawn_pieces(value)
