"""What the target generates, asked of an OpenAI-style server: token by token where it tells, else as text.

It never decides what to ask, and never takes an answer that it cannot read for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shakedown.drafter.samples import Finish, Message
from shakedown.drafter.template import UserOpening
from shakedown.drafter.transport import Client, Refused
from shakedown.errors import UsageError

NEUTRAL = {"top_k": -1, "repetition_penalty": 1.0}  # else the model's generation_config would sample


class Way(StrEnum):
    """How a server can be asked, best first."""

    COMPLETIONS = "completions"  # tokens in, tokens out (vLLM)
    GENERATE = "generate"  # the same in SGLang's own interface
    CHAT = "chat"  # messages in, text out: any OpenAI-style server


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Temperature 0 is greedy. `max_tokens` of one answer, its reasoning included."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 1024

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. `token_ids` is None where the server tells only text; `end_id` ended it, where told."""

    text: str
    reasoning: str
    token_ids: Sequence[int] | None
    finish: Finish
    end_id: int | None
    prompt_tokens: int | None
    generated: int


def find_way(client: Client, prompt: Sequence[int]) -> Way:
    """The best way in which this server answers a short request."""
    short = Sampling(max_tokens=1)
    for way in (Way.COMPLETIONS, Way.GENERATE):
        try:
            if ask_tokens(client, way, prompt, short).token_ids is not None:
                return way
        except Refused:
            continue
    return Way.CHAT


def ask_tokens(
    client: Client, way: Way, prompt: Sequence[int], sampling: Sampling, stop_id: int | None = None
) -> Reply:
    """What follows a prompt of tokens, its end token included where the server tells tokens."""
    knobs: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p, **NEUTRAL}
    if stop_id is not None:
        knobs["stop_token_ids"] = [stop_id]
    if way is Way.GENERATE:
        body = {
            "input_ids": list(prompt),
            "sampling_params": {"max_new_tokens": sampling.max_tokens, **knobs},
        }
        return read_generate(client.post("/generate", body))
    request: dict[str, Any] = {
        "model": client.address.model,
        "prompt": [*prompt],
        "max_tokens": sampling.max_tokens,
        "return_token_ids": True,
        **knobs,
    }
    return read_completion(client.post("/v1/completions", request))


def ask_chat(
    client: Client, messages: Sequence[Message], sampling: Sampling, options: Mapping[str, Any]
) -> Reply:
    """The answer of a server that knows messages only; `options` are those of the chat template."""
    body: dict[str, Any] = {
        "model": client.address.model,
        "messages": list(messages),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if options:
        body["chat_template_kwargs"] = dict(options)
    return read_completion(client.post("/v1/chat/completions", body))


def ask_user_turn(client: Client, way: Way, opening: UserOpening, sampling: Sampling) -> Reply:
    """What the target itself writes where a user would."""
    if way is not Way.CHAT:
        return ask_tokens(client, way, opening.token_ids, sampling, opening.stop_id)
    body = {
        "model": client.address.model,
        "prompt": opening.text,
        "stop": [opening.stop_text],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    try:
        return read_completion(client.post("/v1/completions", body))
    except Refused as problem:
        raise UsageError(
            f"this server cannot continue a bare template, so the target writes no prompts: {problem}",
            "give prompts: --prompts FILE, or --prompts built-in",
        ) from None


def read_completion(found: Mapping[str, Any]) -> Reply:
    """An answer of /v1/completions or /v1/chat/completions. Raises Refused for what is none."""
    try:
        choice, usage = found["choices"][0], found.get("usage") or {}
        message = choice.get("message") or {}
        end = choice.get("stop_reason", choice.get("matched_stop"))
        tokens = choice.get("token_ids")
        return Reply(
            text=choice.get("text") or message.get("content") or "",
            reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
            token_ids=tokens,
            finish=Finish(choice["finish_reason"]),
            end_id=end if type(end) is int else None,
            prompt_tokens=usage.get("prompt_tokens"),
            generated=len(tokens) if tokens is not None else int(usage.get("completion_tokens") or 0),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as problem:
        raise Refused(f"no answer as OpenAI's: {problem!r} in {str(found)[:200]!r}") from None


def read_generate(found: Mapping[str, Any]) -> Reply:
    """An answer of SGLang's /generate. Raises Refused for what is none."""
    try:
        about = found["meta_info"]
        end = about["finish_reason"].get("matched")
        return Reply(
            text=found["text"],
            reasoning="",
            token_ids=found["output_ids"],
            finish=Finish(about["finish_reason"]["type"]),
            end_id=end if type(end) is int else None,
            prompt_tokens=about.get("prompt_tokens"),
            generated=len(found["output_ids"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise Refused(f"no answer as SGLang's: {problem!r} in {str(found)[:200]!r}") from None
