"""One conversation with the target, from its prompt to documents of tokens that are known to be its own.

It never writes a file: what cannot be taken is handed back with the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from shakedown.drafter.prompts import Prompt
from shakedown.drafter.samples import Finish, Message
from shakedown.drafter.server import Reply, Sampling, Way, ask_chat, ask_tokens, ask_user_turn
from shakedown.drafter.template import NO_END, ChatTemplate, Mismatch, Tokens, split_reasoning
from shakedown.drafter.transport import Client, Refused

USER_SAMPLING = Sampling(temperature=1.0, top_p=0.95, max_tokens=256)  # greedy would write one turn for ever


class Reason(StrEnum):
    """Why an answer is left out."""

    TRUNCATED = "cut by the limit of tokens"
    EMPTY = "empty answer"
    REFUSED = "refused by the server"
    TEMPLATE = "the template does not give it back"
    TOKENIZER = "another tokenizer or template than the server's"
    UNENDED = "no token ends it"
    USER_TURN = "the target wrote no user turn"
    REPEATED = "the target wrote this user turn before"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """`shown` is the sample, or as much of it as there was."""

    reason: Reason
    detail: str
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A sample yet without its name: several turns where the template lets one continue the other."""

    messages: Sequence[Message]
    tokens: Tokens
    finish: Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What was taken, why it ended early if it did, and how many tokens the server made for it."""

    documents: Sequence[Document]
    left_out: LeftOut | None
    made: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is asked for: `turns` are those the target writes itself where no prompt is given."""

    sampling: Sampling = field(default_factory=Sampling)
    keep_reasoning: bool = True
    keep_truncated: bool = False
    turns: int = 1


class _Stop(Exception):
    def __init__(self, reason: Reason, detail: str = "", shown: str = "") -> None:
        self.left_out = LeftOut(reason=reason, detail=detail, shown=shown)


class Interview:
    """The target at one server, with one chat template, asked as wished; `hold` may run in any thread.

    `written` are user turns that the target wrote to begin with: each begins one conversation.
    """

    def __init__(self, template: ChatTemplate, way: Way, wishes: Wishes, written: Iterable[str] = ()) -> None:
        self.template, self.way, self.wishes = template, way, wishes
        self._written = set(written)
        self._lock = threading.Lock()

    def hold(self, client: Client, begin: Prompt | None) -> Conversation:
        """Asks turn by turn. Raises ServerLost; what is wrong with an answer ends the conversation."""
        history: list[Message] = list(begin.opening) if begin else []
        documents: list[Document] = []
        made, left_out = 0, None
        turns: Sequence[str | None] = begin.turns if begin else [None] * self.wishes.turns
        try:
            for turn in turns:
                if turn is None:
                    reply = self._user_turn(client, history)
                    made, turn = made + reply.generated, reply.text.strip()
                    self._refuse_repeated(history, turn)
                history.append({"role": "user", "content": turn})
                prompt = self.template.prompt(history)
                reply = self._ask(client, history, prompt)
                made += reply.generated
                message, tokens = self._read(history, prompt, reply)
                history.append(message)
                document = Document(messages=tuple(history), tokens=tokens, finish=reply.finish)
                extend(documents, document)
                if reply.finish is Finish.LENGTH:
                    break
        except _Stop as stop:
            left_out = stop.left_out
        except Refused as problem:
            left_out = LeftOut(reason=Reason.REFUSED, detail=str(problem), shown=text_of(history))
        except Mismatch as problem:
            left_out = LeftOut(reason=Reason.TEMPLATE, detail=problem.why, shown=problem.shown)
        return Conversation(documents=documents, left_out=left_out, made=made)

    def _user_turn(self, client: Client, history: Sequence[Message]) -> Reply:
        reply = ask_user_turn(client, self.way, self.template.opening(history), USER_SAMPLING)
        if reply.finish is Finish.LENGTH or not reply.text.strip():
            detail = "it did not end" if reply.finish is Finish.LENGTH else "it is empty"
            raise _Stop(Reason.USER_TURN, detail, reply.text)
        return reply

    def _refuse_repeated(self, history: Sequence[Message], turn: str) -> None:
        if history:
            return
        with self._lock:
            if turn in self._written:
                raise _Stop(Reason.REPEATED, shown=turn)
            self._written.add(turn)

    def _ask(self, client: Client, history: Sequence[Message], prompt: Sequence[int]) -> Reply:
        sampling = self.wishes.sampling
        if self.way is Way.CHAT:
            reply = ask_chat(client, history, sampling, self.template.options)
        else:
            reply = ask_tokens(client, self.way, prompt, sampling)
        if reply.finish is Finish.LENGTH and not self.wishes.keep_truncated:
            said = {"role": "assistant", "content": reply.reasoning + reply.text}
            raise _Stop(Reason.TRUNCATED, f"after {reply.generated} tokens", text_of([*history, said]))
        return reply

    def _read(self, history: Sequence[Message], prompt: list[int], reply: Reply) -> tuple[Message, Tokens]:
        """The answer as a message, and the whole conversation up to it in tokens."""
        if reply.token_ids is None:
            self._check_prompt(prompt, reply, history)
            message: Message = message_of(reply)
        else:
            answer = self._whole(reply, history)
            message = self.template.read_answer(answer)
            if self.wishes.keep_reasoning:
                return message, Tokens(ids=prompt + answer, mask=[(len(prompt), len(prompt) + len(answer))])
        if not self.wishes.keep_reasoning:
            message = {"role": "assistant", "content": message["content"]}
        if not message["content"].strip() and not message.get("reasoning_content"):
            raise _Stop(Reason.EMPTY, shown=text_of([*history, message]))
        return message, self.template.answered(history, message, ended=reply.finish is Finish.STOP)

    def _whole(self, reply: Reply, history: Sequence[Message]) -> list[int]:
        """The tokens of an answer with the one that ended it, which some servers keep to themselves."""
        answer = list(reply.token_ids or ())
        shown = text_of([*history, {"role": "assistant", "content": reply.text}])
        said = self.template.decode(answer, bare=True)
        if letters(said) != letters(reply.text):
            detail = f"its tokens read {said[:200]!r} here, {reply.text[:200]!r} there"
            raise _Stop(Reason.TOKENIZER, detail, shown)
        if reply.finish is Finish.STOP and (not answer or answer[-1] not in self.template.end_ids):
            if reply.end_id is None:
                raise _Stop(Reason.UNENDED, NO_END, shown)
            if not answer or answer[-1] != reply.end_id:
                answer.append(reply.end_id)
        if not said.strip() and len(answer) <= 1:
            raise _Stop(Reason.EMPTY, shown=shown)
        return answer

    def _check_prompt(self, prompt: Sequence[int], reply: Reply, history: Sequence[Message]) -> None:
        """A server that read another number of tokens has another template, or another tokenizer."""
        if reply.prompt_tokens is not None and reply.prompt_tokens != len(prompt):
            detail = f"the server read {reply.prompt_tokens} tokens where this template makes {len(prompt)}"
            raise _Stop(Reason.TOKENIZER, detail, text_of(history))


def message_of(reply: Reply) -> dict[str, str]:
    if not reply.reasoning:
        return split_reasoning(reply.text)
    return {
        "role": "assistant",
        "content": reply.text.strip(),
        "reasoning_content": reply.reasoning.strip(),
    }


def letters(text: str) -> str:
    """What two servers agree on: some trim white space, some leave out a character that was cut in half."""
    return "".join(text.replace("\ufffd", "").split())


def extend(documents: list[Document], document: Document) -> None:
    """Joins a turn to the document before it if its prompt is that document; else it begins a new one."""
    if documents:
        before = documents[-1].tokens
        if document.tokens.ids[: len(before.ids)] == before.ids:
            tokens = Tokens(ids=document.tokens.ids, mask=before.mask + document.tokens.mask)
            documents[-1] = replace(document, tokens=tokens)
            return
    documents.append(document)


def text_of(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
