"""One run or search told as a chain: observed, suspected, tried, concluded, next.

It never shows what the ledger does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from shakedown.core import Hypothesis, Judgement, RecordState, SearchRecord, TrialRecord
from shakedown.report.again import next_steps, rerun
from shakedown.report.escape import clean
from shakedown.report.recipe import Recipe, first_cause, proven_recipe
from shakedown.report.shell import command
from shakedown.report.text import WIDTH, labelled
from shakedown.report.words import (
    ENDED,
    cause_words,
    check_words,
    kept_words,
    mark_words,
    not_known,
    phase_times,
    proof_words,
    ranking_words,
    seconds_words,
    state_words,
    suspect_words,
    verdict_words,
)


def show(
    record: TrialRecord | SearchRecord,
    trials: Sequence[TrialRecord] = (),
    *,
    recipe: Recipe | None = None,
) -> list[str]:
    """`trials` are those of a search, in order."""
    if isinstance(record, TrialRecord):
        sections = _trial_sections(record)
    else:
        sections = _search_sections(record, trials, recipe or proven_recipe(record, trials))
    lines = [clean(f"{record.id} {record.started_at} {record.engine}"), ""]
    lines += ["  " + line for line in command(record.argv, env=record.env, width=WIDTH - 2)]
    for title, body in sections:
        if body:
            lines += ["", title, *body]
    return lines


def _trial_sections(trial: TrialRecord) -> list[tuple[str, list[str]]]:
    judgement = trial.judgement
    suspected = (
        labelled("suspect", suspect_words(judgement.suspect)) if judgement and judgement.suspect else []
    )
    why = trial.experiment.reason if trial.experiment else "one launch of the command as it is"
    tried = labelled("this", why)
    if trial.experiment and trial.search_id:
        tried += labelled("of search", trial.search_id)
    concluded = labelled("verdict", state_words(trial))
    if judgement and judgement.would_change:
        concluded += labelled("would change", judgement.would_change)
    following = [line for step in next_steps(trial) for line in labelled("", step)]
    following += ["  again:", *("    " + line for line in rerun(trial, width=WIDTH - 4))]
    return [
        ("observed", _observed(judgement, trial.seconds) + labelled("log", str(trial.folder))),
        ("suspected", suspected),
        ("tried", tried),
        ("concluded", concluded),
        ("next", following),
    ]


def _search_sections(
    search: SearchRecord, trials: Sequence[TrialRecord], recipe: Recipe | None
) -> list[tuple[str, list[str]]]:
    found = search.conclusion
    first = next((trial for trial in trials if trial.judgement), None)
    failing = found.failing if found else first.judgement if first else None
    hypotheses = found.hypotheses if found else ()
    return [
        ("observed", _observed(failing, first.seconds if first else None)),
        ("suspected", [line for each in hypotheses for line in _hypothesis(each)]),
        ("tried", [line for at, trial in enumerate(trials, 1) for line in _step(at, trial, search)]),
        ("concluded", _concluded(search)),
        ("next", _following(search, recipe)),
    ]


def _observed(judgement: Judgement | None, seconds: float | None) -> list[str]:
    if judgement is None:
        return labelled("", "nothing yet")
    lines = labelled("verdict", verdict_words(judgement))
    if judgement.cause:
        lines += labelled("first cause", judgement.cause)
    for said in mark_words(judgement):
        lines += labelled("mark", said)
    for time in phase_times(judgement, seconds):
        lines += labelled(time.phase.value, time.words)
    for evidence in judgement.evidence:
        pid = f", pid {evidence.pid}" if evidence.pid else ""
        lines += labelled(f"{evidence.at_s:.1f} s", f"{evidence.kind}{pid}: {evidence.text}", limit=300)
    return lines


def _hypothesis(hypothesis: Hypothesis) -> list[str]:
    trials = f" ({', '.join(hypothesis.trial_ids)})" if hypothesis.trial_ids else ""
    return labelled(hypothesis.state.value, f"{hypothesis.statement}: {hypothesis.predicts}{trials}")


def _step(at: int, trial: TrialRecord, search: SearchRecord) -> list[str]:
    """Number, trial, why and with what; then what it showed, what that said, and whom it made suspect."""
    experiment = trial.experiment
    purpose = experiment.purpose.value.replace("_", " ") if experiment else "run"
    purpose += ", on a stand-in" if experiment and experiment.stand_in else ""
    took = f" after {seconds_words(trial.seconds)}" if trial.seconds is not None else ""
    with_what = clean(kept_words(trial, search.factors), 60)
    lines = [f"  {at:>2}  {clean(trial.id)}  {purpose}, {with_what}"]
    if experiment and experiment.reason:
        lines += labelled("    why", experiment.reason)
    lines += labelled("    showed", state_words(trial) + took)
    steps = search.conclusion.steps if search.conclusion else ()
    said = [step.concluded for step in steps if step.outcome.trial_id == trial.id]
    lines += labelled("    so", said[-1]) if said and said[-1] else []
    moved = ranking_words(steps, trial.id)
    return lines + (labelled("    ranking", moved, limit=300) if moved else [])


def _concluded(search: SearchRecord) -> list[str]:
    found = search.conclusion
    if found is None:
        waiting = "it was interrupted" if search.state is RecordState.INTERRUPTED else "it is still going on"
        return labelled("", f"nothing yet: {waiting}")
    lines = labelled("", ENDED[found.ended])
    for cause in found.causes:
        lines += labelled("cause", f"{proof_words(cause)}: {cause_words(cause, search.factors)}")
        for name, check in cause.certificate:
            lines += labelled("", check_words(name, check))
    lines += labelled("cleared", ", ".join(found.cleared), limit=1000) if found.cleared else []
    lines += labelled("not cleared", ", ".join(found.not_cleared), limit=1000) if found.not_cleared else []
    for trial, showed in found.other_failures:
        lines += labelled("other", f"{trial}: {showed}")
    return lines + [line for sentence in not_known(search) for line in labelled("not known", sentence)]


def _following(search: SearchRecord, recipe: Recipe | None) -> list[str]:
    lines = [line for step in next_steps(search) for line in labelled("", step)]
    cause = first_cause(search.conclusion)
    if recipe:
        changes = cause.workaround.changes if cause and cause.workaround else ()
        lines += [line for change in changes for line in labelled("change", change)]
        lines += ["  this serves:", *("    " + line for line in recipe.lines(width=WIDTH - 4))]
    return [*lines, "  again:", *("    " + line for line in rerun(search, width=WIDTH - 4))]
