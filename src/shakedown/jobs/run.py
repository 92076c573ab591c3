"""`shakedown run`: one launch, watched, judged, stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from shakedown.core import TrialRecord, Verdict
from shakedown.host.machine import Machine
from shakedown.jobs.machines import machine_at, on
from shakedown.jobs.reading import Reading, describe, read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import ExitCode, JobResult, Talk, exit_code_of
from shakedown.jobs.trials import (
    DETACHED_FACT,
    looking_on,
    noted_variables,
    occasion_of,
    plan_lines,
    subject_of,
)
from shakedown.ledger import Ledger
from shakedown.report import run_document, run_summary
from shakedown.trial import run_recorded


def run_job(request: LaunchRequest, talk: Talk, *, keep: bool) -> JobResult:
    """Launches the command once and says what became of it."""
    with closing(machine_at(request.host, request.via, talk)) as machine:
        request = on(machine, request)
        reading = read_request(request, machine, talk, live=False)
        if request.dry_run:
            lines = plan_lines(reading, request)
            document = {"schema": "shakedown/1", "command": "run", "verdict": None, "dry_run": lines}
            return JobResult(document=document, lines=lines, exit_code=ExitCode.GOOD)
        return result_of(watch(reading, request, talk, machine, keep=keep))


def watch(
    reading: Reading,
    request: LaunchRequest,
    talk: Talk,
    host: Machine,
    *,
    keep: bool,
    detached_as: str | None = None,
    work: Callable[[], None] | None = None,
) -> TrialRecord:
    """One launch from its first entry in the ledger to its last; `detached_as`: its ID, in the background.

    `work` is done while it serves.
    """
    with Ledger.open(request.ledger) as ledger:
        title = describe(reading)
        talk.say(f"run: {title}")
        subject = subject_of(
            reading,
            request,
            ledger,
            title=title,
            deadline_s=request.deadline_s,
            launch=request.launch,
            keep=keep,
        )
        subject = replace(subject, work=work)
        more = ["--keep"] * keep + ["--detach"] * (detached_as is not None)
        occasion = occasion_of(reading, request, noted_variables(reading), *more)
        if detached_as is not None:
            subject = replace(subject, detach=True)
            facts = {**occasion.facts, DETACHED_FACT: "1"}
            occasion = replace(occasion, trial_id=detached_as, facts=facts)
        return run_recorded(ledger, host, subject, occasion, looking_on(talk, title))


def result_of(record: TrialRecord, *, command: str = "run") -> JobResult:
    verdict = record.judgement.verdict if record.judgement else Verdict.UNDECIDED
    return JobResult(
        document=run_document(record, command=command),
        lines=run_summary(record),
        exit_code=exit_code_of(verdict),
    )
