"""The canary: does a server that says it is ready generate, and is what it generates right?

It never raises for what a server does, and never starts, reads or ends a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from shakedown.core import Evidence, LogprobStyle, Verdict
from shakedown.probe import numeric, passages
from shakedown.probe.answers import Scored, quote, read_scored, read_text, refusal
from shakedown.probe.client import Answer, Failure, Target
from shakedown.probe.numeric import Layer, LayerState, unavailable
from shakedown.probe.plain import NO_API, NOT_READY, UNENDED, Plain, Trouble, ask_plainly, died, explain
from shakedown.probe.questions import Budget, ask_chat, ask_completion, ask_scored
from shakedown.probe.ready import served_model
from shakedown.probe.tasks import do_tasks

MODELS_S = 5.0
FIRST_LOGPROBS_S = 120.0  # vLLM compiles them at the first request: 15 s alone, 33 s on a busy machine
PULSE_S = 20.0
DECODED_TOKENS = 64
WOULD_CHANGE = {
    Verdict.SERVES: "a failed task, passages above 6 nats, or decode and prefill half a nat apart",
    Verdict.WRONG: "passages below 6 nats, a task done, decode and prefill that agree",
    Verdict.SLOW: "one warm request at a token a second or more",
    Verdict.HUNG: "a single generated token",
    Verdict.CRASHED: "the same request answered",
    Verdict.UNDECIDED: "an answer with a token in it, or log-probabilities that decide",
}
PROMISES_NOTHING = frozenset({"generic"})  # an unknown server owes no log-probabilities
NOT_FINITE = ("out of range float", "nan", "not json compliant")  # what a server says that met a NaN


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryReport:
    """What the canary found. `cause` is one line ("" when it serves); HUNG means: no answer.

    The trial, which sees the processes, decides between a hang and a death.
    """

    verdict: Verdict
    cause: str
    fingerprint: str
    evidence: tuple[Evidence, ...]
    layers: tuple[Layer, ...]
    first_token_s: float | None
    tokens_per_s: float | None
    text: str
    would_change: str

    @property
    def says_not_ready(self) -> bool:
        return self.verdict is Verdict.UNDECIDED and self.fingerprint == NOT_READY


def is_early(report: CanaryReport) -> bool:
    """Whether a server that still loads would have answered so: "not ready", or no routes yet."""
    no_api = report.verdict is Verdict.UNDECIDED and report.fingerprint == NO_API
    return no_api or report.says_not_ready


class Heartbeat(StrEnum):
    """What one short request to a serving server says."""

    BEATS = "beats"
    DEAD = "dead"  # nobody listens, or the connection broke
    SATURATED = "saturated"  # it could not even connect: busy, not hung
    SILENT = "silent"  # connected, and no token before the deadline
    FAILS = "fails"  # it answers, with an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    heartbeat: Heartbeat
    why: str
    seconds: float


def check(
    target: Target,
    *,
    deadline_s: float = 60.0,
    clock: Callable[[], float] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    abandoned: Callable[[], bool] = lambda: False,
    first_logprobs_s: float = FIRST_LOGPROBS_S,
) -> CanaryReport:
    """Judge a server that says it is ready; never raises for what the server does.

    `deadline_s` bounds the plain request, and again all later ones together; the first request for
    log-probabilities has `first_logprobs_s` of its own. `clock` gives the seconds that date the evidence.
    Once `abandoned` says so no further request is sent, and the report is `undecided`.
    """
    started = time.monotonic()
    case = _Case(
        target,
        clock or (lambda: time.monotonic() - started),
        progress,
        abandoned,
        deadline_s,
        first_logprobs_s,
    )
    try:
        trouble = _examine(case)
    except _Abandoned:
        trouble = Trouble(verdict=Verdict.UNDECIDED, cause="abandoned", fingerprint="canary: abandoned")
    if trouble is None:
        trouble = Trouble(verdict=Verdict.SERVES, cause="", fingerprint="")
    if trouble.cause:
        case.note("verdict", trouble.cause)
    spoken = case.plain.spoken if case.plain else None
    return CanaryReport(
        verdict=trouble.verdict,
        cause=case.clean(trouble.cause),
        fingerprint=case.clean(trouble.fingerprint),
        evidence=tuple(case.evidence),
        layers=tuple(case.layers),
        first_token_s=spoken.first_token_s if spoken else None,
        tokens_per_s=case.plain.tokens_per_s if case.plain else None,
        text=case.clean(quote(spoken.text or spoken.reasoning, limit=400)) if spoken else "",
        would_change=WOULD_CHANGE[trouble.verdict],
    )


def pulse(target: Target, *, deadline_s: float = PULSE_S, max_tokens: int = 4) -> Pulse:
    """One short request after ready: `ready` said by a health page does not show that it still serves."""
    budget, started = Budget(deadline_s), time.monotonic()
    answer = ask_completion(target, passages.PLAIN_PROMPT, max_tokens=max_tokens, budget=budget)
    if answer.failure is None and answer.status in {400, 404, 405}:
        answer = ask_chat(target, passages.QUESTION, max_tokens=max_tokens, budget=budget)
    spoken, seconds = read_text(answer), time.monotonic() - started
    if spoken.tokens and not spoken.error and answer.failure in {None, *UNENDED}:
        return Pulse(heartbeat=Heartbeat.BEATS, why=f"{spoken.tokens} tokens", seconds=seconds)
    beat = {
        Failure.REFUSED: Heartbeat.DEAD,
        Failure.BROKEN: Heartbeat.DEAD,
        Failure.CONNECT_TIMEOUT: Heartbeat.SATURATED,
        Failure.CUT: Heartbeat.SILENT,
    }.get(answer.failure or Failure.TOO_BIG, Heartbeat.FAILS)
    return Pulse(heartbeat=beat, why=explain(answer, spoken, deadline_s).cause, seconds=seconds)


class _Abandoned(Exception):
    """Whoever asked has its answer from elsewhere."""


@dataclass
class _Case:
    """What one check gathers."""

    target: Target
    clock: Callable[[], float]
    progress: Callable[[str], None]
    abandoned: Callable[[], bool]
    deadline_s: float
    first_logprobs_s: float
    plain: Plain | None = None
    evidence: list[Evidence] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)

    def step(self, text: str) -> None:
        """Tells what comes next, unless nobody wants it any more."""
        if self.abandoned():
            raise _Abandoned
        self.progress(text)

    def clean(self, text: str) -> str:
        """A server may echo the key it was sent; it must not come into a report that way."""
        return text.replace(self.target.api_key, "[key]") if self.target.api_key else text

    def note(self, kind: str, text: str) -> None:
        self.evidence.append(Evidence(kind=f"canary {kind}", text=self.clean(text), at_s=self.clock()))

    def add(self, layer: Layer) -> None:
        self.layers.append(replace(layer, text=self.clean(layer.text)))
        self.note(layer.name, f"{layer.state.value}: {layer.text}")

    def record_plain(self, plain: Plain) -> None:
        for text in plain.notes:
            self.note("plain", text)
        if plain.spoken is None:
            return
        said = plain.spoken.text or plain.spoken.reasoning
        pace = f", {plain.tokens_per_s:.1f} tokens/s" if plain.tokens_per_s is not None else ""
        wait = f", first after {plain.spoken.first_token_s:.2f} s" if plain.spoken.first_token_s else ""
        text = f"{plain.spoken.tokens} tokens from {plain.path}{wait}{pace}: {quote(said)}"
        self.add(Layer(name="plain", state=LayerState.PASSED, text=text))


def _examine(case: _Case) -> Trouble | None:
    case.step("the served model's name")
    case.target = replace(case.target, model=served_model(case.target, min(case.deadline_s, MODELS_S)))
    case.plain = plain = ask_plainly(case.target, case.deadline_s, case.step)
    case.record_plain(plain)
    if plain.trouble is None and not case.target.token_only:
        return _check_numbers(case, plain)
    return plain.trouble


def _check_numbers(case: _Case, plain: Plain) -> Trouble | None:
    """Layers 1 and 2. The order matters: a death at the log-probabilities must be seen as theirs."""
    scored: dict[str, Scored] = {}
    if case.target.logprobs is LogprobStyle.NONE:
        case.add(unavailable("numeric", "this server gives no log-probabilities of a prompt"))
    else:
        trouble = _read_passages(case, scored)
        if trouble is not None:
            return trouble
    budget = Budget(case.deadline_s)
    work = do_tasks(case.target, plain.path, budget, case.step)
    for layer in work.layers:
        case.add(layer)
    trouble = work.trouble or (_silence(case, work.silent_at) if work.silent_at else None)
    if trouble is not None:
        return trouble
    spoken = plain.spoken.text if plain.spoken else ""
    case.add(numeric.judge_repetition([spoken, *work.answers]))
    if "prose" in scored:
        trouble = _rescore(case, scored["prose"], budget)
        if trouble is not None:
            return trouble
    verdict, cause, fingerprint = numeric.decide(case.layers)
    return Trouble(verdict=verdict, cause=cause, fingerprint=fingerprint) if cause else None


def _read_passages(case: _Case, scored: dict[str, Scored]) -> Trouble | None:
    """Score the three passages; the first also generates what layer 2 compares."""
    budget = Budget(case.first_logprobs_s)
    for name, text in passages.PASSAGES:
        case.step(f"log-probabilities: {name}")
        tokens = DECODED_TOKENS if name == "prose" else 1
        answer = ask_scored(case.target, text, max_tokens=tokens, budget=budget)
        owed = bool(scored) or case.target.engine not in PROMISES_NOTHING
        trouble = _logprobs_trouble(case, answer, owed=owed)
        if trouble is not None:
            return trouble
        found = read_scored(answer) if answer.ok else refusal(answer)
        if isinstance(found, str):
            case.add(unavailable("numeric", found))
            break
        scored[name] = found
        budget = Budget(case.deadline_s)
    if scored:
        case.add(numeric.judge_logits(scored))
        if case.layers[-1].state is LayerState.NOT_AVAILABLE:
            scored.clear()  # they are no log-probabilities: nothing more may be read out of them
        else:
            case.add(numeric.judge_nll(scored))
    return None


def _logprobs_trouble(case: _Case, answer: Answer, *, owed: bool) -> Trouble | None:
    """A server that dies of log-probabilities, chokes on a NaN in them, or never comes back from them.

    A 500 of one that does not owe them and goes on answering is only its way to say that it has none.
    """
    if died(answer):
        said = refusal(answer)
        if answer.failure is None and any(word in said.lower() for word in NOT_FINITE):
            what = "NaN among the log-probabilities"
            return Trouble(verdict=Verdict.WRONG, cause=f"{what}: {said}", fingerprint=f"canary: {what}")
        if answer.failure is None and not owed and _still_answers(case, said):
            return None
        what = "logprobs path broken"
        return Trouble(verdict=Verdict.CRASHED, cause=f"{what}: {said}", fingerprint=f"canary: {what}")
    return _silence(case, "a request for log-probabilities") if answer.failure is Failure.CUT else None


def _still_answers(case: _Case, said: str) -> bool:
    beat = pulse(case.target, deadline_s=min(case.deadline_s, PULSE_S))
    case.note("pulse", f"after a request for log-probabilities ({said}): {beat.heartbeat.value}, {beat.why}")
    return beat.heartbeat is Heartbeat.BEATS


def _silence(case: _Case, what: str) -> Trouble | None:
    """A request went unanswered: that request alone, or everything since?"""
    beat = pulse(case.target, deadline_s=min(case.deadline_s, PULSE_S))
    case.note("pulse", f"after {what} went unanswered: {beat.heartbeat.value}, {beat.why}")
    if beat.heartbeat in {Heartbeat.BEATS, Heartbeat.SATURATED}:
        return None
    verdict = Verdict.CRASHED if beat.heartbeat is Heartbeat.DEAD else Verdict.HUNG
    cause = f"no answer since {what} ({beat.why})"
    return Trouble(verdict=verdict, cause=cause, fingerprint=f"canary: no answer since {what}")


def _rescore(case: _Case, decoded: Scored, budget: Budget) -> Trouble | None:
    """Layer 2: let the server read in one piece what it has just generated token by token."""
    case.step("decode against prefill")
    answer = ask_scored(case.target, decoded.ids or decoded.text, max_tokens=1, budget=budget)
    trouble = _logprobs_trouble(case, answer, owed=True)
    if trouble is not None:
        return trouble
    again = read_scored(answer) if answer.ok else refusal(answer)
    if isinstance(again, str):
        case.add(unavailable("decode_vs_prefill", again))
    else:
        case.add(numeric.judge_consistency(decoded, again))
    return None
