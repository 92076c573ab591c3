"""Take secrets out of text before any of it is written: by name, by value and by shape.

It never keeps, counts or explains what it took out. Log lines are untrusted, so no pattern backtracks.
"""

from __future__ import annotations

import base64
import enum
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, quote_plus

REDACTED = "[redacted]"

_SHORTEST_VALUE = 6  # below it a value ("1", "test") occurs in honest text
_SHORTEST_LOOSE = 12  # up to it a value is taken only as a whole word

_STEM = re.compile("SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|AUTHORIZATION|COOKIE")
_WORD = re.compile(r"KEYS?|\w*TOKEN|PAT|AUTH|SIGNATURE|SIG|DSN|PWD")
_BEFORE_KEY = re.compile("API|ACCESS|PRIVATE|AUTH|SIGNING|ENCRYPTION|ACCOUNT|MASTER|LICENSE|SSH")
_BEFORE_TOKEN = re.compile(
    "HF|HUB|HUGGINGFACE|ACCESS|AUTH|API|BEARER|REFRESH|SESSION|G(IT)?H(UB)?|GITLAB|BOT"
)
_TOKEN_OF_TEXT = re.compile(  # `eos_token`, `--per-token-quant`: what a tokenizer makes
    "EOS|BOS|PAD|UNK|SEP|CLS|MASK|IMAGE|VIDEO|AUDIO|STOP|SPECIAL|PER|NEXT|LAST|FIRST|NEW|MAX|MIN|NUM|DRAFT"
    "|TARGET|START|END|THINK|TOOL|MULTI|INPUT|OUTPUT|BONUS|SPECULATIVE"
)
_ABOUT = re.compile(  # `HF_TOKEN_PATH`: the value is not the secret itself
    "PATH|FILE|DIR|FOLDER|SOCK|TYPE|NAME|URL|LEN|LENGTH|SIZE|COUNT|LIMIT|IDS?|INDEX|TTL|TIMEOUT|MODE"
)
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_HARMLESS = re.compile(
    r"(?i)(?:none|null|true|false|yes|no|on|off|auto|empty|dummy|\d{1,7}(?:\.\d{1,7})?"
    r"|\$\{\w{1,64}[:?]{0,2}\})?"
)
_CREDENTIAL_LIKE = re.compile(r"(?=[^\d\n]{0,64}\d)(?=[^A-Za-z\n]{0,64}[A-Za-z])[\w+/=~-]{12,}")

_ASSIGNED = re.compile(
    r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z][\w.-]{1,63}+)(?:\\{0,3}[\"'])?[ \t]{0,2}+[:=][ \t]{0,2}+"
)
_HINTS = ("key", "token", "secret", "pass", "credential", "auth", "cookie", "sig", "dsn", "pwd", "pat")
_HINTED = re.compile(  # looking for hints first is 6 times faster than judging every name; (?i) is slow
    rf"(?:{'|'.join(spelling for hint in _HINTS for spelling in (hint, hint.title(), hint.upper()))})"
    r"[\w.-]{0,64}+(?:\\{0,3}[\"'])?[ \t]{0,2}+[:=]"
)
_FLAG = re.compile(r"(?<![\w-])(?P<name>--[A-Za-z][\w-]{1,63}+)(?:[\"'],?)?[ \t]{1,2}+(?!-)")
_QUOTED = re.compile(r"(?P<q>\\{0,3}[\"'])(?P<value>(?:(?!(?P=q))[^\n]){0,4096}+)")
_BARE = re.compile(r"(?P<value>(?:(?:Bearer|Basic|Token)[ \t]{1,2})?[^\s,;&|)\]}\"'<>\\]{1,256}+)")
_BARE_REST = re.compile(r"[^\s,;&|)\]}\"'<>\\]*+")
_REST_OF_LINE = re.compile(r"(?P<value>[^\n]*+)")

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


class _Name(enum.IntEnum):
    """How surely a name means that its value is secret."""

    PLAIN = 0
    MAYBE = 1  # a token, a key: of what, the value must tell
    SECRET = 2


@functools.lru_cache(maxsize=4096)
def _judge_name(name: str) -> _Name:
    words = [word.upper() for word in _NAME_WORD.findall(name) if not word.isdigit()]
    if not words or _ABOUT.fullmatch(words[-1]) or name in ("PWD", "OLDPWD"):
        return _Name.PLAIN
    if any(_STEM.search(word) for word in words):
        return _Name.SECRET
    pairs = list(zip(["", *words], words, strict=False))
    for before, word in pairs:
        if word in ("KEY", "KEYS") and _BEFORE_KEY.fullmatch(before):
            return _Name.SECRET
        if word in ("TOKEN", "TOKENS") and _BEFORE_TOKEN.fullmatch(before):
            return _Name.SECRET
    for before, word in pairs if name.isupper() else pairs[-1:]:
        if _WORD.fullmatch(word) and not _TOKEN_OF_TEXT.fullmatch(before):
            return _Name.MAYBE
    return _Name.PLAIN


def _given_is_secret(name: str, value: str) -> bool:
    """For a variable or a flag, where a name is seldom an accident."""
    return _judge_name(name) is not _Name.PLAIN and not _HARMLESS.fullmatch(value)


def _written_is_secret(name: str, value: str) -> bool:
    """For `name: value` in prose, where "Missing key: model.layers.0" must stay readable."""
    judged = _judge_name(name)
    if judged is _Name.PLAIN or _HARMLESS.fullmatch(value) or value.startswith(REDACTED[:-1]):
        return False
    if value.strip("[]") == name.upper().replace("-", "_"):  # `--api-key API_KEY` of a help text
        return False
    if judged is _Name.SECRET or (name.isupper() and "_" in name):
        return True
    return not name.lower().endswith(("key", "keys")) and bool(_CREDENTIAL_LIKE.fullmatch(value))


def _values_at(text: str, start: int, name: str) -> Iterator[re.Match[str]]:
    if text.startswith(REDACTED, start):
        return
    if "ookie" in name.lower() and (found := _REST_OF_LINE.match(text, start)):
        yield found
    elif text[start : start + 1] in ("[", "("):  # `'api_key': ['a', 'b']`
        close = text.find("]" if text[start] == "[" else ")", start, start + 4096)
        position = start + 1
        while position < close and (found := (_QUOTED.match(text, position) or _BARE.match(text, position))):
            yield found
            position = found.end()
            while position < close and text[position] in "\"'\\, ":
                position += 1
    elif found := (_QUOTED.match(text, start) or _BARE.match(text, start)):
        yield found


def _assigned(text: str) -> Iterator[re.Match[str]]:
    for hint in _HINTED.finditer(text):
        start, floor = hint.start(), max(0, hint.start() - 64)
        while start > floor and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
            start -= 1
        if pair := _ASSIGNED.match(text, start):
            yield pair


def _named_spans(text: str) -> Iterator[tuple[int, int]]:
    for pairs in (_assigned(text), _FLAG.finditer(text) if "--" in text else ()):
        covered = 0  # what was found secret is not searched again: it may be made to take for ever
        for pair in pairs:
            name = pair["name"].lstrip("-")
            if pair.start() < covered or _judge_name(name) is _Name.PLAIN:
                continue
            for value in _values_at(text, pair.end(), name):
                if _written_is_secret(name, value["value"]):
                    start, covered = value.span("value")
                    if "q" not in value.re.groupindex and (rest := _BARE_REST.match(text, covered)):
                        covered = rest.end()
                    yield start, covered


def _shaped_spans(text: str) -> Iterator[tuple[int, int]]:
    for needle, pattern in _SHAPES:
        if needle in text:
            yield from (found.span() for found in pattern.finditer(text))


def _cut(text: str, spans: Iterable[tuple[int, int]]) -> str:
    pieces, end = [], 0
    for start, stop in sorted(spans):
        if start >= end:
            pieces += [text[end:start], REDACTED]
        end = max(end, stop)
    return "".join([*pieces, text[end:]])


def _split_lists(argv: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """(position, flag, value) of `--flag value`, `--flag=value` and `NAME=value`. `--api-key` takes many."""
    flag, many = "", False
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if equals and re.fullmatch(r"-{0,2}[\w.-]{2,64}", name):
            yield position, name.lstrip("-"), value
            flag = ""
        elif argument.startswith("-"):
            flag = argument.lstrip("-")
            many = flag.replace("_", "-") == "api-key"
        elif flag:
            yield position, flag, argument
            flag = flag if many else ""


def _encodings(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogateescape")
    plain = raw.decode("utf-8", "replace")
    yield plain
    yield json.dumps(plain)[1:-1]
    yield json.dumps(plain, ensure_ascii=False)[1:-1]
    yield repr(plain)[1:-1]
    for escaped in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield escaped
        yield re.sub("%..", lambda found: found[0].lower(), escaped)
    yield raw.hex()
    yield raw.hex().upper()
    for shift in range(3):  # what came before decides how the bits fall
        coded = base64.b64encode(b"\0" * shift + raw).decode()
        core = coded[(0, 2, 3)[shift] : (shift + len(raw)) * 8 // 6]
        yield core
        yield core.replace("+", "-").replace("/", "_")


def strip_controls(text: str) -> str:
    """Drop terminal escapes, control characters but tab and newline, and marks that reorder text."""
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPE.sub("", text)
    return _CONTROL.sub("", text)


def secret_names(env: Mapping[str, str]) -> tuple[str, ...]:
    """The variables whose name says that the value is secret, in order."""
    return tuple(name for name, value in env.items() if _given_is_secret(name, value))


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
    def of(cls, env: Mapping[str, str], argv: Sequence[str], more: Iterable[str] = ()) -> Redactor:
        """Learn every secret value of a launch; `more` are values known to be secret from elsewhere."""
        found = {value for name, value in env.items() if _given_is_secret(name, value)}
        found |= {value for _, name, value in _split_lists(argv) if _given_is_secret(name, value)}
        found.update(more)
        for text in (*env.values(), *argv):
            spans = [*_named_spans(text), *_shaped_spans(text)]
            found |= {text[start:stop] for start, stop in spans}
            found |= {text[start:stop].partition(":")[2] for start, stop in spans}  # user:password of a URL
        found |= {value.partition(" ")[2] for value in found if value.startswith(("Bearer ", "Basic "))}
        for value in [value for value in found if "\n" in value]:
            found |= {line.strip() for line in value.splitlines() if len(line.strip()) > _SHORTEST_LOOSE}
        spellings = {
            spelling
            for value in found
            if len(value) >= _SHORTEST_VALUE and not _HARMLESS.fullmatch(value)
            for spelling in _encodings(value)
            if len(spelling) >= _SHORTEST_VALUE
        }
        ordered = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
        words = [spelling for spelling in ordered if len(spelling) < _SHORTEST_LOOSE]
        return cls(
            _anywhere=tuple(spelling for spelling in ordered if len(spelling) >= _SHORTEST_LOOSE),
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
        return _cut(text, _shaped_spans(text))

    def redact_text(self, text: str) -> str:
        text = self.redact_values(text)
        return _cut(text, _named_spans(text))

    def redact_argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        redacted = list(argv)
        for position, name, value in _split_lists(argv):
            if _given_is_secret(name, value):
                redacted[position] = argv[position].removesuffix(value) + REDACTED
        return tuple(self.redact_text(argument) for argument in redacted)

    def redact_env(self, env: Mapping[str, str]) -> dict[str, str]:
        return {
            name: REDACTED if _given_is_secret(name, value) else self.redact_text(value)
            for name, value in env.items()
        }
