"""Findings as the objects that `--json` prints: the contract `shakedown/1`.

It never rounds, words or shortens; only untrusted lines are cleaned of what no stream should carry.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shakedown.core import (
    Cause,
    Check,
    Factor,
    Hypothesis,
    Judgement,
    Measured,
    PhaseSpan,
    SearchRecord,
    Step,
    TrialRecord,
)
from shakedown.report.escape import clean, storable
from shakedown.report.loading import load_document
from shakedown.report.recipe import Recipe, first_cause, proven_recipe
from shakedown.report.words import next_steps

SCHEMA = "shakedown/1"
LONGEST_LINE = 4000

Document = dict[str, Any]


def run_document(record: TrialRecord, *, command: str = "run") -> Document:
    """One launch. `verdict` is null while it is not judged (`state` says why)."""
    head = {"schema": SCHEMA, "command": command}
    more = {"loading": load_document(record), "next": next_steps(record)}
    return whole(head | _judged(record.judgement) | _trial_facts(record) | more)


def isolate_document(
    search: SearchRecord,
    trials: Sequence[TrialRecord],
    *,
    recipe: Recipe | None = None,
    command: str = "isolate",
) -> Document:
    """One search with all its trials. `recipe` is taken from the proving trial where none is given."""
    found = search.conclusion
    factors = {factor.name: factor for factor in search.factors}
    cause = first_cause(found)
    recipe = recipe or proven_recipe(search, trials)
    seconds = search.seconds if search.seconds is not None else math.fsum(t.seconds or 0.0 for t in trials)
    return whole(
        {
            "schema": SCHEMA,
            "command": command,
            "verdict": found.failing.verdict if found else None,
            "ended": found.ended if found else None,
            "failing": _judged(found.failing) if found else None,
            "cause": _cause(cause, factors) if cause else None,
            "causes": [_cause(each, factors) for each in found.causes] if found else [],
            "certificate": _certificate(cause) if cause else None,
            "workaround": _workaround(recipe, cause) if recipe else None,
            "launches": len(trials),
            "seconds": seconds,
            "cleared": _factors(found.cleared if found else (), factors),
            "not_cleared": _factors(found.not_cleared if found else (), factors),
            "suspects": [_factor(n, factors) | {"probability": p} for n, p in found.suspects]
            if found
            else [],
            "other_failures": [
                {"trial": trial, "showed": clean(showed, LONGEST_LINE)}
                for trial, showed in found.other_failures
            ]
            if found
            else [],
            "probability": found.probability if found else None,
            "hypotheses": [_hypothesis(each) for each in found.hypotheses] if found else [],
            "trials": [_trial_of_search(trial, search) for trial in trials],
            "note": found.note if found else "",
            "search": search.id,
            "state": search.state,
            "engine": search.engine,
            "argv": search.argv,
            "env": dict(search.env),
            "cwd": search.cwd,
            "secrets": [name for name, _ in search.secrets],
            "started_at": search.started_at,
            "seed": search.seed,
            "facts": dict(search.facts),
            "next": next_steps(search),
        }
    )


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


def _judged(judgement: Judgement | None) -> Document:
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
        "expectations": [_measured(each) for each in judgement.measured],
    }


def _measured(measured: Measured) -> Document:
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


def _trial_of_search(trial: TrialRecord, search: SearchRecord) -> Document:
    steps = search.conclusion.steps if search.conclusion else ()
    concluded = [step.concluded for step in steps if step.outcome.trial_id == trial.id]
    experiment = trial.experiment
    judgement = trial.judgement
    return {
        "id": trial.id,
        "purpose": experiment.purpose if experiment else None,
        "reason": experiment.reason if experiment else "",
        "kept": sorted(experiment.kept) if experiment else None,
        "substitutes": {name: list(argv) for name, argv in experiment.substitutes} if experiment else {},
        "repeat": experiment.repeat if experiment else 0,
        "debug": experiment.debug if experiment else False,
        "stand_in": experiment.stand_in if experiment else False,
        "state": trial.state,
        "verdict": judgement.verdict if judgement else None,
        "wait": judgement.wait if judgement else None,
        "phase": judgement.phase if judgement else None,
        "passed": judgement.passed if judgement else None,
        "cause": clean(judgement.cause, LONGEST_LINE) if judgement else "",
        "environment": judgement.environment if judgement else False,
        "concluded": concluded[-1] if concluded else "",
        "ranking": _ranking(steps, trial.id),
        "expectations": [_measured(each) for each in judgement.measured] if judgement else [],
        "seconds": trial.seconds,
        "argv": trial.argv,
        "env": dict(trial.env),
    }


def _ranking(steps: Sequence[Step], trial_id: str) -> list[Document]:
    """How suspected the factors were after this trial, likeliest first."""
    ranked = [step.ranking for step in steps if step.outcome.trial_id == trial_id]
    return [{"name": name, "probability": share} for name, share in ranked[-1]] if ranked else []


def _factor(name: str, factors: Mapping[str, Factor]) -> Document:
    known = factors.get(name)
    if known is None:
        return {"name": name, "kind": None, "was": None, "now": None}
    return {"name": known.name, "kind": known.kind, "was": known.was, "now": known.now}


def _factors(names: Iterable[str], factors: Mapping[str, Factor]) -> list[Document]:
    return [_factor(name, factors) for name in names]


def _cause(cause: Cause, factors: Mapping[str, Factor]) -> Document:
    return {
        "kind": cause.kind,
        "factors": _factors(cause.factors, factors),
        "rung": cause.rung,
        "proven": cause.proven,
        "certificate": _certificate(cause),
        "changes": list(cause.workaround.changes) if cause.workaround else [],
        "value_note": cause.value_note,
    }


def _certificate(cause: Cause) -> Document:
    return {name: _check(check) for name, check in cause.certificate}


def _check(check: Check) -> Document:
    return {"value": check.value, "trials": list(check.trial_ids), "note": clean(check.note, LONGEST_LINE)}


def _workaround(recipe: Recipe, cause: Cause | None) -> Document:
    changes = cause.workaround.changes if cause and cause.workaround else ()
    return {
        "argv": recipe.argv_alone,
        "env": dict(recipe.changed),
        "unset": list(recipe.unset),
        "changes": list(changes),
        "command": "\n".join(recipe.lines()),
    }


def _hypothesis(hypothesis: Hypothesis) -> Document:
    return {
        "statement": hypothesis.statement,
        "predicts": hypothesis.predicts,
        "state": hypothesis.state,
        "trials": list(hypothesis.trial_ids),
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
