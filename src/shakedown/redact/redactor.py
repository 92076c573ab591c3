"""The secrets of one launch, and every text with them taken out.

It never shows, counts or explains what it took out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, quote_plus

from shakedown.redact.chance import drawn_pieces
from shakedown.redact.files import written_secrets
from shakedown.redact.names import REDACTED, given_is_secret, is_harmless, is_number, may_be_drawn
from shakedown.redact.pairs import named_arguments, named_spans
from shakedown.redact.shapes import shaped_spans

_SHORTEST_VALUE = 6  # below it a value ("1", "test") occurs in honest text
_SHORTEST_LOOSE = 12  # up to it a value is taken only as a whole word
_SHORTEST_CODE = 8  # of base64 or hex: no word looks like it by chance
_SHORTEST_TORN = 8  # of the beginning of a secret, where a name was cut

Noun = TypeVar("Noun")


def _cut(text: str, spans: Iterable[tuple[int, int]]) -> str:
    pieces, end = [], 0
    for start, stop in sorted(spans):
        if start >= end:
            pieces += [text[end:start], REDACTED]
        end = max(end, stop)
    return "".join([*pieces, text[end:]])


def _spellings(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogateescape")
    plain = raw.decode("utf-8", "replace")
    yield plain
    yield json.dumps(plain)[1:-1]
    yield json.dumps(plain, ensure_ascii=False)[1:-1]
    yield repr(plain)[1:-1]
    for escaped in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield escaped
        yield re.sub("%..", lambda found: found[0].lower(), escaped)


def _encodings(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogateescape")
    yield raw.hex()
    yield raw.hex().upper()
    for shift in range(3):  # what came before decides how the bits fall
        coded = base64.b64encode(b"\0" * shift + raw).decode()
        core = coded[(0, 2, 3)[shift] : (shift + len(raw)) * 8 // 6]
        yield core
        yield core.replace("+", "-").replace("/", "_")


def _drawn(env: Mapping[str, str], argv: Sequence[str]) -> Iterator[str]:
    """Values that only chance could have chosen, under names that say nothing of them."""
    named = {position: (name, value) for position, name, value in named_arguments(argv)}
    for position, argument in enumerate(argv):
        name, value = named.get(position, ("", argument))
        if may_be_drawn(name):  # a flag may well name a commit, a variable seldom does
            is_variable = bool(name) and argument.startswith(f"{name}=")
            yield from drawn_pieces(value, mixed=not is_variable)
    for name, value in env.items():
        if may_be_drawn(name):
            yield from drawn_pieces(value)


def secret_names(env: Mapping[str, str]) -> tuple[str, ...]:
    """The variables whose name says that the value is secret, in order."""
    return tuple(name for name, value in env.items() if given_is_secret(name, value))


def keyed_hash(value: str, key: bytes) -> str:
    """12 hex digits that tell "the same secret as before" to whoever holds the key, and nothing else."""
    raw = value.encode("utf-8", "surrogateescape")
    return hashlib.blake2b(raw, key=key[:64], digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Redactor:
    """Knows the secrets of one launch. Without any it still redacts by name and shape."""

    _anywhere: tuple[str, ...] = field(default=(), repr=False)
    _words: tuple[re.Pattern[str], ...] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        env: Mapping[str, str],
        argv: Sequence[str],
        more: Iterable[str] = (),
        *,
        cwd: Path | None = None,
    ) -> Redactor:
        """Learn every secret value of a launch; `more` are values known to be secret from elsewhere.

        With `cwd` the files that the launch reads its settings and tokens from are searched, too.
        """
        found = {value for name, value in env.items() if given_is_secret(name, value)}
        found |= {value for _, name, value in named_arguments(argv) if given_is_secret(name, value)}
        found.update(more, _drawn(env, argv), written_secrets(env, argv, cwd) if cwd else ())
        for text in (*env.values(), *argv):
            spans = [*named_spans(text), *shaped_spans(text)]
            found |= {text[start:stop] for start, stop in spans}
            found |= {text[start:stop].partition(":")[2] for start, stop in spans}  # user:password of a URL
        found |= {value.partition(" ")[2] for value in found if value.startswith(("Bearer ", "Basic "))}
        for value in [value for value in found if "\n" in value]:
            found |= {line.strip() for line in value.splitlines() if len(line.strip()) > _SHORTEST_LOOSE}
        hunted = {
            value
            for value in found
            if len(value) >= _SHORTEST_VALUE and not is_harmless(value) and not is_number(value)
        }
        plain = {spelling for value in hunted for spelling in _spellings(value)}
        coded = {
            spelling for value in hunted for spelling in _encodings(value) if len(spelling) >= _SHORTEST_CODE
        }
        words = sorted(spelling for spelling in plain if len(spelling) < _SHORTEST_LOOSE)
        anywhere = coded | plain.difference(words)
        return cls(
            _anywhere=tuple(sorted(anywhere, key=lambda spelling: (-len(spelling), spelling))),
            _words=tuple(re.compile(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])") for word in words),
        )

    @property
    def longest(self) -> int:
        """Characters of the longest spelling known: what an overlap has to cover."""
        return max(map(len, self._anywhere), default=_SHORTEST_LOOSE)

    def redact_values(self, text: str) -> str:
        """By value and by shape only: for machine-read text, whose own words must stay."""
        for spelling in self._anywhere:
            if spelling in text:
                text = text.replace(spelling, REDACTED)
        for word in self._words:
            text = word.sub(REDACTED, text)
        return _cut(text, shaped_spans(text))

    def redact_text(self, text: str) -> str:
        text = self.redact_values(text)
        return _cut(text, named_spans(text))

    def redact_argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        redacted = list(argv)
        for position, name, value in named_arguments(argv):
            if given_is_secret(name, value):
                redacted[position] = argv[position].removesuffix(value) + REDACTED
        return tuple(self.redact_text(argument) for argument in redacted)

    def redact_env(self, env: Mapping[str, str]) -> dict[str, str]:
        return {
            name: REDACTED if given_is_secret(name, value) else self.redact_text(value)
            for name, value in env.items()
        }

    def redact_name(self, name: str) -> str:
        """A name may be cut, as the kernel cuts a process's: the beginning of a secret goes, too."""
        name = self.redact_text(name)
        for start in range(len(name) - _SHORTEST_TORN + 1):
            tail = name[start:]
            if any(spelling.startswith(tail) for spelling in self._anywhere):
                return name[:start] + REDACTED
        return name

    def redact_noun(self, noun: Noun) -> Noun:
        """Every text in a frozen dataclass, however deep. Paths, enums and numbers stay."""
        return cast(Noun, self._redact_any(noun))

    def _redact_any(self, thing: Any) -> Any:
        if type(thing) is str:
            return self.redact_text(thing)
        if type(thing) is tuple:
            return tuple(self._redact_any(item) for item in thing)
        if not is_dataclass(thing) or isinstance(thing, type):
            return thing
        values = {each.name: getattr(thing, each.name) for each in fields(thing)}
        return replace(thing, **{name: self._redact_any(value) for name, value in values.items()})
