"""The target's chat template and tokenizer: conversations to tokens, and which of them are generated.

It never asks a server and never guesses: what it cannot place in its tokens is a `Mismatch`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shakedown.drafter.samples import Message, Span
from shakedown.errors import EnvironmentProblem, UsageError

SENTINEL = "THE-USER-WRITES-HERE"
ENDS_OF_REASONING = ("</think>", "</seed:think>", "◁/think▷")
NO_END = "no token that ends generation follows the answer"


class Tokenizer(Protocol):
    """What is used of transformers' tokenizers."""

    chat_template: str | dict[str, str] | None
    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...
    def apply_chat_template(
        self, messages: Sequence[Message], *, tokenize: bool, add_generation_prompt: bool, **options: Any
    ) -> str: ...
    def __len__(self) -> int: ...


class Mismatch(Exception):
    """A conversation that the template does not give back; the message says where, `shown` shows it."""

    def __init__(self, why: str, shown: str) -> None:
        super().__init__(why)
        self.why = why
        self.shown = shown


@dataclass(frozen=True, slots=True, kw_only=True)
class UserOpening:
    """Where the target would write a user turn: the tokens before it, and what ends it."""

    token_ids: Sequence[int]
    text: str
    stop_id: int
    stop_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A document's tokens and the runs of them that the target generated."""

    ids: list[int]
    mask: list[Span]


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """`options` go into the template (`enable_thinking`); `end_ids` are the tokens that end generation.

    The tokenizers of transformers may not be used by two threads at once, hence the lock.
    """

    tokenizer: Tokenizer
    end_ids: frozenset[int]
    options: Mapping[str, Any] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    @property
    def sha256(self) -> str:
        """Of the template's text: with its options, what makes two conversations comparable."""
        found = self.tokenizer.chat_template
        text = found if isinstance(found, str) else json.dumps(found, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def render(self, messages: Sequence[Message], *, asking: bool) -> str:
        """As the engines do it; `asking` opens the assistant's turn. Raises Mismatch where it will not."""
        from jinja2 import TemplateError

        try:
            with self._lock:
                return self.tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=asking, **self.options
                )
        except (TemplateError, TypeError) as problem:
            raise Mismatch(f"the template fails: {problem}", repr(messages)[:400]) from None

    def encode(self, text: str) -> list[int]:
        with self._lock:
            return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int], *, bare: bool = False) -> str:
        """`bare` leaves the special tokens out, as servers do."""
        with self._lock:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=bare))

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """What an engine would see of a conversation that asks for an answer."""
        return self.encode(self.render(messages, asking=True))

    def opening(self, history: Sequence[Message]) -> UserOpening:
        """Where the next user turn begins. Raises Mismatch for a template that rewrites user turns."""
        text = self.render([*history, {"role": "user", "content": SENTINEL}], asking=True)
        before, found, after = text.partition(SENTINEL)
        if not found or SENTINEL in after:
            raise Mismatch("the template does not repeat a user's text once, as it is", text)
        following = self.encode(after)
        if not following:
            raise Mismatch("nothing follows a user's text, so nothing would end it", text)
        stop = self.decode(following[:1])
        return UserOpening(
            token_ids=self.encode(before), text=before, stop_id=following[0], stop_text=stop.strip() or stop
        )

    def answered(self, history: Sequence[Message], answer: Message, *, ended: bool = True) -> Tokens:
        """The conversation with its answer as text, and the answer's place in the tokens.

        For answers that came without their tokens, or were changed. `ended` False: cut before its end
        token. Raises Mismatch.
        """
        asked = self.render(history, asking=True)
        whole = self.render([*history, answer], asking=False)
        content, reasoning = answer["content"].strip(), (answer.get("reasoning_content") or "").strip()
        rest = whole.removeprefix(asked)
        if len(rest) + len(asked) != len(whole):
            raise Mismatch(
                "the template does not begin an answered conversation as it begins the asking", whole
            )
        if content not in rest or reasoning not in rest:
            lost = "the answer" if content not in rest else "the reasoning"
            raise Mismatch(f"the template does not repeat {lost} as it is", whole)
        ids, start = self.encode(whole), self._length(asked, whole)
        stop = next((at + 1 for at in range(start, len(ids)) if ids[at] in self.end_ids), None)
        if stop is None:
            raise Mismatch(NO_END, self.show(ids, [(start, len(ids))]))
        said = rest.partition(self.decode([ids[stop - 1]]))[0]
        own = next((text for text in (answer["content"], content) if said.endswith(text)), None)
        if own is None:
            shown = self.show(ids[:stop], [(start, stop)])
            raise Mismatch("the answer's tokens do not give back its text", shown)
        if not reasoning:  # empty tags of reasoning, which some templates put before an answer
            start = self._length(asked + said.removesuffix(own), whole)
        stop -= not ended
        return Tokens(ids=ids[:stop], mask=[(start, stop)])

    def _length(self, begun: str, whole: str) -> int:
        """How many tokens the beginning of a text has in the whole of it. Raises Mismatch for a split one."""
        prefix, ids = self.encode(begun), self.encode(whole)
        if ids[: len(prefix)] != prefix:
            raise Mismatch("a token lies across the beginning of the answer", whole)
        return len(prefix)

    def read_answer(self, generated: Sequence[int]) -> dict[str, str]:
        """The message that generated tokens are: reasoning apart, without the token that ends it."""
        ended = bool(generated) and generated[-1] in self.end_ids
        text = self.decode(generated[:-1] if ended else generated)
        return split_reasoning(text)

    def show(self, ids: Sequence[int], mask: Sequence[Span]) -> str:
        """A picture of a sample: what the target generated stands in ⟦ ⟧."""
        parts, at = [], 0
        for start, stop in mask:
            parts += [self.decode(ids[at:start]), "⟦", self.decode(ids[start:stop]), "⟧"]
            at = stop
        return "".join([*parts, self.decode(ids[at:])])

    def check(self) -> Tokens:
        """A short conversation of two turns through the template and back. Raises Mismatch."""
        history: list[Message] = [{"role": "user", "content": "What is the capital of France?"}]
        self.opening([])
        first = {"role": "assistant", "content": "It is Paris."}
        self.answered(history, first)
        history += [first, {"role": "user", "content": "And of Peru?"}]
        return self.answered(history, {"role": "assistant", "content": "It is Lima."})


def split_reasoning(text: str) -> dict[str, str]:
    """A raw answer as a message. What stands before the tag that ends reasoning is reasoning."""
    for end in ENDS_OF_REASONING:
        before, found, after = text.rpartition(end)
        if found:
            begin = end.replace("/", "")
            reasoning = before.strip().removeprefix(begin).strip()
            return {"role": "assistant", "content": after.strip(), "reasoning_content": reasoning}
    return {"role": "assistant", "content": text}


def load_template(
    model: str, options: Mapping[str, Any] | None = None, *, trust_remote_code: bool = False
) -> ChatTemplate:
    """The tokenizer of a model's folder or name. Raises UsageError, EnvironmentProblem."""
    try:
        from transformers import AutoTokenizer
    except ImportError as problem:
        raise EnvironmentProblem(
            f"transformers is not installed ({problem}); it reads the target's tokenizer and template",
            "pip install 'llm-shakedown[drafter]'",
        ) from None
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as problem:
        first = str(problem).strip().splitlines()[:1]
        raise UsageError(f"the tokenizer of {model} cannot be read: {''.join(first)}") from None
    if not tokenizer.chat_template:
        raise UsageError(
            f"{model} has no chat template: it is asked with conversations, and answers as they say",
            "name an instruct model, or put a chat_template.jinja beside its tokenizer",
        )
    ends = {tokenizer.eos_token_id, *read_end_ids(Path(model))} - {None}
    if not ends:
        raise UsageError(f"{model} names no token that ends an answer (eos_token)")
    return ChatTemplate(tokenizer=tokenizer, end_ids=frozenset(ends), options=dict(options or {}))


def read_end_ids(folder: Path) -> set[int]:
    """The tokens at which an engine stops, by the model's own files."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        try:
            ids = json.loads((folder / name).read_text()).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        found.update(each for each in (ids if isinstance(ids, list) else [ids]) if type(each) is int)
    return found
