"""One experiment: up, watch, probe, down, and its outcome; always cleaned, whatever happens in between.

It never chooses what to try next, never prints and never writes the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shakedown.core import (
    Ending,
    Engine,
    Evidence,
    Gap,
    Host,
    Identity,
    Judgement,
    Launch,
    Missing,
    Phase,
    Run,
    Verdict,
)
from shakedown.errors import EnvironmentProblem, ShakedownError
from shakedown.launch import start
from shakedown.probe import CanaryReport, Target
from shakedown.trial.asking import STEP_S, Asking
from shakedown.trial.letting_go import end_surely, held_interrupts, keep, with_ending, with_evidence
from shakedown.trial.marks import Stated
from shakedown.trial.passing import PassLine, PassPhase
from shakedown.trial.seeking import Elsewhere, SeekingAsking
from shakedown.watch import Assessment, Limits, State, Watcher

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
    `gaps`: when its machine could not be seen. `elsewhere`: how to find it where it listens unasked.
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
    elsewhere: Elsewhere | None = None
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
    `KeyboardInterrupt` through after the clean-up. What fails after the start is told in the judgement.
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
        try:
            judgement = observe(host, run, subject, watcher, look_on)
        except EnvironmentProblem as problem:
            judgement = out_of_sight(watcher, problem)
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
            judgement = with_evidence(judgement, look_after(subject.look_after, failed))
        if subject.keep and judgement.serves:
            why_not = keep(host, run, at_s=host.clock_s() - run.started_s)
            judgement = with_evidence(judgement, why_not)
            kept = not why_not
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


def look_after(look: Callable[[Failed], tuple[Evidence, ...]], failed: Failed) -> tuple[Evidence, ...]:
    """What else there is to see of it; a machine that is out of reach by now takes no verdict along."""
    try:
        return look(failed)
    except ShakedownError as problem:
        return (Evidence(kind="not read", text=f"what is left of it: {problem.message}", at_s=failed.now_s),)


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
    asking = asking or asking_of(host, run, subject)
    passing = PassLine(subject.passed_log) if subject.passed_log else None
    getting_past = PassPhase(subject.past) if subject.past else None
    try:
        while True:
            assessment = watcher.step()
            seen = assessment.judgement
            if seen is not None and (seen := asking.doubt(seen, assessment, watcher)) is None:
                watcher.take_back()
                assessment = replace(assessment, judgement=None, state=State.SUSPECT)
            look_on(assessment)
            if passing is not None and (judgement := passing.step(assessment)) is not None:
                return judgement
            if seen is not None:
                return joined(seen, asking.report or asking.early)
            if (judgement := asking.step(assessment, watcher)) is not None:
                return explained(judgement, subject.wrong_because)
            if getting_past is not None and (judgement := getting_past.step(assessment)) is not None:
                return judgement
            if subject.deadline_s is not None and assessment.now_s >= subject.deadline_s:
                return joined(watcher.cut(f"cut by the deadline of {subject.deadline_s:.0f} s"), asking.early)
            time.sleep(STEP_S)
    finally:
        watcher.mark_signal()
        asking.abandon()


def asking_of(host: Host, run: Run, subject: Subject) -> Asking:
    def clock() -> float:
        return host.clock_s() - run.started_s

    def processes() -> tuple[Identity, ...]:
        found = host.processes(run)
        samples = () if isinstance(found, Missing) else found
        return tuple(Identity(pid=it.pid, started_ticks=it.started_ticks) for it in samples)

    known = (subject.target, subject.ready_log, clock, subject.stated)
    if subject.elsewhere is None:
        return Asking(*known, gaps=subject.gaps)
    return SeekingAsking(*known, gaps=subject.gaps, elsewhere=subject.elsewhere, processes=processes)


def out_of_sight(watcher: Watcher, problem: EnvironmentProblem) -> Judgement:
    """Its machine cannot be reached any more: what was seen until then is all there is."""
    return replace(
        watcher.cut(problem.message),
        verdict=Verdict.UNDECIDED,
        fingerprint="out of sight",
        would_change="; ".join(problem.hints) or "its machine within reach",
        environment=True,
    )


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
    return with_evidence(judgement, told)
