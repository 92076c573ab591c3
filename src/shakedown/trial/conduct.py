"""One experiment: up, watch, probe, down, and its outcome; always cleaned, whatever happens in between.

It never chooses what to try next, never prints and never writes the ledger.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from shakedown.core import (
    Ending,
    Engine,
    Evidence,
    Gap,
    Host,
    Judgement,
    Launch,
    Phase,
    Run,
    Verdict,
)
from shakedown.launch import start, stop
from shakedown.probe import CanaryReport, Target
from shakedown.trial.asking import STEP_S, Asking
from shakedown.trial.marks import Stated
from shakedown.trial.passing import PassLine, PassPhase
from shakedown.watch import Assessment, Limits, Watcher

LOOKED_AFTER = (Verdict.HUNG, Verdict.CRASHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A launch that failed and still stands. `pids`: all it ever had; `now_s`: since its start."""

    host: Host
    run: Run
    judgement: Judgement
    pids: tuple[int, ...]
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What one trial launches and how it is watched.

    `target` None: nothing can be asked of it. `ready_log`: a line that means ready, for any server.
    `passed_log`: a line by which a program that need not serve says that it has passed.
    `wrong_because` is what explains wrong answers before anything was started. `detach`: if we are killed,
    the launch goes on. `past`: once it has been in this phase or a later one for a while, it is ended: that
    much was asked. `work` is done while it serves, before it is ended; what it raises goes through.
    `gaps`: when its machine could not be seen.
    `look_after` gathers what else there is to see of a failed launch before it is ended.
    """

    title: str
    launch: Launch
    engine: Engine
    port: int | None
    target: Target | None
    limits: Limits = field(default_factory=Limits)
    ready_log: str | None = None
    passed_log: str | None = None
    deadline_s: float | None = None
    keep: bool = False
    detach: bool = False
    wrong_because: str = ""
    past: Phase | None = None
    work: Callable[[], None] | None = None
    gaps: Callable[[], tuple[Gap, ...]] = tuple
    stated: Stated = field(default_factory=Stated)
    look_after: Callable[[Failed], tuple[Evidence, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a trial showed and left. `seconds` from start to cleaned; `run` is set where it was kept."""

    judgement: Judgement
    seconds: float
    ending: Ending | None
    silences: Mapping[Phase, float]
    run: Run | None = None


def run_trial(host: Host, subject: Subject, folder: Path, look_on: Callable[[Assessment], None]) -> Result:
    """Starts the launch, watches and probes it to a verdict, ends it.

    Raises `PortHeld`, `HostProblem` or `UsageError` where nothing could be started, and lets
    `KeyboardInterrupt` through after the clean-up.
    """
    began_s = host.clock_s()
    run: Run | None = None
    judgement: Judgement | None = None
    kept = False
    ending = None
    try:
        with held_interrupts():  # one that strikes in mid-start would find nothing to end yet
            run = start(host, subject.launch, folder, port=subject.port)
        if subject.detach:
            host.disarm(run)
        watcher = Watcher(host, run, subject.engine, limits=subject.limits, port=subject.port)
        judgement = observe(host, run, subject, watcher, look_on)
        judgement = with_gaps(judgement, subject.gaps(), run.started_s)
        judgement = replace(judgement, loading=watcher.loading)
        if subject.work is not None and judgement.serves:
            subject.work()
        if subject.look_after is not None and judgement.verdict in LOOKED_AFTER:
            failed = Failed(
                host=host,
                run=run,
                judgement=judgement,
                pids=watcher.pids,
                now_s=host.clock_s() - run.started_s,
            )
            seen = subject.look_after(failed)
            judgement = replace(judgement, evidence=(*judgement.evidence, *seen))
        if subject.keep and judgement.serves:
            host.disarm(run)
            kept = True
    finally:
        if run is not None and not kept:
            ending = end_surely(host, run, judgement)
    return Result(
        judgement=with_ending(judgement, ending, host.clock_s() - began_s),
        seconds=host.clock_s() - began_s,
        ending=ending,
        silences=watcher.silences if judgement.serves else {},
        run=run if kept else None,
    )


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


def end_surely(host: Host, run: Run, judgement: Judgement | None) -> Ending:
    """Ends the run; a Ctrl-C meanwhile ends the patience with it, not the clean-up."""
    try:
        return stop(host, run, judgement)
    except KeyboardInterrupt:
        with held_interrupts():
            stop(host, run, None)
        raise


def observe(
    host: Host,
    run: Run,
    subject: Subject,
    watcher: Watcher,
    look_on: Callable[[Assessment], None],
    *,
    asking: Asking | None = None,
) -> Judgement:
    """Watches and asks, side by side, until one of the two knows."""
    asking = asking or Asking(
        subject.target,
        subject.ready_log,
        lambda: host.clock_s() - run.started_s,
        subject.stated,
        gaps=subject.gaps,
    )
    passing = PassLine(subject.passed_log) if subject.passed_log else None
    getting_past = PassPhase(subject.past) if subject.past else None
    try:
        while True:
            assessment = watcher.step()
            look_on(assessment)
            if passing is not None and (judgement := passing.step(assessment)) is not None:
                return judgement
            if assessment.judgement is not None:
                return joined(assessment.judgement, asking.report)
            if (judgement := asking.step(assessment, watcher)) is not None:
                return explained(judgement, subject.wrong_because)
            if getting_past is not None and (judgement := getting_past.step(assessment)) is not None:
                return judgement
            if subject.deadline_s is not None and assessment.now_s >= subject.deadline_s:
                return watcher.cut(f"cut by the deadline of {subject.deadline_s:.0f} s")
            time.sleep(STEP_S)
    finally:
        watcher.mark_signal()
        asking.abandon()


def explained(judgement: Judgement, wrong_because: str) -> Judgement:
    """The setting that makes answers wrong is a nearer cause than what they look like."""
    if judgement.verdict is not Verdict.WRONG or not wrong_because:
        return judgement
    return replace(judgement, cause=f"{wrong_because}; {judgement.cause}")


def joined(seen: Judgement, report: CanaryReport | None) -> Judgement:
    """What the watch saw, with what had been asked and answered when it happened."""
    return replace(seen, evidence=(*seen.evidence, *report.evidence)) if report else seen


def with_gaps(judgement: Judgement, gaps: tuple[Gap, ...], started_s: float) -> Judgement:
    """What was not seen is told, and was no silence: the clock stood still."""
    told = tuple(
        Evidence(
            kind="gap",
            text=f"its machine could not be seen for {gap.seconds:.1f} s, which count for nothing",
            at_s=gap.at_s - started_s,
        )
        for gap in gaps
        if gap.at_s >= started_s
    )
    return replace(judgement, evidence=(*judgement.evidence, *told))


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
    left = tuple(left_behind(ending, at_s)) if ending is not None else ()
    return replace(judgement, evidence=(*judgement.evidence, *left)) if left else judgement


def left_behind(ending: Ending, at_s: float) -> Iterator[Evidence]:
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
