"""Two tasks every language model can do, alone and both at once.

It never judges what a failed task means for the verdict, only whether the server broke at it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from shakedown.core import Verdict
from shakedown.probe.answers import quote, read_text, refusal
from shakedown.probe.client import Failure, Target
from shakedown.probe.numeric import Layer, LayerState, unavailable
from shakedown.probe.passages import CODE_WORD, CODE_WORD_SHORT, COPY, Task
from shakedown.probe.plain import Trouble, died
from shakedown.probe.questions import COMPLETIONS, Budget, ask_chat, ask_completion

CHAT_EXTRA_TOKENS = 24  # for the words a chat model puts around its answer
LEAST_S = 1.0  # with less time left a task is not begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One task, asked once. `answer` is None where no text came."""

    answer: str | None
    layer: Layer
    trouble: Trouble | None = None
    silent: bool = False  # asked in time, and not a token came
    too_long: bool = False  # refused, most likely because the server's context is shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """All attempts. `silent_at` names the request that went unanswered, "" where none did."""

    layers: tuple[Layer, ...]
    answers: tuple[str, ...]
    trouble: Trouble | None
    silent_at: str


def do_tasks(target: Target, path: str, budget: Budget, progress: Callable[[str], None]) -> Work:
    """The copy task and the code word, then both together. `path` is the endpoint known to speak."""
    progress("copy a list")
    attempts, code_word = [_try(target, COPY, path, budget)], CODE_WORD
    if not _over(attempts):
        progress("a code word in a long prompt")
        recalled = _try(target, code_word, path, budget)
        if recalled.too_long:
            code_word = CODE_WORD_SHORT
            recalled = _try(target, code_word, path, budget)
        attempts.append(recalled)
    layers = [attempt.layer for attempt in attempts]
    answers = tuple(attempt.answer for attempt in attempts if attempt.answer is not None)
    if not _over(attempts):
        progress("two requests at once")
        together = _try_both(target, code_word, path, budget)
        layer = _compare(attempts, together)
        if layer.state is LayerState.FAILED:
            again = _try_both(target, code_word, path, budget)
            if _compare(attempts, again).state is not LayerState.FAILED:
                layer = replace(layer, state=LayerState.ODD, text=f"once in two: {layer.text}")
            together += again
        layers.append(layer)
        attempts += together
    return Work(
        layers=tuple(layers),
        answers=answers,
        trouble=next((attempt.trouble for attempt in attempts if attempt.trouble), None),
        silent_at=next((f"the task {attempt.layer.name}" for attempt in attempts if attempt.silent), ""),
    )


def _over(attempts: list[Attempt]) -> bool:
    return any(attempt.trouble or attempt.silent for attempt in attempts)


def _try(target: Target, task: Task, path: str, budget: Budget) -> Attempt:
    if budget.left_s() < LEAST_S:
        return Attempt(answer=None, layer=unavailable(task.name, "no time left"))
    answer = ask_completion(target, task.raw, max_tokens=task.max_tokens, budget=budget)
    if answer.failure is None and answer.status in {404, 405, 501} and path != COMPLETIONS:
        tokens = task.max_tokens + CHAT_EXTRA_TOKENS
        answer = ask_chat(target, task.chat, max_tokens=tokens, budget=budget)
    spoken = read_text(answer)
    if died(answer) or (spoken.error and answer.status == 200):
        cause = f"broke at the task {task.name}: {spoken.error or refusal(answer)}"
        fingerprint = f"canary: broke at the task {task.name}"
        trouble = Trouble(verdict=Verdict.CRASHED, cause=cause, fingerprint=fingerprint)
        return Attempt(answer=None, layer=unavailable(task.name, refusal(answer)), trouble=trouble)
    if not spoken.tokens or not (answer.ok or answer.failure is Failure.CUT):
        silent = answer.failure is Failure.CUT
        too_long = answer.failure is None and answer.status in {400, 413, 422}
        layer = unavailable(task.name, refusal(answer))
        return Attempt(answer=None, layer=layer, silent=silent, too_long=too_long)
    text = f"{spoken.reasoning} {spoken.text}".strip()
    found, line = task.found(text), quote(text, limit=120)
    state = LayerState.PASSED if task.passed(text) else LayerState.FAILED
    if state is LayerState.FAILED and (spoken.reasoning or not answer.ok):
        return Attempt(answer=None, layer=unavailable(task.name, f"cut before it was done: {line}"))
    line = f"{found} of {len(task.expected)} words: {line}"
    layer = Layer(name=task.name, state=state, text=line, numbers=(("words", float(found)),))
    return Attempt(answer=spoken.text, layer=layer)


def _try_both(target: Target, code_word: Task, path: str, budget: Budget) -> list[Attempt]:
    done: list[Attempt] = []
    threads = [
        threading.Thread(target=lambda t=task: done.append(_try(target, t, path, budget)), daemon=True)
        for task in (COPY, code_word)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(budget.left_s() + 2.0)
    return list(done)


def _compare(alone: list[Attempt], together: list[Attempt]) -> Layer:
    """What a server can do alone it must do beside another request."""
    name = "two_at_once"
    able = {attempt.layer.name for attempt in alone if attempt.layer.state is LayerState.PASSED}
    if not able:
        return unavailable(name, "neither task was done alone")
    missing = [attempt.layer.text for attempt in together if attempt.answer is None]
    if len(together) < 2 or missing:
        return unavailable(name, "; ".join(missing) or "no answer in time")
    lost = [
        attempt.layer
        for attempt in together
        if attempt.layer.name in able and attempt.layer.state is LayerState.FAILED
    ]
    if not lost:
        return Layer(name=name, state=LayerState.PASSED, text="both answered as they did alone")
    return Layer(
        name=name, state=LayerState.FAILED, text="; ".join(f"{layer.name} {layer.text}" for layer in lost)
    )
