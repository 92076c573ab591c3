"""Reading what a server sent: text, tokens, log-probabilities and error messages out of untrusted bytes.

It never raises for what it reads and never lets a control character through.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shakedown.probe.client import Answer

QUOTED_CHARACTERS = 200
SHORT_BURST = 8  # tokens
STREAMS = (b"data:", b"event:", b"id:", b"retry:", b":")  # how a line of server-sent events begins
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # which may stand before the first of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """Generated text. Times are seconds since the request was sent, None where nothing was generated."""

    text: str
    reasoning: str
    tokens: int  # generated, as the server counts them or else as they came
    first_token_s: float | None
    last_token_s: float | None
    error: str  # sent in place of, or in the midst of, an answer
    understood: bool  # it has the shape of a completion at all
    pieces: int  # in which it came

    @property
    def tokens_per_s(self) -> float | None:
        """Pace of decoding, without the wait for the first token; None where too little came to tell.

        Where all came at once that wait is part of it: an answer that was kept back is as slow as it was.
        A few tokens in one burst may as well have waited for a long prefill.
        """
        if self.first_token_s is None or self.last_token_s is None or self.tokens < 2:
            return None
        if self.last_token_s - self.first_token_s > 0.05:
            return (self.tokens - 1) / (self.last_token_s - self.first_token_s)
        if self.pieces > 1 and self.tokens < SHORT_BURST:
            return None
        return self.tokens / self.last_token_s if self.last_token_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Tokens with the log-probability each was given, prompt first. None: the server gave none."""

    tokens: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    prompt_tokens: int
    text: str

    @property
    def ids(self) -> tuple[int, ...] | None:
        """Token ids, where the server names tokens by id ("token_id:17")."""
        parts = [token.removeprefix("token_id:") for token in self.tokens]
        if all(part.isascii() and part.isdecimal() and len(part) < 9 for part in parts) and all(
            token.startswith("token_id:") for token in self.tokens
        ):
            return tuple(map(int, parts))
        return None


def quote(text: str, *, limit: int = QUOTED_CHARACTERS) -> str:
    """Foreign text as one harmless line: no escape codes, no control characters, capped."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 8 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def parse(data: bytes) -> Any:
    """JSON, or None where it is none (NaN and Infinity are let through: they are what we look for)."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def dig(value: Any, *path: str | int) -> Any:
    """The value under keys and positions, None where anything on the way has another shape."""
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and len(value) > step:
            value = value[step]
        else:
            return None
    return value


def error_of(value: Any) -> str:
    """The message of an error object in any of the dialects engines speak; "" where there is none.

    Beside an answer a `message` or `detail` is a gateway's own remark.
    """
    paths: list[tuple[str | int, ...]] = [("error", "message"), ("error",)]
    if not _holds_answer(value):
        paths += [("detail", 0, "msg"), ("detail",), ("message",)]
    found = [dig(value, *path) for path in paths]
    return next((quote(text) for text in found if isinstance(text, str) and text), "")


def _holds_answer(value: Any) -> bool:
    choices = dig(value, "choices")
    answers = isinstance(choices, list) and (bool(choices) or dig(value, "usage") is not None)
    return answers and dig(value, "object") != "error"


def refusal(answer: Answer) -> str:
    """Why there is no answer, in one line."""
    if answer.failure is not None:
        return f"{answer.failure.value} {quote(answer.detail)}".rstrip()
    return f"{answer.status}: {said_in(answer)}"


def said_in(answer: Answer) -> str:
    """The error message of an answer, or how it begins where it holds none."""
    return error_of(parse(answer.body)) or quote(answer.body[:2000].decode(errors="replace"))


def read_text(answer: Answer) -> Spoken:
    """Chat or completion, streamed or whole, finished or cut."""
    texts, reasonings, errors = [], [], []
    times: list[float] = []
    counted, understood = 0, False
    for at_s, event in events(answer):
        text = (
            _string(event, "delta", "content") + _string(event, "message", "content") + _string(event, "text")
        )
        reasoning = "".join(
            _string(event, part, name)
            for part in ("delta", "message")
            for name in ("reasoning_content", "reasoning")
        )
        usage = dig(event, "usage", "completion_tokens")
        if isinstance(usage, int) and 0 < usage < 1 << 31:
            counted = max(counted, usage)
        if text or reasoning:
            times.append(at_s)
        elif counted and not times:
            times.append(at_s)  # tokens without text: a special token, or half a character
        texts.append(text)
        reasonings.append(reasoning)
        errors.append(error_of(event))
        understood = understood or isinstance(dig(event, "choices"), list)
    return Spoken(
        text="".join(texts),
        reasoning="".join(reasonings),
        tokens=max(counted, len(times)),
        first_token_s=times[0] if times else None,
        last_token_s=times[-1] if times else None,
        error=next(filter(None, errors), ""),
        understood=understood,
        pieces=len(times),
    )


def read_scored(answer: Answer) -> Scored | str:
    """The scored tokens of an echoing completion, or why there are none."""
    event = parse(answer.body)
    tokens, logprobs = (dig(event, "choices", 0, "logprobs", name) for name in ("tokens", "token_logprobs"))
    prompt_tokens = dig(event, "usage", "prompt_tokens")
    if not isinstance(tokens, list) or not isinstance(logprobs, list) or not tokens:
        return "the answer holds no log-probabilities"
    if len(tokens) != len(logprobs) or not isinstance(prompt_tokens, int) or isinstance(prompt_tokens, bool):
        return "the answer's log-probabilities do not match its tokens"
    if not 1 < prompt_tokens < len(tokens):
        return "the log-probabilities leave out the prompt: the server does not echo"
    text = dig(event, "choices", 0, "text")
    return Scored(
        tokens=tuple(token if isinstance(token, str) else "" for token in tokens),
        logprobs=tuple(_number(value) for value in logprobs),
        prompt_tokens=prompt_tokens,
        text=text if isinstance(text, str) else "",
    )


def events(answer: Answer) -> Iterator[tuple[float, Any]]:
    """Each JSON object of the answer with the time its last byte came."""
    whole = answer.body
    if not whole.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(STREAMS):
        if answer.pieces and (event := parse(whole)) is not None:
            yield answer.pieces[-1][0], event
        return
    pending: list[bytes] = []  # joined at line ends only: a dripped megabyte must not cost a square
    for at_s, data in answer.pieces:
        pending.append(data)
        if b"\n" not in data:
            continue
        *lines, rest = b"".join(pending).split(b"\n")
        pending = [rest]
        for line in (line.removeprefix(BYTE_ORDER_MARK) for line in lines):
            if line.startswith(b"data:") and (event := parse(line[5:])) is not None:
                yield at_s, event


def _string(event: Any, *path: str) -> str:
    value = dig(event, "choices", 0, *path)
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
