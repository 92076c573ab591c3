"""`draft export`: a checkpoint of training as one directory for SGLang and vLLM, read back and linted.

It never leaves a directory that no engine known would serve as it was trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shakedown.drafter.checkpoint import Checkpoint, load_checkpoint
from shakedown.drafter.export import export_drafter, withdraw
from shakedown.drafter.target import find_checkpoint, read_target
from shakedown.engines.lint import EngineReport, Level, Serving
from shakedown.errors import UsageError
from shakedown.jobs.draft_evaluate import refuse_other_target
from shakedown.jobs.draft_lint import (
    LintRequest,
    engine_document,
    finding_document,
    lint_folder,
    shipped_surveys,
)
from shakedown.jobs.result import ExitCode, JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    target: str
    checkpoint: Path
    out: Path


def export_job(request: ExportRequest) -> JobResult:
    """Raises UsageError where checkpoint and target do not belong together or no engine could serve it."""
    folder = find_checkpoint(request.target)
    target = read_target(folder)
    checkpoint = load_checkpoint(request.checkpoint)
    refuse_other_target(checkpoint.config, target, request.checkpoint)
    was_there = request.out.exists()
    export_drafter(
        request.out,
        checkpoint.config,
        checkpoint.weights,
        checkpoint.d2t,
        engines=shipped_surveys(),
        embedding=target.embedding(),
        provenance=provenance_of(checkpoint),
    )
    try:
        reports = lint_folder(LintRequest(drafter=request.out, target=folder))
        refuse_unserved(reports)
    except BaseException:
        withdraw(request.out, keep_folder=was_there)
        raise
    return JobResult(
        document=document_of(request, checkpoint, reports),
        lines=list(told(request, checkpoint, reports)),
        exit_code=ExitCode.GOOD,
    )


def refuse_unserved(reports: Sequence[EngineReport]) -> None:
    if not any(report.verdict is Serving.AS_TRAINED for report in reports):
        raise UsageError(
            f"no engine known would serve this drafter: {'; '.join(first_errors(reports))}",
            "see `shakedown draft lint` on a drafter of the same target",
        )


def provenance_of(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"trained_steps": checkpoint.step, "trained_with": dict(checkpoint.provenance)}


def first_errors(reports: Sequence[EngineReport]) -> list[str]:
    errors = [f.what for report in reports for f in report.findings if f.level is Level.ERROR]
    return list(dict.fromkeys(errors))[:3]


def document_of(
    request: ExportRequest, checkpoint: Checkpoint, reports: Sequence[EngineReport]
) -> dict[str, Any]:
    return {
        "schema": "shakedown/1",
        "command": "draft export",
        "verdict": Serving.AS_TRAINED.value,  # by one engine at least; `engines` says by which
        "drafter": str(request.out),
        "steps": checkpoint.step,
        "engines": [engine_document(report) for report in reports],
        "findings": [finding_document(report, f) for report in reports for f in report.findings],
    }


def told(request: ExportRequest, checkpoint: Checkpoint, reports: Sequence[EngineReport]) -> Iterator[str]:
    yield f"{request.out}: {checkpoint.step:,} optimiser steps, read back tensor by tensor"
    for report in reports:
        yield f"  {report.profile.title:<24} {report.verdict.value}"
        yield from (f"    {f.what}" for f in report.findings if f.level is Level.ERROR)
    yield ""
    yield "serve it, as in:"
    yield (
        f"  vllm serve {request.target} --speculative-config "
        f'\'{{"method": "eagle3", "model": "{request.out}", "num_speculative_tokens": 3}}\''
    )
    yield (
        f"  python -m sglang.launch_server --model-path {request.target} --speculative-algorithm EAGLE3 "
        f"--speculative-draft-model-path {request.out} --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4"
    )
