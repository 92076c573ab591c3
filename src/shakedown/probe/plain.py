"""Layer 0 of the canary: a plain request, which alone can show that a server serves, and its pace.

It never judges what the text says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from shakedown.core import Verdict
from shakedown.probe.answers import Spoken, quote, read_text, said_in
from shakedown.probe.client import Answer, Failure, Target, send
from shakedown.probe.passages import PLAIN_PROMPT, QUESTION
from shakedown.probe.questions import CHAT, COMPLETIONS, Budget, ask_chat, ask_completion
from shakedown.probe.ready import MODELS

PLAIN_TOKENS = 16
PACE_TOKENS = 8
PAGES = (MODELS, "/health", "/")
PAGE_S = 2.0
NO_API, NOT_READY = "canary: no API", "canary: 503"
SLOW_TOKENS_PER_S = 1.0
NO_SUCH_WAY = frozenset({400, 404, 405, 415, 422, 501})  # no chat template, no such path: try the other one
NO_SUCH_PAGE = frozenset({404, 405, 501})
DENIED = frozenset({401, 403})
UNENDED = frozenset({Failure.CUT, Failure.TOO_BIG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why an answer is none. `cause` is one line, `fingerprint` the same without its numbers."""

    verdict: Verdict
    cause: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """What layer 0 found. `path` is the endpoint that spoke; `notes` tell of those that did not."""

    trouble: Trouble | None
    path: str
    spoken: Spoken | None
    tokens_per_s: float | None
    notes: tuple[str, ...]


def ask_plainly(target: Target, deadline_s: float, progress: Callable[[str], None]) -> Plain:
    """Chat, then a completion where there is no chat; a second, warm request where the first was slow."""
    budget = Budget(deadline_s)
    notes: list[str] = []
    first: Trouble | None = None
    absent = False  # what was said so far was only that there is no such endpoint
    missing: list[str] = []
    for path in (CHAT, COMPLETIONS):
        progress(f"plain request to {path}")
        answer = _ask(target, path, PLAIN_TOKENS, budget)
        spoken = read_text(answer)
        if spoken.tokens and (answer.ok or answer.failure in UNENDED) and not spoken.error:
            return _pace(target, path, answer, spoken, deadline_s, notes, progress)
        trouble = explain(answer, spoken, deadline_s)
        notes.append(f"{path}: {trouble.cause}")
        if answer.failure is None and answer.status in NO_SUCH_PAGE:
            missing.append(f"{path} answers {answer.status}")
        if first is None or (absent and answer.status not in NO_SUCH_WAY):
            first, absent = trouble, answer.status in NO_SUCH_WAY
        if (
            answer.failure in {Failure.CUT, Failure.CONNECT_TIMEOUT, Failure.UNREACHABLE}
            or not budget.left_s()
        ):
            break
    if len(missing) == 2 and not any("model" in note.lower() for note in notes):  # it may be the name only
        first = _no_api(target, missing, budget)
    return Plain(trouble=first, path="", spoken=None, tokens_per_s=None, notes=tuple(notes))


def _no_api(target: Target, missing: list[str], budget: Budget) -> Trouble:
    """Which page answered what: it tells a wrong root path from a server of another kind."""
    seen = [f"{path} {_status(send(target, path, deadline_s=budget.left_s(PAGE_S)))}" for path in PAGES]
    cause = f"no OpenAI-style API at {target.base_url}: {', '.join([*missing, *seen])}"
    return Trouble(verdict=Verdict.UNDECIDED, cause=cause, fingerprint=NO_API)


def _status(answer: Answer) -> str:
    return str(answer.status) if answer.failure is None else answer.failure.value


def _pace(
    target: Target,
    path: str,
    answer: Answer,
    spoken: Spoken,
    deadline_s: float,
    notes: list[str],
    progress: Callable[[str], None],
) -> Plain:
    """`slow` needs two requests under a token a second: the first may have compiled something."""
    pace, trouble = spoken.tokens_per_s, None
    if _is_slow(pace) or answer.failure in UNENDED:
        progress("a second, warm request")
        again = _ask(target, path, PACE_TOKENS, Budget(deadline_s))
        warm = read_text(again)
        pace = warm.tokens_per_s
        notes.append(f"a second request made {warm.tokens} tokens in {again.seconds:.1f} s")
        if not warm.tokens:
            trouble = explain(again, warm, deadline_s)
        elif _is_slow(pace):
            cause = f"{pace:.2f} tokens/s in a second, warm request, under {SLOW_TOKENS_PER_S:g}"
            trouble = Trouble(verdict=Verdict.SLOW, cause=cause, fingerprint="canary: slow decode")
        elif again.failure in UNENDED:
            trouble = _unended(again, warm, notes)
    return Plain(trouble=trouble, path=path, spoken=spoken, tokens_per_s=pace, notes=tuple(notes))


def _is_slow(pace: float | None) -> bool:
    return pace is not None and pace < SLOW_TOKENS_PER_S


def _unended(answer: Answer, spoken: Spoken, notes: list[str]) -> Trouble | None:
    """Twice in a row no end was said: after all that was asked for, in mid-answer, or for ever."""
    came, asked = spoken.tokens, PACE_TOKENS
    if came > asked:
        cause = f"an answer without end: {came} tokens in {answer.seconds:.1f} s where {asked} were asked for"
        return Trouble(verdict=Verdict.UNDECIDED, cause=cause, fingerprint="canary: an answer without end")
    if came == asked:
        notes.append("the whole answer came, and its stream was left open")
        return None
    still_s = answer.seconds - (spoken.last_token_s or 0.0)
    cause = f"an answer that stops: {came} of {asked} tokens, then nothing for {still_s:.1f} s"
    return Trouble(verdict=Verdict.SLOW, cause=cause, fingerprint="canary: an answer that stops")


def _ask(target: Target, path: str, max_tokens: int, budget: Budget) -> Answer:
    if path == CHAT:
        return ask_chat(target, QUESTION, max_tokens=max_tokens, budget=budget)
    return ask_completion(target, PLAIN_PROMPT, max_tokens=max_tokens, budget=budget)


def explain(answer: Answer, spoken: Spoken, deadline_s: float) -> Trouble:
    """The verdict on an answer that holds no token, or breaks off with an error."""
    said = spoken.error or said_in(answer)
    detail = f": {quote(answer.detail)}" if answer.detail else ""
    if answer.failure is Failure.CUT:
        return _trouble(Verdict.HUNG, f"no token within {deadline_s:g} s", "canary: no token")
    if answer.failure is Failure.REFUSED:
        return _trouble(Verdict.CRASHED, "nobody listens any more: connection refused")
    if answer.failure is Failure.BROKEN:
        what = "the connection broke before an answer was complete"
        return _trouble(Verdict.CRASHED, what + detail, f"canary: {what}")
    if answer.failure is not None:
        return _trouble(Verdict.UNDECIDED, answer.failure.value + detail, f"canary: {answer.failure.value}")
    if answer.status in DENIED:
        return _trouble(Verdict.UNDECIDED, f"the API key is missing or wrong ({answer.status})")
    if answer.status == 503:
        return _trouble(Verdict.UNDECIDED, f"the server says it is not ready (503): {said}", NOT_READY)
    if answer.status is not None and answer.status >= 500:
        return _trouble(Verdict.CRASHED, f"the request failed with {answer.status}: {said}")
    if spoken.error and answer.status == 200:
        return _trouble(Verdict.CRASHED, f"the answer ends in an error: {said}")
    if answer.status != 200:
        return _trouble(Verdict.UNDECIDED, f"the request was refused with {answer.status}: {said}")
    if spoken.understood:
        return _trouble(Verdict.UNDECIDED, "an answer without a single token")
    return _trouble(Verdict.UNDECIDED, f"not an answer of an OpenAI-style server: {said}", NO_API)


def died(answer: Answer) -> bool:
    """Whether a server that had just answered another request broke at this one."""
    if answer.failure is None:
        return answer.status is not None and answer.status >= 500 and answer.status not in {501, 503}
    return answer.failure in {Failure.BROKEN, Failure.REFUSED}


def _trouble(verdict: Verdict, cause: str, fingerprint: str | None = None) -> Trouble:
    if fingerprint is None:  # ids, ports and addresses differ from run to run
        fingerprint = "canary: " + re.sub(r"\b(?:0x)?[0-9a-f]*\d[0-9a-f]*\b", "#", cause.lower())
    return Trouble(verdict=verdict, cause=cause, fingerprint=fingerprint)
