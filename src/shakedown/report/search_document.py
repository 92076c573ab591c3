"""A search as the object that `isolate --json` prints: the contract `shakedown/1`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from shakedown.core import Cause, CauseKind, Check, Factor, Hypothesis, SearchRecord, Step, TrialRecord
from shakedown.report.again import next_steps
from shakedown.report.document import LONGEST_LINE, SCHEMA, Document, judged, measured_document, whole
from shakedown.report.escape import clean
from shakedown.report.recipe import Recipe, first_cause, proven_recipe

UNKNOWN = Check(value=None)
NO_CAUSE = Cause(
    kind=CauseKind.NONE,
    factors=(),
    rung=None,
    certificate=tuple((name, UNKNOWN) for name in ("alone_fails", "one_less_passes", "workaround_serves")),
    workaround=None,
)


def isolate_document(
    search: SearchRecord,
    trials: Sequence[TrialRecord],
    *,
    recipe: Recipe | None = None,
    command: str = "isolate",
) -> Document:
    """One search with all its trials. `recipe` is taken from the proving trial where none is given.

    `cause` is null while the search goes on, and of the kind "none" where it ended without one.
    """
    found = search.conclusion
    factors = {factor.name: factor for factor in search.factors}
    cause = first_cause(found) or (NO_CAUSE if found else None)
    recipe = recipe or proven_recipe(search, trials)
    seconds = search.seconds if search.seconds is not None else math.fsum(t.seconds or 0.0 for t in trials)
    return whole(
        {
            "schema": SCHEMA,
            "command": command,
            "verdict": found.failing.verdict if found else None,
            "ended": found.ended if found else None,
            "failing": judged(found.failing) if found else None,
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
        "expectations": [measured_document(each) for each in judgement.measured] if judgement else [],
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
