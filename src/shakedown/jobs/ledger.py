"""`shakedown runs` and `show`: the ledger, read."""

from __future__ import annotations

from pathlib import Path

from shakedown.core import SearchRecord
from shakedown.jobs.follow import follow
from shakedown.jobs.result import ExitCode, JobResult, Talk
from shakedown.jobs.run import result_of
from shakedown.ledger import Ledger
from shakedown.report import isolate_document, run_document, runs_document, runs_table, show


def runs_job(path: Path | None, limit: int) -> JobResult:
    with Ledger.open(path) as ledger:
        records = ledger.runs(limit)
    lines = runs_table(records) if records else ["nothing yet: shakedown run -- CMD writes the first entry"]
    return JobResult(document=runs_document(records), lines=lines, exit_code=ExitCode.GOOD)


def show_job(path: Path | None, entry_id: str) -> JobResult:
    with Ledger.open(path) as ledger:
        record = ledger.find(entry_id)
        if isinstance(record, SearchRecord):
            trials = ledger.trials_of(record.id)
            document, lines = isolate_document(record, trials, command="show"), show(record, trials)
        else:
            document, lines = run_document(record, command="show"), show(record)
    return JobResult(document=document, lines=lines, exit_code=ExitCode.GOOD)


def follow_job(path: Path | None, entry_id: str, talk: Talk) -> JobResult:
    """What `run` hands back, for a run that another process watches."""
    return result_of(follow(path, entry_id, talk), command="show")
