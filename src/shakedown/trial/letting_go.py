"""How a trial lets go of its launch: kept, or ended for sure, and what is told of that beside the verdict.

It never watches, and changes a verdict only where the launch was not recorded.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from shakedown.core import Ending, Evidence, Host, Judgement, Run, Verdict
from shakedown.errors import ShakedownError
from shakedown.launch import stop


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Ctrl-C, TERM and HUP take effect at the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # they only ever strike the main thread
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if callable(handler)}  # nohup's stay
    for number in before:
        signal.signal(number, lambda n, _: came.append(n))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            raise KeyboardInterrupt


def keep(host: Host, run: Run, *, at_s: float) -> tuple[Evidence, ...]:
    """() where the run goes on by itself now, else why it does not."""
    try:
        host.disarm(run)
    except ShakedownError as problem:
        return (Evidence(kind="not kept", text=problem.message, at_s=at_s),)
    return ()


def end_surely(host: Host, run: Run, judgement: Judgement | None) -> Ending:
    """Ends the run; a Ctrl-C meanwhile ends the patience with it, not the clean-up.

    A machine out of reach is told in the ending: raised, it would take the verdict's or the Ctrl-C's place.
    """
    began_s = time.monotonic()
    try:
        return stop(host, run, judgement)
    except KeyboardInterrupt:
        with held_interrupts(), suppress(ShakedownError):
            stop(host, run, None)
        raise
    except ShakedownError as problem:
        return not_ended("; ".join((problem.message, *problem.hints)), time.monotonic() - began_s)


def not_ended(why: str, seconds: float) -> Ending:
    return Ending(seconds=seconds, left=(), swept_shm=(), forced=False, not_ended=why)


def with_ending(judgement: Judgement, ending: Ending | None, at_s: float) -> Judgement:
    """A process that would not die is shouted, in the verdict itself; a failure half recorded is none."""
    if ending is not None and ending.problem and not judgement.serves:
        judgement = replace(
            judgement,
            verdict=Verdict.UNDECIDED,
            cause=f"the launch was not recorded to its end: {ending.problem}",
            fingerprint="not recorded",
            would_change="room on the disk of the run folder",
            environment=True,
        )
    return with_evidence(judgement, left_behind(ending, at_s)) if ending is not None else judgement


def left_behind(ending: Ending, at_s: float) -> Iterator[Evidence]:
    if ending.not_ended:
        text = f"not seen to end, it may still be alive: {ending.not_ended}"
        yield Evidence(kind="still alive", text=text, at_s=at_s)
    if ending.left:
        names = ", ".join(f"{each.name} (pid {each.pid}, state {each.state})" for each in ending.left)
        yield Evidence(kind="still alive", text=f"could not be ended: {names}", at_s=at_s)
    if ending.gpu_left_bytes:
        held_gib = ending.gpu_left_bytes / 2**30
        text = f"{held_gib:.1f} GiB still counted for ended processes after {ending.gpu_back_s:.0f} s"
        yield Evidence(kind="GPU memory", text=text, at_s=at_s)
    elif ending.gpu_back_s is not None:
        text = f"given back {ending.gpu_back_s:.2f} s after the last process ended"
        yield Evidence(kind="GPU memory", text=text, at_s=at_s)


def with_evidence(judgement: Judgement, more: Iterable[Evidence]) -> Judgement:
    return replace(judgement, evidence=(*judgement.evidence, *more))
