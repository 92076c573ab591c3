"""What the server's answers come to: a canary's report as a judgement, or what is left of a broken one.

It asks nothing.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from shakedown.core import Evidence, Judgement, Phase, Verdict
from shakedown.probe import CanaryReport
from shakedown.watch import Assessment


def broken_off(problem: Exception, at_s: float) -> CanaryReport:
    """What is left of a question that we could not ask to its end."""
    *_, last = traceback.extract_tb(problem.__traceback__)
    cause = f"an answer of the server could not be read: {spelled(problem)}"
    place = f"{last.name} ({Path(last.filename).name}:{last.lineno})"
    return CanaryReport(
        verdict=Verdict.UNDECIDED,
        cause=cause,
        fingerprint=f"canary: {type(problem).__name__} in {last.name}",
        evidence=(Evidence(kind="canary error", text=f"{cause}, in {place}", at_s=at_s),),
        layers=(),
        first_token_s=None,
        tokens_per_s=None,
        text="",
        would_change="an answer that can be read; this is a fault of Shakedown's, worth a report",
    )


def spelled(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"


def judge_answers(report: CanaryReport, assessment: Assessment) -> Judgement:
    """The server's answers as a judgement, with the phases and readings of the watch around it."""
    return Judgement(
        verdict=report.verdict,
        phase=Phase.SERVING,
        cause=report.cause,
        fingerprint=report.fingerprint,
        phases=assessment.phases,
        evidence=(*report.evidence, *assessment.evidence),
        would_change=report.would_change,
        exited=False,
    )


def unreached(why: str, assessment: Assessment) -> Judgement:
    return Judgement(
        verdict=Verdict.UNDECIDED,
        phase=Phase.READY,
        cause=f"its log says that it is ready, but {why}",
        fingerprint="unreached",
        phases=assessment.phases,
        evidence=assessment.evidence,
        would_change="an answer: it may listen on another port or address, or on 127.0.0.1 inside its"
        " container; --port or --ready-url says where it is",
    )
