"""One page for a run or a search: it stands alone, in light, dark and on paper, and needs no script.

It never reads a file: logs are handed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shakedown import __version__
from shakedown.core import (
    Ended,
    Judgement,
    SearchRecord,
    TrialRecord,
)
from shakedown.report import blocks
from shakedown.report.again import next_steps, rerun
from shakedown.report.blocks import badge, code, copyable, facts, fold, row, section, table
from shakedown.report.escape import clean
from shakedown.report.excerpt import LogExcerpt
from shakedown.report.findings import (
    WIDTH,
    brief_cause,
    cause_section,
    hypotheses_table,
    identifier,
    known_section,
    suspects_table,
    working_section,
)
from shakedown.report.markup import Child, Html, tag
from shakedown.report.recipe import Recipe, proven_recipe
from shakedown.report.shell import command
from shakedown.report.timeline import launch_row, rank_rows, timeline
from shakedown.report.words import (
    ENDED,
    kept_words,
    seconds_words,
    state_words,
    verdict_words,
)


def run_page(record: TrialRecord, log: LogExcerpt | None = None) -> str:
    """One launch: verdict, phases per rank, first cause, suspect, evidence, log, how to run it again."""
    judgement = record.judgement
    headline = state_words(record) + blocks.took(record.seconds)
    header = [
        tag("p", "Shakedown report of run ", code(record.id), class_="kicker"),
        tag("h1", blocks.verdict_badge(record), " ", clean(_beyond_verdict(record))),
        facts(
            [
                *(blocks.finding_facts(judgement) if judgement else ()),
                *blocks.origin_facts(record),
                ("Left running", "yes" if record.kept_running else None),
            ]
        ),
    ]
    main = [
        section("Command", copyable(_command(record), "the command")),
        section("Phases", _phases(judgement, record.seconds)),
        section("What it answered", blocks.answers(judgement)) if judgement else None,
        section("Evidence and log", _behind(judgement, log)),
        section("Run it again", copyable(rerun(record, width=WIDTH), "how to run it again"), _next(record)),
    ]
    return blocks.page(f"{headline}: {record.id}", header, main, _footer(record))


def isolate_page(
    search: SearchRecord,
    trials: Sequence[TrialRecord],
    logs: Mapping[str, LogExcerpt] | None = None,
    *,
    recipe: Recipe | None = None,
) -> str:
    """One search: cause, certificate, the working command, every trial, and what is not known."""
    found, logs = search.conclusion, logs or {}
    first = next((trial for trial in trials if trial.judgement), None)
    failing = found.failing if found else None
    recipe = recipe or proven_recipe(search, trials)
    links = {trial.id: f"#trial-{at}" for at, trial in enumerate(trials, 1)}
    seconds = first.seconds if first else None
    main = [
        section("Cause", [cause_section(each, search.factors, links) for each in found.causes])
        if found
        else None,
        section("Working command", working_section(recipe, search)) if found and found.causes else None,
        section("Likeliest, not proven", suspects_table(found, search.factors)) if found else None,
        section("How your command fails", _failing(failing, seconds)) if failing else None,
        section("Launches", _clock(trials), _trials_table(search, trials, links)),
        section("Hypotheses", hypotheses_table(found, links)) if found else None,
        section("What is known", known_section(search, links)),
        section("Behind each launch", [_behind_trial(at, t, logs) for at, t in enumerate(trials, 1)]),
        section("Run it again", copyable(rerun(search, width=WIDTH), "how to search again"), _next(search)),
    ]
    title = f"{_headline(search)}: {search.id}"
    return blocks.page(title, _search_header(search, trials), main, _footer(search))


def _search_header(search: SearchRecord, trials: Sequence[TrialRecord]) -> list[Child]:
    found = search.conclusion
    cost = f"{len(trials)} launches"
    if search.seconds is not None:
        cost += f", {seconds_words(search.seconds)}"
    kicker = tag("p", "Shakedown report of search ", code(search.id), class_="kicker")
    if found is None:
        waiting = tag("h1", badge(search.state.value, "none"), " no conclusion yet")
        return [kicker, waiting, facts([*blocks.origin_facts(search), ("Cost", cost)])]
    verdict = found.failing.verdict.value
    lead: list[Child] = [ENDED[found.ended].capitalize()]
    if found.causes and found.ended in (Ended.PROVEN, Ended.NOT_PROVEN):
        lead += [": ", brief_cause(found.causes[0])]
    pairs = [*blocks.finding_facts(found.failing), *blocks.origin_facts(search), ("Cost", cost)]
    if found.probability is not None:
        pairs.append(("Probability", f"{found.probability:.1%}" if 0 <= found.probability <= 1 else None))
    if found.note:
        pairs.append(("Note", clean(found.note, 600)))
    title = tag("h1", badge(verdict, verdict), " ", _rest(verdict_words(found.failing), verdict))
    return [kicker, title, tag("p", lead, class_="lead"), facts(pairs)]


def _headline(search: SearchRecord) -> str:
    found = search.conclusion
    return f"{verdict_words(found.failing)}, {ENDED[found.ended]}" if found else "no conclusion yet"


def _rest(words: str, verdict: str) -> str:
    return words.removeprefix(verdict).strip()


def _beyond_verdict(record: TrialRecord) -> str:
    after = blocks.took(record.seconds).strip()
    if record.judgement is None:
        return after
    phase = _rest(verdict_words(record.judgement), record.judgement.verdict.value)
    wait = f"({record.judgement.wait.value})" if record.judgement.wait else ""
    return f"{phase.removeprefix(wait).strip()} {after}".strip()


def _failing(failing: Judgement, seconds: float | None) -> list[Child]:
    changed = ("What would have changed the verdict: ", clean(failing.would_change, 600))
    return [
        timeline(rank_rows(failing, seconds), "Phases of the first launch, per process, from the log."),
        tag("p", changed, class_="note") if failing.would_change else None,
        blocks.stack(failing),
        blocks.evidence(failing),
    ]


def _clock(trials: Sequence[TrialRecord]) -> Child:
    rows = [
        launch_row(
            f"{at} {_purpose(trial)}",
            trial.judgement,
            trial.seconds,
            (
                blocks.verdict_badge(trial),
                " ",
                tag("span", seconds_words(trial.seconds or 0.0), class_="note"),
            ),
        )
        for at, trial in enumerate(trials, 1)
    ]
    return timeline(rows, "Every launch on one clock.")


def _purpose(trial: TrialRecord) -> str:
    return trial.experiment.purpose.value.replace("_", " ") if trial.experiment else "run"


def _trials_table(search: SearchRecord, trials: Sequence[TrialRecord], links: Mapping[str, str]) -> Child:
    steps = search.conclusion.steps if search.conclusion else ()
    said = {step.outcome.trial_id: step.concluded for step in steps}
    rows = []
    for at, trial in enumerate(trials, 1):
        experiment = trial.experiment
        name = [tag("a", identifier(trial.id), href=f"#behind-{at}")]
        why = [_purpose(trial), tag("span", clean(experiment.reason), class_="note") if experiment else None]
        showed = [blocks.verdict_badge(trial), tag("span", _where(trial), class_="note")]
        kept = clean(kept_words(trial, search.factors), 200)
        took = blocks.seconds_cell(trial.seconds)
        cells: list[Child] = [str(at), name, why, kept, showed, took, clean(said.get(trial.id, ""), 600)]
        rows.append(row(*cells, numbers=(0, 5), id=f"trial-{at}"))
    heads = ("#", "trial", "why chosen", "what it kept", "verdict", "seconds", "what it said")
    return (
        table("In order; each was stopped and cleaned.", heads, rows, numbers=("#", "seconds"))
        if rows
        else None
    )


def _where(trial: TrialRecord) -> str:
    judgement = trial.judgement
    return "" if judgement is None or judgement.serves else f"in {judgement.phase.value}"


def _behind_trial(at: int, trial: TrialRecord, logs: Mapping[str, LogExcerpt]) -> Html:
    summary = [f"{at} {_purpose(trial)} ", code(trial.id, 60), " ", blocks.verdict_badge(trial)]
    log = logs.get(trial.id)
    inside = [
        tag("div", id=f"behind-{at}"),
        facts(blocks.finding_facts(trial.judgement)) if trial.judgement else None,
        copyable(_command(trial), f"the command of trial {at}"),
        _phases(trial.judgement, trial.seconds),
        _behind(trial.judgement, log),
    ]
    return fold(summary, inside, kind="launch")


def _phases(judgement: Judgement | None, seconds: float | None) -> list[Child]:
    if judgement is None:
        return []
    return [
        timeline(rank_rows(judgement, seconds), "Per process, from the log."),
        fold("Phases in seconds", blocks.phases_table(judgement, seconds)) if judgement.phases else None,
    ]


def _behind(judgement: Judgement | None, log: LogExcerpt | None) -> list[Child]:
    if judgement is None:
        return [blocks.log(log)]
    changed = ("What would have changed the verdict: ", clean(judgement.would_change, 600))
    return [
        tag("p", changed, class_="note") if judgement.would_change else None,
        blocks.stack(judgement),
        blocks.evidence(judgement),
        blocks.log(log),
    ]


def _command(record: TrialRecord) -> list[str]:
    return command(record.argv, env=record.env, width=WIDTH)


def _next(record: TrialRecord | SearchRecord) -> list[Child]:
    secrets = [name for name, _ in record.secrets] if isinstance(record, SearchRecord) else []
    steps = [step for step in next_steps(record) if not step.startswith("shakedown report")]
    return [
        tag("ul", [tag("li", code(step)) for step in steps]) if steps else None,
        [tag("p", "Secret variables that were set; their values are not kept:"), blocks.names(secrets)]
        if secrets
        else None,
    ]


def _footer(record: TrialRecord | SearchRecord) -> list[Child]:
    shown = [row(clean(name), code(value)) for name, value in record.facts]
    table_of_facts = (
        table("Recorded with the launch", ("fact", "value"), shown, small=True) if shown else None
    )
    return [
        fold("Facts", table_of_facts) if shown else None,
        tag("p", f"Shakedown {__version__}. Secrets were taken out before anything was written down."),
    ]
