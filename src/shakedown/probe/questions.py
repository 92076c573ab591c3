"""The three requests a canary makes: a chat, a bare completion, and a completion that scores its prompt.

It never reads the answers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from shakedown.core import LogprobStyle
from shakedown.probe.client import Answer, Target, send

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
UNKNOWN_FIELD = frozenset({400, 422})
NO_COMPLETIONS = frozenset({404, 405, 501})
SEED = 7


class Budget:
    """A deadline that several requests share."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def left_s(self, most_s: float = float("inf")) -> float:
        return max(0.0, min(most_s, self._ends - time.monotonic()))


def ask_chat(target: Target, text: str, *, max_tokens: int, budget: Budget) -> Answer:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    return _post(target, CHAT, body | _GREEDY, _STREAM_OPTIONS, budget)


def ask_completion(target: Target, prompt: str, *, max_tokens: int, budget: Budget) -> Answer:
    body = {"prompt": prompt, "max_tokens": max_tokens}
    return _post(target, COMPLETIONS, body | _GREEDY, _STREAM_OPTIONS, budget)


def ask_long(target: Target, text: str, *, max_tokens: int, budget: Budget) -> Answer:
    """`max_tokens` in any case, streamed: a completion, or a chat where the server has nothing else."""
    extra = {**_STREAM_OPTIONS, "ignore_eos": True}
    body = {"prompt": text, "max_tokens": max_tokens}
    answer = _post(target, COMPLETIONS, body | _GREEDY, extra, budget)
    if answer.failure is not None or answer.status not in NO_COMPLETIONS:
        return answer
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    return _post(target, CHAT, chat | _GREEDY, extra, budget)


def ask_scored(target: Target, prompt: str | Sequence[int], *, max_tokens: int, budget: Budget) -> Answer:
    """Log-probabilities of the prompt and of `max_tokens` sampled tokens, not out of the prefix cache.

    Sampled at temperature 1, because a small model's greedy text soon repeats itself, and repeated
    text is sure in every mode. The salt keeps a server from answering with numbers of an earlier request.
    """
    body = {
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": max_tokens,
        "echo": True,
        "logprobs": 1,
        "temperature": 1.0,
        "top_p": 1.0,
    }
    extra: dict[str, Any] = {
        "cache_salt": uuid.uuid4().hex,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "seed": SEED,
    }
    if target.logprobs is LogprobStyle.PROMPT_LOGPROBS:
        extra["return_tokens_as_token_ids"] = True
    return _post(target, COMPLETIONS, body, extra, budget)


_GREEDY: dict[str, Any] = {"temperature": 0, "stream": True}
_STREAM_OPTIONS: dict[str, Any] = {"stream_options": {"include_usage": True}}


def _post(
    target: Target, path: str, body: Mapping[str, Any], extra: Mapping[str, Any], budget: Budget
) -> Answer:
    """POST; where the server refuses a field it does not know, once more with the needed ones alone."""
    named = dict(body) if target.model is None else {"model": target.model, **body}
    answer = send(target, path, {**named, **extra}, deadline_s=budget.left_s())
    if answer.failure is None and answer.status in UNKNOWN_FIELD and budget.left_s() > 0:
        return send(target, path, named, deadline_s=budget.left_s())
    return answer
