"""What `check` looks at, and what is found of it without a script: its program, its drafter.

It starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shakedown.core import CheckFinding, CheckLevel
from shakedown.engines.needs import Needs
from shakedown.errors import ShakedownError
from shakedown.host import files
from shakedown.host.machine import Machine
from shakedown.jobs.draft_lint import LintRequest, lint_folder


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
        reports = lint_folder(LintRequest(drafter=folder, target=subject.target, engine=subject.engine))
    except ShakedownError as problem:
        yield CheckFinding(
            rule="drafter", level=CheckLevel.ERROR, what="the drafter cannot be read", evidence=str(problem)
        )
        return
    for found in {f.rule: f for report in reports for f in report.findings}.values():
        level = CheckLevel(found.level.value)
        yield CheckFinding(
            rule=f"drafter-{found.rule}",
            level=level,
            what=found.what,
            evidence=found.evidence,
            effect=found.effect.value,
            mend=found.mend,
        )
