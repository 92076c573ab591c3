"""One look at whether a server answers yet, and under which name it serves its model.

It never waits for readiness and never takes a green health page for service: only a canary does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shakedown.probe.answers import dig, parse, quote, refusal
from shakedown.probe.client import Answer, Failure, Target, send
from shakedown.probe.questions import Budget

MODELS = "/v1/models"
LISTS_OTHERS = frozenset({"transformers"})  # its list is the cache folder, not what it serves


class ReadyState(StrEnum):
    REFUSED = "refused"  # nobody listens
    NOT_YET = "not yet"  # somebody listens and says so, or says nothing
    ANSWERING = "answering"  # worth a canary


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """`model` is the name to ask for: the launch's own where the server lists it or lists nothing.

    `failure` is set where no answer came at all.
    """

    state: ReadyState
    why: str
    model: str | None = None
    failure: Failure | None = None


def poll(target: Target, deadline_s: float = 2.0) -> Readiness:
    """One look, at most `deadline_s` seconds long."""
    budget = Budget(deadline_s)
    health = ""
    if target.health_path is not None:
        answer = send(target, target.health_path, deadline_s=budget.left_s(deadline_s / 2))
        early = _not_yet(answer, target.health_path, only_2xx=target.health_is_named)
        if early is not None:
            return early
        health = f"{target.health_path} answers {answer.status}"
    answer = send(target, MODELS, deadline_s=budget.left_s())
    early = _not_yet(answer, MODELS)
    deaf = answer.failure is Failure.CUT or answer.status == 500  # `transformers serve`, offline: always
    if early is not None and not (health and deaf):
        return early
    if not answer.ok:  # no such page, another key, no answer to it: what that means the canary finds out
        said = ", ".join(filter(None, (health, f"{MODELS}: {refusal(answer)}")))
        return Readiness(state=ReadyState.ANSWERING, why=said, model=target.model)
    model = _choose(target, answer)
    said = ", ".join(filter(None, (health, f"model {quote(model or '?')}")))
    return Readiness(state=ReadyState.ANSWERING, why=said, model=model)


def served_model(target: Target, deadline_s: float) -> str | None:
    """The name to ask for; the launch's own where the server does not say."""
    answer = send(target, MODELS, deadline_s=deadline_s)
    return _choose(target, answer) if answer.ok else target.model


def _choose(target: Target, answer: Answer) -> str | None:
    listed = dig(parse(answer.body), "data")
    names = [dig(entry, "id") for entry in listed[:1000]] if isinstance(listed, list) else []
    names = [name for name in names if isinstance(name, str) and name]
    if target.model is not None and (target.model in names or target.engine in LISTS_OTHERS):
        return target.model
    return names[0] if names else target.model


def _not_yet(answer: Answer, path: str, *, only_2xx: bool = False) -> Readiness | None:
    """What an answer says if it is no reason for a canary; None if it is, or the page is not there."""
    if answer.failure is Failure.REFUSED:
        return Readiness(state=ReadyState.REFUSED, why="connection refused", failure=answer.failure)
    if answer.failure is not None:
        why = f"{path}: {answer.failure.value} {quote(answer.detail)}".rstrip()
        return Readiness(state=ReadyState.NOT_YET, why=why, failure=answer.failure)
    # SGLang says 503 until it has warmed up; a page that a user names may be missing until then.
    if answer.status is not None and (answer.status >= 500 or (only_2xx and answer.status // 100 != 2)):
        return Readiness(state=ReadyState.NOT_YET, why=f"{path} answers {answer.status}")
    return None
