"""Reports for people who were not there: one screen of Markdown to paste into an issue.

Everything a log, a stack or a name says stands in code spans. It never writes a file.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from shakedown.report.again import next_steps, ours, rerun
from shakedown.report.escape import cell, code, fenced, prose
from shakedown.report.recipe import Recipe, first_cause, proven_recipe
from shakedown.report.words import (
    ANSWERS,
    CHECKS,
    ENDED,
    cause_words,
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

MOST_NAMES = 12
MOST_EVIDENCE = 6


def run_report(record: TrialRecord) -> str:
    """One launch: verdict, phases, first cause, suspect, evidence, what would have changed it, rerun."""
    judgement = record.judgement
    after = f" after {seconds_words(record.seconds)}" if record.seconds is not None else ""
    parts = [[f"# {prose(state_words(record))}{after}"], [_origin(record)]]
    if judgement:
        parts += [_findings(judgement), _phase_table(judgement, record.seconds), _evidence(judgement)]
        if judgement.would_change:
            parts.append([f"**What would have changed it** {prose(judgement.would_change)}"])
    parts.append(["**Run it again**", "", *fenced(rerun(record), "sh")])
    steps = [f"- {prose(step)}" for step in next_steps(record)]
    parts.append(["**Next**", "", *steps] if steps else [])
    return _joined(parts)


def isolate_report(
    search: SearchRecord, trials: Sequence[TrialRecord], *, recipe: Recipe | None = None
) -> str:
    """One search: verdict, minimal cause, proof, the working command, what is and is not known, rerun."""
    found = search.conclusion
    if found is None:
        return _joined(
            [[f"# {search.state.value}: no conclusion yet"], [_origin(search)], _again(search, trials)]
        )
    recipe = recipe or proven_recipe(search, trials)
    cause = first_cause(found)
    parts = [[_headline(found, search)], [_origin(search)], _findings(found.failing)]
    for each in found.causes:
        parts += [_cause_table(each, search.factors), _proof(each)]
    parts += [_suspects(found, search.factors), _working(recipe, cause)]
    parts += [_ruled_out(found, search), _again(search, trials)]
    return _joined(parts)


def _headline(found: Conclusion, search: SearchRecord) -> str:
    verdict = prose(verdict_words(found.failing))
    if found.causes and found.ended in (Ended.PROVEN, Ended.NOT_PROVEN):
        said = "the cause is" if found.ended is Ended.PROVEN else "the cause may be"
        return f"# {verdict}: {said} {code(cause_words(found.causes[0], search.factors), 70)}"
    return f"# {verdict}: {ENDED[found.ended]}"


def _origin(record: TrialRecord | SearchRecord) -> str:
    facts = dict(record.facts)
    engine = f"{record.engine} {facts.get('engine_version', '')}".strip()
    host = f" on {prose(facts['host'], 60)}" if facts.get("host") else ""
    return f"{prose(engine, 60)}{host}, {prose(record.started_at, 40)}, {code(record.id)}"


def _findings(judgement: Judgement) -> list[str]:
    lines = [f"- **Verdict** {prose(verdict_words(judgement))}"]
    if judgement.cause:
        lines.append(f"- **First cause** {code(judgement.cause)}")
    if judgement.suspect:
        lines.append(f"- **Suspect** {code(suspect_words(judgement.suspect))}")
    lines += [f"- **Stated mark** {prose(said)}" for said in mark_words(judgement)]
    return lines


def _phase_table(judgement: Judgement, seconds: float | None) -> list[str]:
    times = phase_times(judgement, seconds)
    rows = [f"| {time.phase.value} | {prose(time.words, 80)} |" for time in times]
    return ["| phase | time |", "|---|---|", *rows] if rows else []


def _evidence(judgement: Judgement) -> list[str]:
    if not judgement.evidence:
        return []
    shown, lines = judgement.evidence[:MOST_EVIDENCE], []
    for evidence in shown:
        pid = f", pid {evidence.pid}" if evidence.pid else ""
        origin = f"{seconds_words(evidence.at_s)}, {prose(evidence.kind, 40)}{pid}"
        lines.append(f"- {origin}: {code(evidence.text, 200)}")
    more = len(judgement.evidence) - len(shown)
    return ["**Evidence**", "", *lines, *([f"- and {more} more in the ledger"] if more else [])]


def _cause_table(cause: Cause, factors: Sequence[Factor]) -> list[str]:
    title = f"**Minimal cause** ({proof_words(cause)})"
    if cause.kind is not CauseKind.FACTORS:
        return [f"{title}: {prose(cause_words(cause, factors))}"]
    known = {factor.name: factor for factor in factors}
    rows = []
    for name in cause.factors:
        factor = known.get(name)
        was, now = (factor.was, factor.now) if factor else (name, "")
        rows.append(f"| {cell(name)} | {cell(was)} | {cell(now) or 'left out'} |")
    note = ["", f"By value: {prose(cause.value_note)}"] if cause.value_note else []
    return [title, "", "| factor | fails as | passes as |", "|---|---|---|", *rows, *note]


def _proof(cause: Cause) -> list[str]:
    return ["**Proof**", "", *(_check(name, check) for name, check in cause.certificate)]


def _check(name: str, check: Check) -> str:
    trials = f" ({', '.join(code(trial, 40) for trial in check.trial_ids)})" if check.trial_ids else ""
    note = f": {prose(check.note, 160)}" if check.note else ""
    return f"- {CHECKS.get(name) or prose(name)}: **{ANSWERS[check.value]}**{trials}{note}"


def _suspects(found: Conclusion, factors: Sequence[Factor]) -> list[str]:
    if not found.suspects:
        return []
    rows = [f"- {code(factor_words(name, factors), 100)}: {p:.0%}" for name, p in found.suspects[:5]]
    return ["**Likeliest, not proven**", "", *rows]


def _working(recipe: Recipe | None, cause: Cause | None) -> list[str]:
    if recipe is None:
        return ["**Working command**: none shown to serve"] if cause else []
    changes = cause.workaround.changes if cause and cause.workaround else ()
    said = [f"- {prose(change, 160)}" for change in changes]
    return ["**Working command**", "", *said, *([""] if said else []), *fenced(recipe.lines(), "sh")]


def _ruled_out(found: Conclusion, search: SearchRecord) -> list[str]:
    lines = []
    if found.cleared:
        lines.append(f"- **Cleared** {_names(found.cleared)}")
    if found.not_cleared:
        lines.append(f"- **Not cleared** {_names(found.not_cleared)}")
    for trial, showed in found.other_failures[:4]:
        lines.append(f"- **Another failure, filed apart** {code(trial, 40)}: {code(showed, 160)}")
    lines += [f"- **Not known** {prose(sentence)}" for sentence in not_known(search)]
    return lines


def _names(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(code(name, 60) for name in names[:MOST_NAMES]) + (
        f" and {more} more" if more > 0 else ""
    )


def _again(search: SearchRecord, trials: Sequence[TrialRecord]) -> list[str]:
    took = f", {seconds_words(search.seconds)}" if search.seconds is not None else ""
    shown = code(ours("show", search.id, dict(search.facts)))
    title = f"**Run it again** ({len(trials)} launches{took}; {shown} tells each)"
    steps = [step for step in next_steps(search) if "--resume" in step]
    secrets = ", ".join(code(name, 60) for name, _ in search.secrets)
    noted = ["", f"Secret variables that were set (values are not kept): {secrets}"] if secrets else []
    return [title, "", *fenced([*rerun(search), *(f"# or: {step}" for step in steps)], "sh"), *noted]


def _joined(parts: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"
