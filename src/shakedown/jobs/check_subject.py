"""What `check` looks at, and what is found of it without a script: its program, its drafter.

It starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shakedown.core import CheckFinding, CheckLevel
from shakedown.engines.lint import EngineReport, Finding, Level, Serving
from shakedown.engines.needs import Needs
from shakedown.errors import ShakedownError
from shakedown.host import files
from shakedown.host.machine import Machine
from shakedown.jobs.draft_lint import LintRequest, lint_as_installed


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Where the scripts run and what they are told.

    `needs` is None where no launch was given; `missing` is its program, where there is none of that name.
    """

    interpreter: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    told: Mapping[str, Any]
    engine: str = ""
    needs: Needs | None = None
    target: Path | None = None
    missing: str = ""


def program_findings(subject: Subject) -> Iterable[CheckFinding]:
    if subject.missing and subject.missing != subject.interpreter[0]:  # that one is told by the scripts
        where = subject.cwd if "/" in subject.missing else "the PATH of the launch"
        yield CheckFinding(
            rule="program",
            level=CheckLevel.ERROR,
            what="there is no such program",
            evidence=f"{subject.missing}, looked for in {where}",
            effect="the command cannot start",
            mend="correct the path, or activate the environment that has it",
        )


def drafter_findings(machine: Machine, subject: Subject) -> Iterable[CheckFinding]:
    """`draft lint` of the drafter that the launch names, for its engine."""
    speculation = subject.needs.speculation if subject.needs else None
    if speculation is None or not speculation.eagle3 or not speculation.drafter:
        return
    if machine.name:
        yield CheckFinding(
            rule="drafter",
            level=CheckLevel.UNKNOWN,
            what="",
            evidence=f"{speculation.drafter} is read only on its own machine: run shakedown check there",
        )
        return
    folder = subject.cwd / speculation.drafter
    if not files.is_dir(folder):
        yield CheckFinding(
            rule="drafter",
            level=CheckLevel.UNKNOWN,
            what="",
            evidence=f"{speculation.drafter} is no folder here",
        )
        return
    try:
        asked = LintRequest(drafter=folder, target=subject.target, engine=subject.engine)
        reports = lint_as_installed(asked, subject.interpreter)
    except ShakedownError as problem:
        yield CheckFinding(
            rule="drafter", level=CheckLevel.ERROR, what="the drafter cannot be read", evidence=str(problem)
        )
        return
    yield from map(as_check, worst_by_rule(reports))


def worst_by_rule(reports: Sequence[EngineReport]) -> Iterator[Finding]:
    """Of each rule the worst for any version or runner, named where it is not the same for all."""
    found: dict[str, list[tuple[str, Finding]]] = {}
    for report in reports:
        for finding in report.findings:
            found.setdefault(finding.rule, []).append((report.profile.title, finding))
    for each in found.values():
        worst = min((finding for _, finding in each), key=badness)
        titles = list(dict.fromkeys(title for title, finding in each if badness(finding) == badness(worst)))
        where = "" if len(titles) == len(reports) else f"{', '.join(titles)}: "
        yield replace(worst, evidence=where + worst.evidence)


def badness(finding: Finding) -> tuple[int, int]:
    """Less is worse."""
    return list(Level).index(finding.level), -list(Serving).index(finding.effect)


def as_check(found: Finding) -> CheckFinding:
    return CheckFinding(
        rule=f"drafter-{found.rule}",
        level=CheckLevel(found.level.value),
        what=found.what,
        evidence=found.evidence,
        effect=found.effect.value,
        mend=found.mend,
    )
