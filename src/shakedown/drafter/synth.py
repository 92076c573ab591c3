"""Synthesis: many conversations with the target at once, each kept as soon as it is whole.

It never starts a server and never prints; who listens is told.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

from shakedown.drafter.conversation import Conversation, Interview, LeftOut, Reason
from shakedown.drafter.journal import Journal
from shakedown.drafter.prompts import Prompt
from shakedown.drafter.transport import Address, Client, ServerLost
from shakedown.errors import DataProblem

TELL_EVERY_S = 10.0
HOPELESS = 8  # conversations of which nothing could be kept: the next ten thousand would go the same way
AHEAD = 2  # conversations submitted for each that runs: a slot is never empty while results are written

Work = tuple[int, Prompt | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a synthesis is. `made` counts every token of this run, also of what was left out."""

    done: int
    done_before: int
    wanted: int
    made: int
    seconds: float
    left_out: Mapping[Reason, int]

    @property
    def tokens_per_s(self) -> float:
        return self.made / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """How long the rest takes at the pace so far; None before anything is done."""
        now = self.done - self.done_before
        return self.seconds * (self.wanted - self.done) / now if now else None


class Listener(Protocol):
    def standing(self, standing: Standing) -> None: ...
    def first_sample(self, shown: str) -> None: ...
    def left_out(self, number: int, left_out: LeftOut) -> None: ...


class Asked:
    """What is still to be asked, in order, while answers come in.

    Prompts that are fewer than `wanted` are asked again. Where the target writes its own, conversations that
    are left out are made up for by others, as many again as were wanted at most.
    """

    def __init__(self, prompts: list[Prompt] | None, wanted: int, journal: Journal) -> None:
        self.wanted = wanted
        self._prompts, self._journal = prompts, journal
        self._over_before, self._given = len(journal.done), 0
        self._missing = (number for number in range(wanted) if number not in journal.done)
        self._others = (number for number in range(wanted, 2 * wanted) if number not in journal.done)

    @property
    def held(self) -> int:
        """Conversations that count towards `wanted`."""
        if self._prompts is None:
            return min(self._journal.kept, self.wanted)
        return len(self._journal.done & set(range(self.wanted)))

    @property
    def left(self) -> int:
        """Conversations that are lacking and may still be asked for."""
        numbers = range(self.wanted if self._prompts is not None else 2 * self.wanted)
        return min(self.wanted - self.held, len(set(numbers) - self._journal.done))

    def take(self, most: int) -> list[Work]:
        """So many at most, to be asked now; none while what is under way may yet be enough."""
        if self._prompts is not None:
            prompts = self._prompts
            return [(number, prompts[number % len(prompts)]) for number in islice(self._missing, most)]
        under_way = self._given - (len(self._journal.done) - self._over_before)
        lacking = max(0, self.wanted - self.held - under_way)
        numbers = list(islice(chain(self._missing, self._others), min(most, lacking)))
        self._given += len(numbers)
        return [(number, None) for number in numbers]


def synthesise(
    interview: Interview,
    address: Address,
    journal: Journal,
    asked: Asked,
    *,
    concurrency: int,
    about: Mapping[str, Any],
    listener: Listener,
) -> Standing:
    """Holds the conversations, `concurrency` at a time. Raises ServerLost, HostProblem, DataProblem."""
    left_out: Counter[Reason] = Counter()
    made, shown, began_s, done_before = 0, False, time.monotonic(), asked.held

    def standing() -> Standing:
        return Standing(
            done=asked.held,
            done_before=done_before,
            wanted=asked.wanted,
            made=made,
            seconds=time.monotonic() - began_s,
            left_out=left_out,
        )

    told_s = began_s
    with Pool(interview, address, concurrency) as pool:
        for finished in pool.hold(asked):
            if time.monotonic() - told_s >= TELL_EVERY_S:
                told_s = time.monotonic()
                listener.standing(standing())
            if finished is None:
                continue
            number, conversation = finished
            made += conversation.made
            samples = journal.write(number, conversation, about)
            if samples and not shown:
                listener.first_sample(interview.template.show(samples[0].token_ids, samples[0].mask))
                shown = True
            if conversation.left_out is not None:
                reason = conversation.left_out.reason
                left_out[reason] += 1
                if left_out[reason] == 1:
                    listener.left_out(number, conversation.left_out)
                refuse_hopeless(journal.kept, left_out)  # also by the starts before this one
    return standing()


def refuse_hopeless(kept: int, left_out: Counter[Reason]) -> None:
    """Raises DataProblem where nothing was ever kept in this folder: it is no accident then.

    `left_out` are those of this start.
    """
    if kept == 0 and left_out.total() >= HOPELESS:
        reason, count = left_out.most_common(1)[0]
        raise DataProblem(
            f"none of the first {left_out.total()} answers can be kept: {count} of them {reason.value}",
            *({HINTS[reason]} if reason in HINTS else ()),
            "see left-out.jsonl for each",
        )


HINTS = {
    Reason.TRUNCATED: "raise --max-tokens, or keep them with --keep-truncated",
    Reason.TOKENIZER: "--target must be the very model that the server serves",
    Reason.TEMPLATE: "if it is the reasoning: --reasoning drop, or a server that tells tokens (vLLM, SGLang)",
    Reason.USER_TURN: "this model writes no user turns; give --prompts",
}


class Pool:
    """Threads that hold conversations, a kept connection each; leaving it cuts what still runs."""

    def __init__(self, interview: Interview, address: Address, concurrency: int) -> None:
        self._interview, self._address = interview, address
        self._stopped = threading.Event()
        self._own = threading.local()
        self._clients: list[Client] = []
        self._window = concurrency * AHEAD
        self._threads = ThreadPoolExecutor(concurrency, "shakedown-synth", self._begin)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients:
            client.cut()
        self._threads.shutdown()
        for client in self._clients:
            client.close()

    def hold(self, asked: Asked) -> Iterator[tuple[int, Conversation] | None]:
        """Each conversation as it ends; None now and then while all are under way.

        More are asked for only when those that ended were handed out: what was kept of them tells how many.
        """
        pending: set[Future[tuple[int, Conversation]]] = set()
        while True:
            pending |= set(map(self._submit, asked.take(self._window - len(pending))))
            if not pending:
                return
            ended, pending = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
            if not ended:
                yield None
            for future in ended:
                yield future.result()

    def _submit(self, work: Work) -> Future[tuple[int, Conversation]]:
        return self._threads.submit(self._hold, *work)

    def _begin(self) -> None:
        self._own.client = Client(self._address, self._stopped)
        self._clients.append(self._own.client)

    def _hold(self, number: int, begin: Prompt | None) -> tuple[int, Conversation]:
        if self._stopped.is_set():
            raise ServerLost("stopped")
        return number, self._interview.hold(self._own.client, begin)
