"""What `accept` hands back: one JSON document, one screen of lines, an exit code.

It computes nothing that was not measured or walked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from shakedown.acceptance.verdict import Blame, Finding, Outcome, Shown, judge, undecided
from shakedown.errors import ShakedownError
from shakedown.jobs.accept_entries import entry_of, finding_entry, plain_entry, shown_launch
from shakedown.jobs.accept_launches import Contender
from shakedown.jobs.accept_race import Race
from shakedown.jobs.accept_request import AcceptRequest
from shakedown.jobs.build_page import write_page
from shakedown.jobs.result import ExitCode, JobResult
from shakedown.redact import Redactor
from shakedown.report.acceptance import accept_lines
from shakedown.report.acceptance_page import accept_page


def dry_result(launches: Sequence[Contender]) -> JobResult:
    lines = [f"would start    {shown_launch(each.launch)}" for each in (*launches, launches[0])]
    document = {"schema": "shakedown/1", "command": "accept", "verdict": None, "dry_run": lines}
    return JobResult(document=document, lines=lines, exit_code=ExitCode.GOOD)


def misfit_result(
    request: AcceptRequest, others: Sequence[Contender], misfits: Mapping[str, tuple[str, ...]]
) -> JobResult:
    """Nothing was launched: the lint decides."""
    entries = []
    for each in others:
        shown = Shown(measured=None, lint_errors=misfits[each.name], margin=request.margin)
        entries.append(finding_entry(each.name, judge(shown)))
    document = header(entries[0]) | {"launches": 0, "drafters": entries}
    return JobResult(document=document, lines=accept_lines(document), exit_code=ExitCode.BAD)


def result_of(race: Race) -> JobResult:
    """The document's own fields are the first drafter's; all of them stand under `drafters`."""
    entries = [entry_of(race, raced) for raced in race.raced]
    entries += [finding_entry(each.name, undecided("its turn had not come")) for each in race.unmeasured]
    first = entries[0]
    document = header(first) | {
        name: first.get(name)
        for name in (
            "tokens_per_round",
            "expected",
            "per_position",
            "break_even",
            "speed_up",
            "more_rounds",
            "next",
        )
    }
    document |= {
        "engine": race.engine,
        "version": race.version,
        "margin": race.request.margin,
        "plain": [plain_entry(b, a) for b, a in zip_longest(*race.plain)],
        "drafters": entries,
    }
    if race.cut is not None:
        document |= cut_entry(race, race.cut)
    outcomes = [exit_code_of(each.finding) for each in race.raced]
    code = next((each for each in (ExitCode.NO_ANSWER, ExitCode.BAD) if each in outcomes), ExitCode.GOOD)
    if race.cut is not None:
        code = ExitCode(race.cut.exit_code)
    lines = accept_lines(document)
    if race.request.page is not None:
        write_page(race.request.page, accept_page(document))
        lines.append(f"  page         {race.request.page}")
    return JobResult(document=document, lines=lines, exit_code=code)


def cut_entry(race: Race, cut: ShakedownError) -> dict[str, Any]:
    """The whole of it decides nothing, whatever one drafter's entry says."""
    redactor = Redactor.of(race.launch.env, race.launch.argv, cwd=race.launch.cwd)
    message = redactor.redact_text(cut.message)
    return {
        "verdict": Outcome.UNDECIDED.value,
        "blame": Blame.UNDECIDED.value,
        "why": [f"cut while {race.cut_at}: {message}"],
        "error": message,
        "hints": [redactor.redact_text(hint) for hint in cut.hints],
    }


def exit_code_of(finding: Finding) -> ExitCode:
    if finding.outcome is Outcome.UNDECIDED:
        return ExitCode.NO_ANSWER
    good = finding.outcome is Outcome.AS_TRAINED and finding.blame is Blame.NONE
    return ExitCode.GOOD if good else ExitCode.BAD


def header(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema": "shakedown/1",
        "command": "accept",
        "verdict": entry["verdict"],
        "blame": entry["blame"],
        "why": entry["why"],
    }
