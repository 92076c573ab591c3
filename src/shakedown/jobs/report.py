"""`shakedown report`: one run or search in a form for others, or two of them side by side.

It reads the ledger and the two ends of logs; it writes only the file it is told to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from shakedown.core import SearchRecord, TrialRecord
from shakedown.errors import UsageError
from shakedown.host.segments import end_of, segments_in
from shakedown.jobs.result import ExitCode, JobResult
from shakedown.ledger import Ledger
from shakedown.report import isolate_document, isolate_report, run_document, run_report
from shakedown.report.compare import Side, compare, compare_document, compare_markdown, compare_text
from shakedown.report.excerpt import MOST_BYTES, LogExcerpt
from shakedown.report.forms import Form, failing_trial, issue_body
from shakedown.report.html import isolate_page, run_page
from shakedown.report.junit import junit_xml

LOG_NAME = "launch.log"


class ReportFormat(StrEnum):
    MD = "md"
    JSON = "json"
    HTML = "html"
    JUNIT = "junit"
    VLLM_ISSUE = "vllm-issue"
    SGLANG_ISSUE = "sglang-issue"


FORMS = {ReportFormat.VLLM_ISSUE: Form.VLLM, ReportFormat.SGLANG_ISSUE: Form.SGLANG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A record with the trials that belong to it."""

    record: TrialRecord | SearchRecord
    trials: tuple[TrialRecord, ...]

    @classmethod
    def of(cls, ledger: Ledger, entry_id: str) -> Self:
        record = ledger.find(entry_id)
        trials = ledger.trials_of(record.id) if isinstance(record, SearchRecord) else ()
        return cls(record=record, trials=trials)


def report_job(path: Path | None, ids: Sequence[str], chosen: str | None, output: Path | None) -> JobResult:
    """One ID, or two to be compared. Raises `UsageError` for what does not fit together."""
    kind = ReportFormat(chosen) if chosen else None
    if len(ids) > 2:
        raise UsageError(f"{len(ids)} IDs were given: a report is of one, or sets two side by side")
    with Ledger.open(path) as ledger:
        entries = [Entry.of(ledger, entry_id) for entry_id in ids]
    if len(entries) == 2:
        document, text = _side_by_side(entries[0], entries[1], kind)
    else:
        document, text = _document(entries[0]), _text(entries[0], kind or ReportFormat.MD)
    if kind is ReportFormat.JSON:
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if output is None:
        return JobResult(
            document=document, lines=text.removesuffix("\n").split("\n"), exit_code=ExitCode.GOOD
        )
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"{output} cannot be written: {problem.strerror}") from problem
    return JobResult(document=document, lines=[f"wrote {output}"], exit_code=ExitCode.GOOD)


def _document(entry: Entry) -> dict[str, Any]:
    if isinstance(entry.record, SearchRecord):
        return isolate_document(entry.record, entry.trials, command="report")
    return run_document(entry.record, command="report")


def _text(entry: Entry, kind: ReportFormat) -> str:
    record, trials = entry.record, entry.trials
    if kind in FORMS:
        form = FORMS[kind]
        if record.engine in tuple(Form) and record.engine != form:
            right = f"--format {record.engine}-issue"
            raise UsageError(f"{record.id} is a launch of {record.engine}, not of {form.value}", right)
        failing = failing_trial(record, trials)
        return issue_body(form, record, trials, read_log(failing) if failing else None)
    if kind is ReportFormat.JUNIT:
        return junit_xml(record, trials)
    if isinstance(record, SearchRecord):
        if kind is ReportFormat.HTML:
            logs = {trial.id: log for trial in trials if (log := read_log(trial))}
            return isolate_page(record, trials, logs)
        return isolate_report(record, trials)
    return run_page(record, read_log(record)) if kind is ReportFormat.HTML else run_report(record)


def _side_by_side(left: Entry, right: Entry, kind: ReportFormat | None) -> tuple[dict[str, Any], str]:
    if kind not in (None, ReportFormat.MD, ReportFormat.JSON):
        raise UsageError(
            f"two IDs side by side come as md or json, not as {kind}", "leave --format out: text"
        )
    sides = []
    for entry in (left, right):
        first = entry.trials[0] if entry.trials else entry.record
        log = read_log(first) if isinstance(first, TrialRecord) else None
        sides.append(Side.of(entry.record, entry.trials, log.resolved if log else ()))
    found = compare(*sides)
    text = compare_markdown(found) if kind else "\n".join(compare_text(found)) + "\n"
    return compare_document(found), text


def read_log(trial: TrialRecord) -> LogExcerpt | None:
    """The two ends of a trial's log, whose middle may be gone; None where it cannot be read."""
    try:
        with (trial.folder / LOG_NAME).open("rb") as file:
            start = file.read(MOST_BYTES)
        size = end_of(trial.folder)
        if size <= len(start):
            return LogExcerpt.of(start, b"", len(start))
        last_two = segments_in(trial.folder)[-2:]  # the last one may only just have begun
        end = b"".join(_end_of_file(path) for _, path in last_two)[-MOST_BYTES:]
        return LogExcerpt.of(start, end, size)
    except OSError:
        return None


def _end_of_file(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - MOST_BYTES, 0))
        return file.read(MOST_BYTES)
