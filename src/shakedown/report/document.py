"""Findings as the objects that `--json` prints: the contract `shakedown/1`.

It never rounds, words or shortens; only untrusted lines are cleaned of what no stream should carry.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from shakedown.core import (
    Judgement,
    Measured,
    PhaseSpan,
    SearchRecord,
    TrialRecord,
)
from shakedown.report.again import next_steps
from shakedown.report.escape import clean, storable
from shakedown.report.loading import load_document

SCHEMA = "shakedown/1"
LONGEST_LINE = 4000

Document = dict[str, Any]


def run_document(record: TrialRecord, *, command: str = "run") -> Document:
    """One launch. `verdict` is null while it is not judged (`state` says why)."""
    head = {"schema": SCHEMA, "command": command}
    more = {"loading": load_document(record), "next": next_steps(record)}
    return whole(head | judged(record.judgement) | _trial_facts(record) | more)


def runs_document(records: Iterable[TrialRecord | SearchRecord]) -> Document:
    """The ledger's list; `verdict` of the whole is null."""
    return whole(
        {"schema": SCHEMA, "command": "runs", "verdict": None, "runs": [_listed(r) for r in records]}
    )


def _listed(record: TrialRecord | SearchRecord) -> Document:
    is_search = isinstance(record, SearchRecord)
    judgement = record.judgement if isinstance(record, TrialRecord) else None
    if isinstance(record, SearchRecord) and record.conclusion:
        judgement = record.conclusion.failing
    return {
        "id": record.id,
        "command": "isolate" if is_search else "run",
        "state": record.state,
        "verdict": judgement.verdict if judgement else None,
        "wait": judgement.wait if judgement else None,
        "phase": judgement.phase if judgement else None,
        "cause": clean(judgement.cause, LONGEST_LINE) if judgement else "",
        "ended": record.conclusion.ended if isinstance(record, SearchRecord) and record.conclusion else None,
        "engine": record.engine,
        "argv": record.argv,
        "started_at": record.started_at,
        "seconds": record.seconds,
        "kept_running": isinstance(record, TrialRecord) and record.kept_running,
    }


def judged(judgement: Judgement | None) -> Document:
    if judgement is None:
        return {"verdict": None}
    suspect = judgement.suspect
    return {
        "verdict": judgement.verdict,
        "wait": judgement.wait,
        "phase": judgement.phase,
        "cause": clean(judgement.cause, LONGEST_LINE),
        "fingerprint": clean(judgement.fingerprint, LONGEST_LINE),
        "exited": judgement.exited,
        "environment": judgement.environment,
        "node": {"name": clean(judgement.node), "rank": judgement.rank} if judgement.node else None,
        "suspect": suspect
        and {
            "pid": suspect.pid,
            "name": clean(suspect.name),
            "frame": clean(suspect.frame),
            "wchan": clean(suspect.wchan),
        },
        "phases": [_phase(span) for span in judgement.phases],
        "evidence": [
            {
                "kind": clean(evidence.kind),
                "text": clean(evidence.text, LONGEST_LINE),
                "at_s": evidence.at_s,
                "pid": evidence.pid,
            }
            for evidence in judgement.evidence
        ],
        "would_change": clean(judgement.would_change, LONGEST_LINE),
        "expectations": [measured_document(each) for each in judgement.measured],
    }


def measured_document(measured: Measured) -> Document:
    """A stated mark; `met` is null where the interval holds the bound, or nothing could be measured."""
    return {
        "mark": measured.expectation.mark,
        "stated": str(measured.expectation),
        "met": measured.met,
        "value": measured.value,
        "low": measured.low if measured.value is not None else None,
        "high": measured.high if measured.value is not None else None,
        "samples": measured.samples,
        "note": clean(measured.note, LONGEST_LINE),
    }


def _phase(span: PhaseSpan) -> Document:
    return {
        "phase": span.phase,
        "rank": span.rank,
        "started_s": span.started_s,
        "ended_s": span.ended_s,
        "seconds": None if span.ended_s is None else span.ended_s - span.started_s,
    }


def _trial_facts(record: TrialRecord) -> Document:
    return {
        "trial": record.id,
        "search": record.search_id,
        "state": record.state,
        "seconds": record.seconds,
        "kept_running": record.kept_running,
        "engine": record.engine,
        "argv": record.argv,
        "env": dict(record.env),
        "cwd": record.cwd,
        "folder": str(record.folder),
        "started_at": record.started_at,
        "facts": dict(record.facts),
    }


def whole(document: Document) -> Document:
    """`document` as every reader of JSON takes it."""
    return {key: _strict(value) for key, value in document.items()}


def _strict(value: Any) -> Any:
    """JSON that every reader takes: no NaN, no enums, no undecodable text."""
    if isinstance(value, Mapping):
        return {storable(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, str):
        return storable(str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
