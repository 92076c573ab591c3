"""One page for a run or a search: it stands alone, in light, dark and on paper, and needs no script.

It never reads a file: logs are handed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from shakedown import __version__
from shakedown.core import (
    Cause,
    CauseKind,
    Check,
    Conclusion,
    Ended,
    Factor,
    Judgement,
    SearchRecord,
    TrialRecord,
)
from shakedown.report import blocks
from shakedown.report.blocks import badge, code, copyable, facts, fold, row, section, table
from shakedown.report.escape import clean
from shakedown.report.excerpt import LogExcerpt
from shakedown.report.markup import Child, Html, tag
from shakedown.report.recipe import Recipe, proven_recipe
from shakedown.report.shell import command, quoted, rerun
from shakedown.report.timeline import launch_row, rank_rows, timeline
from shakedown.report.words import (
    ANSWERS,
    CHECKS,
    ENDED,
    cause_words,
    factor_words,
    kept_words,
    next_steps,
    not_known,
    proof_words,
    seconds_words,
    state_words,
    verdict_words,
)

MARKS = {True: "yes", False: "no", None: "none"}
WIDTH = 110


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
        section("Cause", [_cause(each, search.factors, links) for each in found.causes]) if found else None,
        section("Working command", _working(recipe, search)) if found and found.causes else None,
        section("Likeliest, not proven", _suspects(found, search.factors)) if found else None,
        section("How your command fails", _failing(failing, seconds)) if failing else None,
        section("Launches", _clock(trials), _trials_table(search, trials, links)),
        section("Hypotheses", _hypotheses(found, links)) if found else None,
        section("What is known", _known(search, links)),
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
        lead += [": ", _brief(found.causes[0])]
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


def _brief(cause: Cause) -> Child:
    if cause.kind is not CauseKind.FACTORS:
        return clean(cause_words(cause, ()))
    shown: list[Child] = []
    for name in cause.factors:
        shown += [" together with " if shown else None, code(name)]
    return shown


def _cause(cause: Cause, factors: Sequence[Factor], links: Mapping[str, str]) -> list[Child]:
    known = {factor.name: factor for factor in factors}
    rows = []
    for name in cause.factors:
        was, now = (known[name].was, known[name].now) if name in known else (name, "")
        rows.append(row(clean(name), code(was), clean(now) or "left out"))
    heads = ("factor", "fails as", "passes as")
    said = table(proof_words(cause).capitalize(), heads, rows) if rows else None
    base = tag("p", clean(cause_words(cause, factors))) if cause.kind is not CauseKind.FACTORS else None
    by_value = tag("p", "By value: ", clean(cause.value_note)) if cause.value_note else None
    checks = [tag("li", _check(name, check, links)) for name, check in cause.certificate]
    title = tag("h3", "Certificate") if checks else None
    return [base, said, by_value, title, tag("ul", checks, class_="plain") if checks else None]


def _check(name: str, check: Check, links: Mapping[str, str]) -> list[Child]:
    shown: list[Child] = [badge(ANSWERS[check.value], MARKS[check.value]), " ", CHECKS.get(name, clean(name))]
    shown.append(_linked(check.trial_ids, links))
    return [*shown, f": {clean(check.note, 400)}"] if check.note else shown


def _linked(trial_ids: Sequence[str], links: Mapping[str, str]) -> list[Child]:
    shown: list[Child] = []
    for trial in trial_ids:
        number = links.get(trial, "").removeprefix("#trial-")
        known = tag("a", f"trial {number}", href=links[trial]) if number else None
        shown += [", ", [known, " ", _id(trial)] if known else _id(trial)]
    return [" (", shown[1:], ")"] if shown else []


def _id(name: str) -> Html:
    return tag("code", clean(name, 60), class_="id")


def _working(recipe: Recipe | None, search: SearchRecord) -> list[Child]:
    if recipe is None:
        return [tag("p", "None was shown to serve.")]
    return [
        _changes(recipe, search),
        copyable(recipe.lines(width=WIDTH), "the command that serves", good=True),
        tag("p", "Your own command, changed least; one click selects it.", class_="note"),
    ]


def _changes(recipe: Recipe, search: SearchRecord) -> Html | None:
    """What the user's command loses and gains, token by token."""
    gone = [f"{name}={value}" for name, value in search.env if name in recipe.unset]
    pieces = [tag("del", code(" ".join(gone)))] if gone else []
    for name, value in recipe.changed:
        pieces.append(tag("ins", code(f"{name}={value}")))
    matcher = SequenceMatcher(None, search.argv, recipe.argv, autojunk=False)
    for what, i, j, k, m in matcher.get_opcodes():
        if what != "equal" and i < j:
            pieces.append(tag("del", code(" ".join(quoted(search.argv[i:j])))))
        if what != "equal" and k < m:
            pieces.append(tag("ins", code(" ".join(quoted(recipe.argv[k:m])))))
    shown = [tag("li", "− " if piece.startswith("<del") else "+ ", piece) for piece in pieces]
    return tag("ul", shown, class_="plain") if shown else None


def _suspects(found: Conclusion, factors: Sequence[Factor]) -> Child:
    rows = [
        row(f"{chance:.0%}", code(factor_words(name, factors)), numbers=(0,))
        for name, chance in found.suspects
    ]
    heads = ("probability", "factor")
    return table("By what was seen so far", heads, rows, numbers=("probability",)) if rows else None


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
        name = [tag("a", _id(trial.id), href=f"#behind-{at}")]
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


def _hypotheses(found: Conclusion, links: Mapping[str, str]) -> Child:
    rows = [
        row(
            badge(each.state.value, each.state.value),
            clean(each.statement, 400),
            clean(each.predicts, 400),
            [
                [tag("a", links.get(t, t)[1:].replace("-", " "), href=links.get(t)), " "]
                for t in each.trial_ids
            ],
        )
        for each in found.hypotheses
    ]
    return (
        table("What was thought, and what spoke for it.", ("", "statement", "predicts", "seen in"), rows)
        if rows
        else None
    )


def _known(search: SearchRecord, links: Mapping[str, str]) -> list[Child]:
    found = search.conclusion
    parts: list[Child] = []
    if found:
        for title, listed in (("Cleared", found.cleared), ("Not cleared", found.not_cleared)):
            if listed:
                parts += [tag("h3", title), blocks.names(listed)]
        if found.other_failures:
            others = [
                tag("li", "another failure, filed apart", _linked([trial], links), ": ", code(showed))
                for trial, showed in found.other_failures
            ]
            parts += [tag("h3", "Other failures"), tag("ul", others)]
    unknown = [tag("li", clean(sentence, 600)) for sentence in not_known(search)]
    return [*parts, [tag("h3", "Not known"), tag("ul", unknown)] if unknown else None]


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
    return fold(summary, inside)


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
    table_of_facts = table("Recorded with the launch", ("fact", "value"), shown) if shown else None
    return [
        fold("Facts", table_of_facts) if shown else None,
        tag("p", f"Shakedown {__version__}. Secrets were taken out before anything was written down."),
    ]
