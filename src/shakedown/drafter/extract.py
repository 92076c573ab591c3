"""Samples through a capture backend into a folder of states: what it will cost, then the doing of it.

It never chooses a backend and never captures what is there already.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shakedown.drafter.capture import Capture, Request, read_requests, refuse_not_finite
from shakedown.drafter.saying import Say, seldom
from shakedown.drafter.shards import BYTES_PER_STATE, Document
from shakedown.drafter.states import StatesWriter
from shakedown.drafter.target import Target
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError

BYTES_PER_TOKEN = 4 + 1  # its id and its mask
BYTES_PER_ROW = 8  # its number
BYTES_PER_DOCUMENT = 2 * 8  # its start and its sample
LOOKED_AT = 8  # documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be captured, in numbers."""

    samples: int
    tokens: int
    last_rows: int
    state_bytes: int
    longest: int

    def line(self) -> str:
        return (
            f"{self.samples:,} samples, {self.tokens:,} tokens, {self.last_rows:,} of them teach:"
            f" {told_bytes(self.state_bytes)} of states"
        )


@dataclass(slots=True)
class Pace:
    """Windows as they were captured. The first one pays for what a backend does once."""

    windows: list[tuple[int, float]] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        counted = self.windows[1:] or self.windows
        seconds = sum(seconds for _, seconds in counted)
        return sum(tokens for tokens, _ in counted) / seconds if seconds else 0.0

    def with_window(self, tokens: int, seconds: float) -> Pace:
        return Pace(windows=[*self.windows, (tokens, seconds)])


def plan_extraction(samples: Path, target: Target, done: Collection[int] = ()) -> Plan:
    """Reads every sample. Raises UsageError naming file and line of one that does not fit the target."""
    hidden, aux = target.hidden_size, len(target.aux_inputs_of)
    count = tokens = rows = longest = 0
    for request in read_requests(samples):
        refuse_unfit_request(request, target)
        if request.sample not in done:
            count += 1
            tokens += request.length
            rows += len(request.rows)
            longest = max(longest, request.length)
    return Plan(
        samples=count,
        tokens=tokens,
        last_rows=rows,
        state_bytes=tokens * (aux * hidden * BYTES_PER_STATE + BYTES_PER_TOKEN)
        + rows * (hidden * BYTES_PER_STATE + BYTES_PER_ROW)
        + count * BYTES_PER_DOCUMENT,
        longest=longest,
    )


def refuse_unfit_request(request: Request, target: Target) -> None:
    largest = int(request.tokens.max())
    if largest >= target.vocab_size:
        raise UsageError(
            f"{request.place}: token {largest} is beyond the target's vocabulary of {target.vocab_size}",
            f"these samples were made with another model's tokenizer than that of {target.path}",
        )
    if request.length > target.max_positions:
        raise UsageError(
            f"{request.place}: {request.length} tokens are more than the {target.max_positions} positions"
            f" of {target.path}",
            "make shorter samples: shakedown draft synth --max-tokens",
        )


def refuse_full(plan: Plan, folder: Path) -> int:
    """The free bytes where `folder` is or will be. Raises EnvironmentProblem where the states do not fit."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    if plan.state_bytes > free:
        raise EnvironmentProblem(
            f"{plan.line()}, but {there} has {told_bytes(free)} free",
            "give an --out on a larger disk, or fewer samples",
        )
    return free


def extract(
    capture: Capture,
    requests: Iterable[Request],
    writer: StatesWriter,
    plan: Plan,
    say: Say,
    look: Callable[[Sequence[Document]], None] = lambda documents: None,
) -> Pace:
    """Captures `requests` into the writer, window after window; says rate and time left as they are learnt.

    `look` is shown the first few documents, and may raise. Raises DataProblem for states that are no numbers,
    EnvironmentProblem where a shard cannot be written.
    """
    pace, left, speak = Pace(), plan.tokens, seldom(say)
    first: list[Document] = []
    for window in windows(requests, capture):
        by_sample = {request.sample: request for request in window}
        started_s = time.monotonic()
        tokens = 0
        for document in capture.capture(window):
            refuse_not_finite(document, by_sample.pop(document.sample))
            if len(first) < LOOKED_AT:
                first.append(document)
                if len(first) in (LOOKED_AT, plan.samples):
                    look(first)
            writer.add(document)
            tokens += len(document.tokens)
            speak(progress(plan, left - tokens, pace.with_window(tokens, time.monotonic() - started_s)))
        if by_sample:
            lost = next(iter(by_sample.values()))
            raise DataProblem(
                f"{capture.backend.name} gave no states for {len(by_sample)} samples: {lost.place}"
            )
        left -= tokens
        pace.windows.append((tokens, time.monotonic() - started_s))
        if len(pace.windows) <= 2:
            say(progress(plan, left, pace))
    return pace


def progress(plan: Plan, left: int, pace: Pace) -> str:
    rate = pace.tokens_per_s
    hours = left / rate / 3600 if rate else 0.0
    return f"{plan.tokens - left:,} of {plan.tokens:,} tokens, {rate:,.0f} tokens/s, {told_hours(hours)} left"


def windows(requests: Iterable[Request], capture: Capture) -> Iterator[list[Request]]:
    """Requests in the order of the file, as many at once as the backend likes; two small windows first, from
    which its rate is learnt."""
    window: list[Request] = []
    tokens = number = 0
    for request in requests:
        window.append(request)
        tokens += request.length
        if tokens >= (capture.first_tokens if number < 2 else capture.window_tokens):
            yield window
            window, tokens, number = [], 0, number + 1
    if window:
        yield window


def told_bytes(count: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"


def told_hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"
