"""One streamed answer with its tokens, when each came, and the rounds of speculation it took.

It never judges an answer, and never asks two things at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shakedown.probe.answers import dig, error_of, events, parse, refusal
from shakedown.probe.client import Answer, Target, send

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
NO_CHAT = frozenset({400, 404, 405, 501})
NEUTRAL: Mapping[str, Any] = {"top_k": -1, "repetition_penalty": 1.0}  # over a model's generation_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """`prompt` and `tokens` are ids, () where the server tells none. `arrivals`: (seconds since the request
    was sent, tokens that came then). `rounds`: drafts accepted in each round, in order; `histogram[a]`:
    rounds that accepted a drafts. `error`: why there is no whole answer."""

    prompt: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    arrivals: tuple[tuple[float, int], ...] = ()
    rounds: tuple[int, ...] | None = None
    histogram: tuple[int, ...] | None = None
    error: str = ""
    lost: bool = False  # the server is not there any more

    @property
    def count(self) -> int:
        return sum(number for _, number in self.arrivals)

    @property
    def first_s(self) -> float | None:
        return self.arrivals[0][0] if self.arrivals else None

    @property
    def decode_s(self) -> float | None:
        """From the first token to the last."""
        return self.arrivals[-1][0] - self.arrivals[0][0] if len(self.arrivals) > 1 else None

    @property
    def decoded(self) -> int:
        """Tokens that came within `decode_s`."""
        return sum(number for _, number in self.arrivals[1:])


def generate(
    target: Target,
    question: str,
    *,
    tokens: int,
    deadline_s: float,
    prompt: Sequence[int] | None = None,
    salt: str = "",
) -> Generated:
    """`tokens` greedy tokens, past the model's own end. `prompt`: the question in token ids, where they are
    known; SGLang is asked with them alone. `salt` keeps two servers' prefix caches equally cold."""
    if target.engine == "sglang":
        body = {
            "input_ids": list(prompt or ()),
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": tokens,
                "ignore_eos": True,
                **NEUTRAL,
            },
            "stream": True,
        }
        return read_generate(send(target, GENERATE, body, deadline_s=deadline_s))
    body = {
        "model": target.model,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **NEUTRAL,
        **({"cache_salt": salt} if salt else {}),
    }
    if prompt is None:
        messages = [{"role": "user", "content": question}]
        answer = send(target, CHAT, {**body, "messages": messages}, deadline_s=deadline_s)
        if answer.failure is not None or answer.status not in NO_CHAT:
            return read_openai(answer)
    asked: Any = question if prompt is None else list(prompt)
    return read_openai(send(target, COMPLETIONS, {**body, "prompt": asked}, deadline_s=deadline_s))


def read_openai(answer: Answer) -> Generated:
    """A streamed chat or completion of vLLM; of other servers what they tell of it."""
    prompt: list[int] = []
    tokens: list[int] = []
    arrivals: list[tuple[float, int]] = []
    rounds: Any = None
    histogram: Any = None
    error, counted = "", 0
    for at_s, event in events(answer):
        error = error or error_of(event)
        prompt = (
            prompt or ids(dig(event, "prompt_token_ids")) or ids(dig(event, "choices", 0, "prompt_token_ids"))
        )
        came = ids(dig(event, "choices", 0, "token_ids"))
        said = dig(event, "choices", 0, "delta", "content") or dig(event, "choices", 0, "text")
        if came or said:
            tokens += came
            arrivals.append((at_s, len(came) or 1))
        usage = dig(event, "usage", "completion_tokens")
        counted = usage if type(usage) is int else counted
        speculation = dig(event, "metrics", "speculative_decoding")
        rounds = dig(speculation, "per_step_accepted") or rounds
        histogram = dig(speculation, "acceptance_histogram") or histogram
    return Generated(
        prompt=tuple(prompt),
        tokens=tuple(tokens),
        arrivals=settled(arrivals, counted),
        rounds=tuple(ids(rounds)) if rounds else None,
        histogram=tuple(ids(histogram)) if histogram else None,
        error=failure_of(answer, error, arrivals),
        lost=is_lost(answer),
    )


def read_generate(answer: Answer) -> Generated:
    """A streamed /generate of SGLang: each event holds all tokens so far, or those since the last one."""
    tokens: list[int] = []
    arrivals: list[tuple[float, int]] = []
    histogram: Any = None
    error, counted = "", 0
    for at_s, event in events(answer):
        error = error or error_of(event)
        came = ids(dig(event, "output_ids"))
        completed = dig(event, "meta_info", "completion_tokens")
        counted = completed if type(completed) is int else counted + len(came)
        fresh = counted - sum(number for _, number in arrivals)
        tokens = came if len(came) == counted else tokens + came
        if fresh > 0:
            arrivals.append((at_s, fresh))
        about = dig(event, "meta_info")
        found = dig(about, "spec_correct_drafts_histogram") or dig(about, "spec_accept_histogram")
        histogram = found or histogram
    return Generated(
        tokens=tuple(tokens),
        arrivals=tuple(arrivals),
        histogram=tuple(ids(histogram)) if histogram else None,
        error=failure_of(answer, error, arrivals),
        lost=is_lost(answer),
    )


def settled(arrivals: Sequence[tuple[float, int]], counted: int) -> tuple[tuple[float, int], ...]:
    """Where pieces of text were taken for tokens, the server's own count is spread over them."""
    came = sum(number for _, number in arrivals)
    if not arrivals or counted in (0, came):
        return tuple(arrivals)
    share = counted / came
    spread = [(at_s, round(share * (n + 1)) - round(share * n)) for n, (at_s, _) in enumerate(arrivals)]
    return tuple(spread)


def top_logprobs(
    target: Target, prompt: Sequence[int], *, number: int, deadline_s: float
) -> dict[int, float] | str:
    """The likeliest next tokens after `prompt`, by id. Other servers: why there are none."""
    if target.engine == "sglang":
        return _top_logprobs_of_sglang(target, prompt, number, deadline_s)
    body = {
        "model": target.model,
        "prompt": list(prompt),
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": number,
        "return_tokens_as_token_ids": True,
    }
    answer = send(target, COMPLETIONS, body, deadline_s=deadline_s)
    found = dig(parse(answer.body), "choices", 0, "logprobs", "top_logprobs", 0) if answer.ok else None
    if not isinstance(found, dict):
        return "the server gives no log-probabilities" if answer.ok else refusal(answer)
    named = {name.removeprefix("token_id:"): value for name, value in found.items()}
    return {
        int(name): float(value)
        for name, value in named.items()
        if name.isdecimal() and isinstance(value, int | float)
    }


def _top_logprobs_of_sglang(
    target: Target, prompt: Sequence[int], number: int, deadline_s: float
) -> dict[int, float] | str:
    """It tells (log-probability, id, text) for each position generated."""
    body = {
        "input_ids": list(prompt),
        "sampling_params": {"temperature": 0, "max_new_tokens": 1, **NEUTRAL},
        "return_logprob": True,
        "top_logprobs_num": number,
    }
    answer = send(target, GENERATE, body, deadline_s=deadline_s)
    found = dig(parse(answer.body), "meta_info", "output_top_logprobs", 0) if answer.ok else None
    if not isinstance(found, list):
        return "the server gives no log-probabilities" if answer.ok else refusal(answer)
    told = [each[:2] for each in found if isinstance(each, list) and len(each) >= 2]
    return {
        token: float(value) for value, token in told if type(token) is int and isinstance(value, int | float)
    }


def ids(found: Any) -> list[int]:
    return found if isinstance(found, list) and all(type(each) is int for each in found) else []


def failure_of(answer: Answer, error: str, arrivals: Sequence[tuple[float, int]]) -> str:
    if error or not answer.ok:
        return error or refusal(answer)
    return "" if arrivals else "it generated nothing"


def is_lost(answer: Answer) -> bool:
    return answer.status is None or answer.failure is not None
