"""`draft lint`: whether an EAGLE-3 directory serves as it was trained, by engine and version.

It starts no engine; with an engine's interpreter it reads that engine's source there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from shakedown.core import Missing
from shakedown.engines.lint import (
    EngineProfile,
    EngineReport,
    Finding,
    Level,
    Serving,
    lint,
    nearest,
    read_live_survey,
    read_surveys,
    worst,
)
from shakedown.errors import EnvironmentProblem, UsageError
from shakedown.host.local import LocalHost
from shakedown.jobs.drafter_facts import read_drafter_facts, read_target_config
from shakedown.jobs.result import ExitCode, JobResult

SURVEY_DEADLINE_S = 60.0  # reading some 300 source files took 3 s here


@dataclass(frozen=True, slots=True, kw_only=True)
class LintRequest:
    drafter: Path
    target: Path | None = None
    engine: str | None = None
    version: str | None = None
    python: str | None = None  # an engine's interpreter, asked instead of the shipped surveys


def lint_job(request: LintRequest) -> JobResult:
    reports = lint_folder(request)
    verdict = worst(report.verdict for report in reports)
    document = {
        "schema": "shakedown/1",
        "command": "draft lint",
        "verdict": verdict.value,
        "drafter": str(request.drafter),
        "target": str(request.target) if request.target else None,
        "engines": [engine_document(report) for report in reports],
        "findings": [finding_document(report, f) for report in reports for f in report.findings],
    }
    code = ExitCode.GOOD if verdict is Serving.AS_TRAINED else ExitCode.BAD
    return JobResult(document=document, lines=list(told(request, reports)), exit_code=code)


def lint_as_installed(request: LintRequest, interpreter: Sequence[str]) -> tuple[EngineReport, ...]:
    """By the engine that a launch's interpreter has; where that tells nothing, by every version known."""
    if len(interpreter) != 2:  # more than `python -`: a container's, say
        return lint_folder(request)
    try:
        return lint_folder(replace(request, python=interpreter[0]))
    except EnvironmentProblem:
        return lint_folder(request)


def lint_folder(request: LintRequest) -> tuple[EngineReport, ...]:
    """One report for each engine, version and runner asked for."""
    if request.version and not request.engine:
        raise UsageError("--engine-version needs --engine: vllm or sglang")
    target = read_target_config(request.target) if request.target else None
    drafter = read_drafter_facts(request.drafter, request.target)
    shipped = shipped_surveys()
    if request.python:
        profiles = live_survey(request.python, request.engine)
    else:
        profiles = nearest(shipped, request.engine, request.version)
    return tuple(lint(drafter, target, profile, shipped) for profile in profiles)


def shipped_surveys() -> tuple[EngineProfile, ...]:
    return read_surveys((resources.files("shakedown.engines") / "tables" / "eagle3.json").read_text())


def live_survey(python: str, engine: str | None) -> tuple[EngineProfile, ...]:
    """Raises EnvironmentProblem where the interpreter has no such engine."""
    script = (resources.files("shakedown.engines") / "lint" / "survey.py").read_text()
    host, last = LocalHost(), "it said nothing"
    for name in (engine,) if engine else ("vllm", "sglang"):
        done = host.execute(
            [python, "-", name], env=os.environ, cwd=Path.cwd(), stdin=script, deadline_s=SURVEY_DEADLINE_S
        )
        profiles = read_live_survey(done.stdout)
        if not isinstance(profiles, Missing):
            return profiles
        last = (done.stderr.strip().splitlines() or [last])[-1]
    raise EnvironmentProblem(f"{python} tells nothing of an engine: {last[:200]}")


def engine_document(report: EngineReport) -> dict[str, Any]:
    profile = report.profile
    return {
        "engine": profile.engine,
        "version": profile.version,
        "runner": profile.runner,
        "source": "live" if profile.live else "shipped",
        "verdict": report.verdict.value,
        "mends": list(report.mends),
    }


def finding_document(report: EngineReport, finding: Finding) -> dict[str, Any]:
    profile = report.profile
    return {
        "rule": finding.rule,
        "level": finding.level.value,
        "engine": profile.engine,
        "version": profile.version,
        "runner": profile.runner,
        "effect": finding.effect.value,
        "what": finding.what,
        "evidence": finding.evidence,
        "mend": finding.mend,
    }


def told(request: LintRequest, reports: Sequence[EngineReport]) -> Iterator[str]:
    """The verdict of each engine, then each finding once with the engines that it concerns."""
    width = max(len(report.profile.title) for report in reports)
    for report in reports:
        yield f"{report.profile.title:<{width}}  {report.verdict.value}"
    if request.target is None:
        yield "no --target: what depends on it was not judged"
    found: dict[Finding, list[str]] = {}
    for report in reports:
        for finding in report.findings:
            found.setdefault(finding, []).append(report.profile.title)
    for finding, titles in sorted(found.items(), key=lambda item: list(Level).index(item[0].level)):
        yield ""
        where = "every engine here" if len(titles) == len(reports) else ", ".join(titles)
        yield f"{finding.level.value}  {finding.rule}: {finding.what}"
        yield f"  in        {where}"
        yield f"  evidence  {finding.evidence}"
        if finding.mend:
            yield f"  mend      {finding.mend}"
