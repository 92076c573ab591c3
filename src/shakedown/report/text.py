"""What a terminal shows at the end of a command: at most one screen, made for 80 columns, no colours.

It never prints.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from shakedown.core import Conclusion, SearchRecord, TrialRecord
from shakedown.report.again import next_steps, ours
from shakedown.report.escape import clean
from shakedown.report.loading import load_words
from shakedown.report.recipe import Recipe, first_cause, proven_recipe
from shakedown.report.shell import command
from shakedown.report.words import (
    ENDED,
    cause_words,
    check_words,
    factor_words,
    mark_words,
    not_known,
    phase_times,
    proof_words,
    seconds_words,
    state_words,
    suspect_words,
    verdict_words,
)

WIDTH = 80
LABEL = 13
MOST_EVIDENCE = 3
MOST_NAMES = 10


def labelled(label: str, text: str, *, limit: int = 400) -> list[str]:
    """`label` and, beside it in a column of its own, `text`, wrapped."""
    wrapped = textwrap.wrap(
        clean(text, limit), WIDTH - LABEL - 2, break_long_words=False, break_on_hyphens=False
    )
    starts = ["  " + label.ljust(LABEL), *[" " * (LABEL + 2)] * len(wrapped)]
    return [(start + line).rstrip() for start, line in zip(starts, wrapped or [""], strict=False)]


def run_summary(record: TrialRecord) -> list[str]:
    """The end of `run`: the verdict first, what to do next last."""
    judgement = record.judgement
    after = f" after {seconds_words(record.seconds)}" if record.seconds is not None else ""
    lines = [clean(state_words(record)) + after]
    if judgement:
        if judgement.cause:
            lines += labelled("first cause", judgement.cause)
        if judgement.suspect:
            lines += labelled("suspect", suspect_words(judgement.suspect))
        for at, said in enumerate(mark_words(judgement)):
            lines += labelled("" if at else "marks", said)
        times = [f"{time.phase.value} {time.words}" for time in phase_times(judgement, record.seconds)]
        lines += labelled("phases", " · ".join(times), limit=1000) if times else []
        lines += labelled("weights", words) if (words := load_words(record)) else []
        for at, evidence in enumerate(judgement.evidence[:MOST_EVIDENCE]):
            said = f"{seconds_words(evidence.at_s)} {evidence.kind}: {evidence.text}"
            lines += labelled("" if at else "evidence", said, limit=200)
        if judgement.would_change:
            lines += labelled("would change", judgement.would_change)
    lines += labelled("log", str(record.folder))
    if record.kept_running:
        lines += labelled("running", "it was left running")
    lines += [line for step in next_steps(record) for line in labelled("next", step)]
    return lines + labelled("recorded", record.id)


def isolate_summary(
    search: SearchRecord, trials: Sequence[TrialRecord], *, recipe: Recipe | None = None
) -> list[str]:
    """The end of `isolate`: verdict, cause, proof, and the command that serves."""
    found = search.conclusion
    if found is None:
        return [f"{search.state.value}: no conclusion yet", *_ending(search, trials)]
    recipe = recipe or proven_recipe(search, trials)
    lines = [f"{clean(verdict_words(found.failing))}: {ENDED[found.ended]}"]
    if found.failing.cause:
        lines += labelled("first cause", found.failing.cause)
    for at, said in enumerate(mark_words(found.failing)):
        lines += labelled("" if at else "marks", said)
    for cause in found.causes:
        lines += labelled("cause", f"{proof_words(cause)}: {cause_words(cause, search.factors)}")
        if cause.value_note:
            lines += labelled("by value", cause.value_note)
        for at, (name, check) in enumerate(cause.certificate):
            lines += labelled("" if at else "proof", check_words(name, check))
    for at, (name, chance) in enumerate(found.suspects[:5]):
        words = factor_words(name, search.factors)
        lines += labelled("" if at else "suspects", f"{chance:.0%} {words}", limit=120)
    lines += _working(recipe, found)
    lines += labelled("cleared", _names(found.cleared)) if found.cleared else []
    lines += labelled("not cleared", _names(found.not_cleared)) if found.not_cleared else []
    for at, (trial, showed) in enumerate(found.other_failures[:3]):
        lines += labelled("" if at else "other", f"{trial}: {showed}", limit=160)
    for at, sentence in enumerate(not_known(search)):
        lines += labelled("" if at else "not known", sentence)
    return lines + _ending(search, trials)


def runs_table(records: Iterable[TrialRecord | SearchRecord], *, width: int = WIDTH) -> list[str]:
    """The ledger's list: ID, what became of it, how long it took, as much of the command as fits."""
    lines = []
    for record in records:
        took = seconds_words(record.seconds) if record.seconds is not None else ""
        shown = clean(" ".join(command(record.argv, width=10_000)), 200)
        became = clean(_became(record), 32)
        lines.append(f"{clean(record.id)}  {became:<32}  {took:>10}  {shown}"[:width].rstrip())
    return lines or ["no runs yet: shakedown run -- CMD"]


def _became(record: TrialRecord | SearchRecord) -> str:
    if isinstance(record, TrialRecord):
        return state_words(record) + (", kept running" if record.kept_running else "")
    found = record.conclusion
    if found is None:
        return f"isolate: {record.state.value}"
    cause = first_cause(found)
    said = cause_words(cause, ()) if cause else ENDED[found.ended]
    return f"isolate: {clean(said)}"


def _working(recipe: Recipe | None, found: Conclusion) -> list[str]:
    if recipe is None:
        return labelled("workaround", "none shown to serve") if found.causes else []
    cause = first_cause(found)
    lines = []
    for at, change in enumerate(cause.workaround.changes if cause and cause.workaround else ()):
        lines += labelled("" if at else "change", change)
    return [*lines, "  this serves:", "", *("    " + line for line in recipe.lines(width=WIDTH - 4)), ""]


def _names(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _ending(search: SearchRecord, trials: Sequence[TrialRecord]) -> list[str]:
    took = f" in {seconds_words(search.seconds)}" if search.seconds is not None else ""
    lines = labelled("cost", f"{len(trials)} launches{took}")
    lines += [line for step in next_steps(search) for line in labelled("next", step)]
    return lines + labelled(
        "recorded", f"{search.id} ({ours('show', search.id, dict(search.facts))} tells each launch)"
    )
