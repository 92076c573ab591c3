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
    Host,
    Judgement,
    Launch,
    Phase,
    Run,
)
from shakedown.launch import start, stop
from shakedown.probe import CanaryReport, Target
from shakedown.trial.asking import STEP_S, Asking
from shakedown.watch import Assessment, Limits, Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What one trial launches and how it is watched.

    `target` None: nothing can be asked of it. `ready_log`: a line that means ready, for any server.
    """

    title: str
    launch: Launch
    engine: Engine
    port: int | None
    target: Target | None
    limits: Limits = field(default_factory=Limits)
    ready_log: str | None = None
    deadline_s: float | None = None
    keep: bool = False


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
    run = start(host, subject.launch, folder, port=subject.port)
    judgement: Judgement | None = None
    kept = False
    ending = None
    try:
        watcher = Watcher(host, run, subject.engine, limits=subject.limits, port=subject.port)
        judgement = observe(host, run, subject, watcher, look_on)
        if subject.keep and judgement.serves:
            host.disarm(run)
            kept = True
    finally:
        if not kept:
            ending = stop(host, run, judgement)
    return Result(
        judgement=with_ending(judgement, ending, host.clock_s() - began_s),
        seconds=host.clock_s() - began_s,
        ending=ending,
        silences=watcher.silences if judgement.serves else {},
        run=run if kept else None,
    )


def observe(
    host: Host, run: Run, subject: Subject, watcher: Watcher, look_on: Callable[[Assessment], None]
) -> Judgement:
    """Watches and asks, side by side, until one of the two knows."""
    asking = Asking(subject.target, subject.ready_log, lambda: host.clock_s() - run.started_s)
    try:
        while True:
            assessment = watcher.step()
            look_on(assessment)
            if assessment.judgement is not None:
                return joined(assessment.judgement, asking.report)
            if (judgement := asking.step(assessment, watcher)) is not None:
                return judgement
            if subject.deadline_s is not None and assessment.now_s >= subject.deadline_s:
                return watcher.cut(f"cut by the deadline of {subject.deadline_s:.0f} s")
            time.sleep(STEP_S)
    finally:
        watcher.mark_signal()
        asking.abandon()


def joined(seen: Judgement, report: CanaryReport | None) -> Judgement:
    """What the watch saw, with what had been asked and answered when it happened."""
    return replace(seen, evidence=(*seen.evidence, *report.evidence)) if report else seen


def with_ending(judgement: Judgement, ending: Ending | None, at_s: float) -> Judgement:
    """A process that would not die is shouted, in the verdict itself."""
    if ending is None or not ending.left:
        return judgement
    names = ", ".join(f"{process.name} (pid {process.pid}, state {process.state})" for process in ending.left)
    shout = Evidence(kind="still alive", text=f"could not be ended: {names}", at_s=at_s)
    return replace(judgement, evidence=(*judgement.evidence, shout))
