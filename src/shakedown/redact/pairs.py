"""Find the values that stand behind a secret name: in prose, logs, JSON, command lines.

It takes linear time on hostile text: no pattern backtracks and nothing found is searched again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from shakedown.redact.names import REDACTED, Name, judge_name, written_is_secret

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


def named_spans(text: str) -> Iterator[tuple[int, int]]:
    for pairs in (_assigned(text), _FLAG.finditer(text) if "--" in text else ()):
        covered = 0  # what was found secret is not searched again: it may be made to take for ever
        for pair in pairs:
            name = pair["name"].lstrip("-")
            if pair.start() < covered or judge_name(name) is Name.PLAIN:
                continue
            for value in _values_at(text, pair.end(), name):
                if written_is_secret(name, value["value"]):
                    start, covered = value.span("value")
                    if "q" not in value.re.groupindex and (rest := _BARE_REST.match(text, covered)):
                        covered = rest.end()
                    yield start, covered


def named_arguments(argv: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """(position, flag, value) of `--flag value`, `--flag=value` and `NAME=value`. `--api-key` takes many."""
    flag, many = "", False
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if equals and re.fullmatch(r"-{0,2}[\w.-]{1,64}", name):
            yield position, name.lstrip("-"), value
            flag = ""
        elif argument.startswith("-"):
            flag = argument.lstrip("-")
            many = flag.replace("_", "-") == "api-key"
        elif flag:
            yield position, flag, argument
            flag = flag if many else ""
