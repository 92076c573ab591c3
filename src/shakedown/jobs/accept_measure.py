"""One server asked the same questions as another: tokens, times, rounds; warm, until an interval decides.

It starts nothing and compares nothing.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import fmean, median, stdev

from shakedown.acceptance.replay import FEWEST_REQUESTS
from shakedown.acceptance.rounds import Acceptance, Source, acceptance_of
from shakedown.errors import EnvironmentProblem
from shakedown.jobs.accept_answers import (
    Answered,
    Block,
    answered,
    counted,
    past_end,
    shared_out,
    tallies_of,
)
from shakedown.jobs.accept_questions import Question
from shakedown.jobs.result import Talk
from shakedown.probe import Target
from shakedown.probe.counters import read_counters
from shakedown.probe.generation import Generated, generate

WARM_UP = 2  # requests that are not counted
BLOCK = 8  # one question of each kind
FEWEST_BLOCKS = 2
ANSWER_S = 600.0  # a step of a trillion parameters at the end of a long queue
CUT = "the measurement was cut"
PLAIN_SPREAD = 0.03  # of the seconds a token takes: a plain server is known well enough within that


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one server showed at one concurrency. `idle`: it has counters, and they did not move. `past_end`:
    which share of the counted tokens lies past the model's own end; None where the mark is not known."""

    concurrency: int
    answers: tuple[Answered, ...]
    seconds: float
    source: Source = Source.NONE
    why_none: str = ""
    idle: bool = False
    acceptance: Acceptance | None = None
    failed: tuple[str, ...] = ()
    past_end: float | None = None

    @property
    def tokens_per_s(self) -> float:
        return sum(each.came for each in self.answers) / self.seconds

    @property
    def first_token_s(self) -> float | None:
        found = [each.generated.first_s for each in self.answers if each.generated.first_s is not None]
        return median(found) if found else None

    @property
    def token_s(self) -> float | None:
        """Mean seconds between two tokens."""
        tokens = sum(each.effort.tokens for each in self.answers)
        return sum(each.effort.seconds for each in self.answers) / tokens if tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`tokens` an answer; `most` questions; `margin` in tokens a round; `drafts`: the k, 0 without; `ends`:
    the target's end marks."""

    questions: tuple[Question, ...]
    tokens: int
    most: int
    margin: float
    drafts: int = 0
    ends: frozenset[int] = frozenset()
    salt: str = field(default_factory=lambda: uuid.uuid4().hex)


def measure_server(
    target: Target,
    plan: Plan,
    *,
    concurrency: int,
    number: int | None,
    talk: Talk,
    keep: Callable[[Measurement], None] = lambda measurement: None,
) -> Measurement:
    """Asks `number` questions, or as many as the interval needs. `keep` is given what was measured, of a
    measurement that is cut the whole blocks until then.

    Raises EnvironmentProblem where the server dies, or answers no question at all.
    """
    plan = replace(plan, salt=uuid.uuid4().hex)
    hello = Question(kind="", text="Say hello.")
    if plan.questions[-1].prompt is not None:  # asked in tokens, a server would refuse mere text
        hello = plan.questions[-1]
    for _ in range(WARM_UP):
        refuse_dead(target, [ask(target, hello, plan)], 0)
    before = read_counters(target)
    blocks: list[list[Answered]] = []
    began_s = time.monotonic()
    size = block_size(concurrency)
    questions = plan.questions[: number or plan.most]
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="accept")
    try:
        for at in range(0, len(questions), size):
            block = ask_block(target, questions[at : at + size], plan, pool, concurrency, at)
            refuse_dead(target, [each.generated for each in block], sum(map(len, blocks)) + len(block) - 1)
            blocks.append(block)
            answers = [each for block in blocks for each in block]
            if number is None and len(blocks) >= FEWEST_BLOCKS and decided(answers, plan):
                break
            talk.say(f"accept: {len(answers)} answers, {told(answers, plan)}")
    except BaseException:
        if any(not each.generated.error for block in blocks for each in block):
            keep(concluded(blocks, plan, concurrency, time.monotonic() - began_s, before, CUT))
        raise
    finally:  # nobody waits for answers of a server that is about to be ended
        pool.shutdown(wait=False, cancel_futures=True)
    seconds = time.monotonic() - began_s
    found = concluded(blocks, plan, concurrency, seconds, before, read_counters(target))
    keep(found)
    return found


def block_size(concurrency: int) -> int:
    return max(BLOCK, 2 * concurrency)


def ask_block(
    target: Target,
    questions: Sequence[Question],
    plan: Plan,
    pool: ThreadPoolExecutor,
    concurrency: int,
    number: int,
) -> list[Answered]:
    """With one request at a time each has the server's counters to itself, else the block has."""
    if concurrency > 1:
        before = read_counters(target)
        everyone = list(pool.map(lambda question: ask(target, question, plan), questions))
        shared = counted(before, read_counters(target), plan.drafts)
        found = [
            answered(q, g, None, drafts=plan.drafts, ends=plan.ends)
            for q, g in zip(questions, everyone, strict=True)
        ]
        if shared is not None and found and all(each.tally is None for each in found):
            found = shared_out(found, Block(number=number, answers=len(found), tally=shared))
        return found
    found = []
    for question in questions:
        before = read_counters(target) if plan.drafts else None
        generated = ask(target, question, plan)
        after = read_counters(target) if plan.drafts and generated.rounds is None else None
        sums = counted(before, after, plan.drafts)
        found.append(answered(question, generated, sums, drafts=plan.drafts, ends=plan.ends))
        if generated.lost:
            break
    return found


def ask(target: Target, question: Question, plan: Plan) -> Generated:
    salt = plan.salt if target.engine == "vllm" else ""
    return generate(
        target, question.text, tokens=plan.tokens, deadline_s=ANSWER_S, prompt=question.prompt, salt=salt
    )


def refuse_dead(target: Target, generated: Sequence[Generated], before: int) -> None:
    """Raises EnvironmentProblem where an answer was lost with its server; `before` it were so many."""
    lost = next((each for each in generated if each.lost), None)
    if lost is not None:
        raise EnvironmentProblem(
            f"the server at {target.base_url} was lost after {before} answers: {lost.error}",
            "its log says why: see `shakedown runs`",
        )


def decided(answers: Sequence[Answered], plan: Plan) -> bool:
    if plan.drafts:
        found = acceptance_of(tallies_of(answers))
        if found is None or found.requests < FEWEST_REQUESTS:  # fewer blocks could be compared with nothing
            return False
        if found.tokens_per_round.low is None or found.tokens_per_round.high is None:
            return False
        return found.tokens_per_round.high - found.tokens_per_round.low <= 2 * plan.margin
    paces = [e.effort.seconds / e.effort.tokens for e in answers if e.effort.tokens]
    if len(paces) < FEWEST_BLOCKS * BLOCK:
        return False
    mean = fmean(paces)
    spread = stdev(paces) / math.sqrt(len(paces))
    return 2 * spread <= PLAIN_SPREAD * mean


def told(answers: Sequence[Answered], plan: Plan) -> str:
    found = acceptance_of(tallies_of(answers))
    if plan.drafts and found is not None:
        interval = found.tokens_per_round
        if interval.low is None or interval.high is None:
            return f"{interval.value:.2f} tokens a round"
        return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f}) tokens a round"
    tokens, seconds = (sum(getattr(e.effort, name) for e in answers) for name in ("tokens", "seconds"))
    return f"{tokens / seconds:.1f} tokens/s" if seconds else "no pace yet"


def concluded(
    blocks: Sequence[Sequence[Answered]],
    plan: Plan,
    concurrency: int,
    seconds: float,
    before: object,
    after: object,
) -> Measurement:
    answers = [each for block in blocks for each in block]
    good = tuple(each for each in answers if not each.generated.error)
    failed = tuple(each.generated.error for each in answers if each.generated.error)
    if not good:
        raise EnvironmentProblem(f"the server answered none of {len(answers)} questions: {failed[0]}")
    source, why = source_of(good, after) if plan.drafts else (Source.NONE, "")
    moved = counted(before, after, plan.drafts)
    return Measurement(
        concurrency=concurrency,
        answers=good,
        seconds=seconds,
        source=source,
        why_none=why,
        idle=bool(plan.drafts)
        and source is Source.NONE
        and (after is None or (moved is not None and not moved.rounds)),
        acceptance=acceptance_of(tallies_of(good)),
        failed=failed,
        past_end=past_end(good) if plan.ends else None,
    )


def source_of(answers: Sequence[Answered], counters: object) -> tuple[Source, str]:
    if any(each.generated.rounds for each in answers):
        return Source.ROUNDS, ""
    if any(each.generated.histogram for each in answers):
        return Source.HISTOGRAM, ""
    if any(tally.rounds for tally in tallies_of(answers)):
        return Source.COUNTERS, ""
    if isinstance(counters, str):
        return Source.NONE, counters
    return Source.NONE, "it counts no round of speculation"
