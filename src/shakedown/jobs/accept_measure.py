"""One server asked the same questions as another: tokens, times, rounds; warm, until an interval decides.

It starts nothing and compares nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import median

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
from shakedown.jobs.accept_enough import FEWEST_BLOCKS, block_size, decided, told, too_few_blocks
from shakedown.jobs.accept_questions import Question
from shakedown.jobs.accept_sources import is_idle, no_whole_round, source_of, sums_alone
from shakedown.jobs.result import Talk
from shakedown.probe import Target
from shakedown.probe.counters import read_counters
from shakedown.probe.generation import Generated, generate

WARM_UP = 2  # requests that are not counted
ANSWER_S = 600.0  # a step of a trillion parameters at the end of a long queue
CUT = "the measurement was cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one server showed at one concurrency. `seconds`: while it was asked. `idle`: it would have counted
    rounds, and did not. `past_end`: which share of the counted tokens lies past the model's own end; None
    where the mark is not known."""

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
    cold = read_counters(target) if concurrency > 1 else None
    warm = [ask(target, hello, plan) for _ in range(WARM_UP)]
    refuse_dead(target, warm, 0)
    before = read_counters(target)
    questions = plan.questions[: number or plan.most]
    if concurrency > 1 and sums_alone(warm, cold, before, plan.drafts):
        scarce = too_few_blocks(concurrency, len(questions), len(plan.questions))
        if scarce:
            talk.say(f"accept: {scarce}")
    blocks: list[list[Answered]] = []
    seconds = 0.0
    size = block_size(concurrency)
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="accept")
    try:
        for at in range(0, len(questions), size):
            block, took_s = ask_block(target, questions[at : at + size], plan, pool, concurrency, at)
            refuse_dead(target, [each.generated for each in block], sum(map(len, blocks)) + len(block) - 1)
            blocks.append(block)
            seconds += took_s
            answers = [each for block in blocks for each in block]
            found = acceptance_of(tallies_of(answers)) if plan.drafts else None
            enough = decided(answers, found, plan.drafts, plan.margin)
            if number is None and len(blocks) >= FEWEST_BLOCKS and enough:
                break
            talk.say(f"accept: {len(answers)} answers, {told(answers, found)}")
    except BaseException:
        if any(not each.generated.error for block in blocks for each in block):
            keep(concluded(target.engine, blocks, plan, concurrency, seconds, before, CUT))
        raise
    finally:  # nobody waits for answers of a server that is about to be ended
        pool.shutdown(wait=False, cancel_futures=True)
    measured = concluded(target.engine, blocks, plan, concurrency, seconds, before, read_counters(target))
    keep(measured)
    return measured


def ask_block(
    target: Target,
    questions: Sequence[Question],
    plan: Plan,
    pool: ThreadPoolExecutor,
    concurrency: int,
    number: int,
) -> tuple[list[Answered], float]:
    """(answers, seconds while the server was asked, its counters aside).

    With one request at a time each has the server's counters to itself, else the block has.
    """
    if concurrency > 1:
        before = read_counters(target)
        began_s = time.monotonic()
        everyone = list(pool.map(lambda question: ask(target, question, plan), questions))
        seconds = time.monotonic() - began_s
        shared = counted(before, read_counters(target), plan.drafts)
        found = [
            answered(q, g, None, drafts=plan.drafts, ends=plan.ends)
            for q, g in zip(questions, everyone, strict=True)
        ]
        if shared is not None and found and all(each.tally is None for each in found):
            found = shared_out(found, Block(number=number, answers=len(found), tally=shared))
        return found, seconds
    found, seconds = [], 0.0
    for question in questions:
        before = read_counters(target) if plan.drafts else None
        began_s = time.monotonic()
        generated = ask(target, question, plan)
        seconds += time.monotonic() - began_s
        after = read_counters(target) if plan.drafts and generated.rounds is None else None
        sums = counted(before, after, plan.drafts)
        found.append(answered(question, generated, sums, drafts=plan.drafts, ends=plan.ends))
        if generated.lost:
            break
    return found, seconds


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


def concluded(
    engine: str,
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
    acceptance = acceptance_of(tallies_of(good))
    source, why = source_of(engine, good, after) if plan.drafts else (Source.NONE, "")
    if source is not Source.NONE and acceptance is None:
        why = no_whole_round(good, plan.drafts)
    return Measurement(
        concurrency=concurrency,
        answers=good,
        seconds=seconds,
        source=source,
        why_none=why,
        idle=source is Source.NONE and is_idle(engine, before, after, plan.drafts),
        acceptance=acceptance,
        failed=failed,
        past_end=past_end(good) if plan.ends else None,
    )
