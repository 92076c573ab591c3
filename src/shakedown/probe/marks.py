"""Measures the marks stated for a server that serves: one streamed request after another, until they decide.

It never judges the launch, and never sends two requests at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shakedown.core import Expectation, Mark, Measured
from shakedown.probe import passages
from shakedown.probe.answers import Spoken, dig, parse, read_text, refusal
from shakedown.probe.client import Answer, Failure, Target, send
from shakedown.probe.counters import SpeculationCounters, read_counters
from shakedown.probe.questions import Budget, ask_long
from shakedown.probe.ready import served_model
from shakedown.probe.samples import LEAST, interval

TOKENS = 64  # a request: long enough for a pace, and for some twenty rounds of speculation
MOST_REQUESTS = 12
REQUEST_S = 30.0
MODELS_S = 5.0
GENERATE = "/generate"
NO_ROUNDS = "the server counts no rounds of speculation"


@dataclass(slots=True)
class _Series:
    """Samples of one mark so far."""

    expectation: Expectation
    samples: list[float]
    note: str = ""

    def measured(self, spread: float) -> Measured:
        if not self.samples:
            return Measured(expectation=self.expectation, note=self.note or "no request was answered")
        value, low, high = interval(self.samples, spread)
        return Measured(
            expectation=self.expectation, value=value, low=low, high=high, samples=len(self.samples)
        )


def measure(
    target: Target,
    expectations: Sequence[Expectation],
    *,
    deadline_s: float,
    spread: float = 0.0,
    began: Callable[[], None] = lambda: None,
    abandoned: Callable[[], bool] = lambda: False,
) -> tuple[Measured, ...]:
    """Each mark with its interval, in the order stated. `ready_s` is not asked of a server: it is left out.

    The first request only warms the path up. Ends as soon as every interval decides, and at the latest
    after `MOST_REQUESTS` or `deadline_s`. `spread`: see `interval`. `began` is told before each request.
    """
    series = [_Series(it, []) for it in expectations if it.mark is not Mark.READY_S]
    budget = Budget(deadline_s)
    target = replace(target, model=served_model(target, budget.left_s(MODELS_S))) if series else target
    for number in range(MOST_REQUESTS + 1):
        if not series or abandoned() or budget.left_s() <= 0 or _decided(series, spread):
            break
        began()
        answered = _sample(target, budget.left_s(REQUEST_S), series, counts=number > 0)
        if not answered:
            break
    return tuple(it.measured(spread) for it in series)


def _decided(series: Sequence[_Series], spread: float) -> bool:
    return all(it.note or (len(it.samples) >= LEAST and it.measured(spread).met is not None) for it in series)


def _sample(target: Target, seconds: float, series: Sequence[_Series], *, counts: bool) -> bool:
    """One request, read for every mark. False where the server does not answer it."""
    before = _rounds(target) if any(it.expectation.mark is Mark.ACCEPT_LENGTH for it in series) else None
    answer = ask_long(target, _unseen_prose(), max_tokens=TOKENS, budget=Budget(seconds))
    spoken = read_text(answer)
    usable = (answer.ok or answer.failure is Failure.CUT) and not spoken.error
    if not usable:
        for it in series:
            it.note = it.note or refusal(answer)
        return False
    if counts:
        for it in series:
            value = _value(it, target, spoken, answer, before)
            if value is not None:
                it.samples.append(value)
    return True


def _unseen_prose() -> str:
    """Out of the prefix cache the first token would come sooner each time."""
    return f"{uuid.uuid4().hex[:8]}: {passages.PROSE}"


def _value(
    it: _Series, target: Target, spoken: Spoken, answer: Answer, before: tuple[float, float] | None
) -> float | None:
    mark = it.expectation.mark
    if mark is Mark.TTFT_MS:  # cut before a token came: it takes longer than that
        return 1000 * (spoken.first_token_s or answer.seconds)
    if mark is Mark.TOKENS_PER_S:
        # None came: fewer than one in that time.
        return spoken.tokens_per_s or max(1, spoken.tokens) / answer.seconds
    length = _accept_length(target, before)
    if length is None:
        it.note = NO_ROUNDS
    return length


def _rounds(target: Target) -> tuple[float, float] | None:
    """(rounds, accepted tokens) that vLLM has counted since its start; None where it counts none."""
    found = read_counters(target)
    return (found.rounds, found.accepted) if isinstance(found, SpeculationCounters) else None


def _accept_length(target: Target, before: tuple[float, float] | None) -> float | None:
    """Tokens a round in the request since `before`, its bonus token included; SGLang tells it by itself."""
    if before is not None:
        after = _rounds(target)
        rounds = after[0] - before[0] if after else 0.0
        return 1 + (after[1] - before[1]) / rounds if after and rounds > 0 else None
    body = {
        "text": _unseen_prose(),
        "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True},
    }
    answer = send(target, GENERATE, body, deadline_s=REQUEST_S)
    length = dig(parse(answer.body), "meta_info", "spec_accept_length") if answer.ok else None
    return float(length) if isinstance(length, int | float) and length > 0 else None
