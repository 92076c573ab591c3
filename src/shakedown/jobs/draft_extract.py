"""`shakedown draft extract`: the target's hidden states on the samples, captured once and kept."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from shakedown.drafter.capture import Capture, Request, read_requests
from shakedown.drafter.capture_engine import SglangCapture, VllmCapture
from shakedown.drafter.capture_transformers import TransformersCapture
from shakedown.drafter.extract import Pace, Plan, extract, plan_extraction, refuse_full, told_bytes
from shakedown.drafter.manifest import StatesManifest
from shakedown.drafter.memory import BATCH_TOKENS, choose_device, fits, stream_tokens
from shakedown.drafter.origin import refuse_foreign
from shakedown.drafter.parity import ParityFinding
from shakedown.drafter.patterns import Fault
from shakedown.drafter.rungs import Ladder
from shakedown.drafter.scan import SEQUENCES, scan, scan_ladders, scanned_requests
from shakedown.drafter.shards import Document
from shakedown.drafter.states import StatesWriter
from shakedown.drafter.target import Target, find_checkpoint, read_target
from shakedown.errors import UsageError
from shakedown.jobs.result import ExitCode, JobResult, Talk


class BackendName(StrEnum):
    TRANSFORMERS = "transformers"
    VLLM = "vllm"
    SGLANG = "sglang"


ENGINES = {BackendName.VLLM: VllmCapture, BackendName.SGLANG: SglangCapture}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractRequest:
    """What was asked for. `streamed` None: only a target that does not fit into memory is streamed from disk.
    `parity_sequences` are scanned before an engine's capture; the reference itself needs none."""

    target: str
    samples: Path
    out: Path
    backend: str = BackendName.TRANSFORMERS
    engine_python: Path | None = None
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    dtype: str = "bfloat16"
    batch_tokens: int | None = None
    streamed: bool | None = None
    parity_sequences: int = SEQUENCES
    dry_run: bool = False


def extract_job(request: ExtractRequest, talk: Talk) -> JobResult:
    """Captures the samples that are not captured yet. Raises UsageError, DataProblem, EnvironmentProblem."""
    target = read_target(find_checkpoint(request.target))
    whole = plan_extraction(request.samples, target)
    if request.dry_run:
        free = refuse_full(whole, request.out)
        return result_of(
            request, whole, None, Pace(), 0.0, [f"would capture {whole.line()}; {told_bytes(free)} free"]
        )
    capture = choose_capture(request, target, whole, talk)
    manifest = StatesManifest(
        target=target.facts,
        backend=capture.backend,
        aux_inputs_of=target.aux_inputs_of,
        samples_sha256=file_digest(request.samples),
    )
    started_s = time.monotonic()
    with StatesWriter(request.out, manifest) as writer:
        plan = plan_extraction(request.samples, target, writer.done) if writer.done else whole
        free = refuse_full(plan, request.out)
        there = f", {len(writer.done):,} samples are there already" if writer.done else ""
        talk.say(f"extract: {plan.line()}; {told_bytes(free)} free{there}")
        finding, pace = run(request, target, capture, writer, plan, talk) if plan.samples else (None, Pace())
        if finding is None or finding.same:
            writer.finish()
    return result_of(request, plan, finding, pace, time.monotonic() - started_s, [])


def run(
    request: ExtractRequest, target: Target, capture: Capture, writer: StatesWriter, plan: Plan, talk: Talk
) -> tuple[ParityFinding | None, Pace]:
    """Scans first where the backend is not the reference and no scan stands in the manifest."""
    scanned: list[Request] = []
    ladders: list[Ladder] = []
    if request.backend != BackendName.TRANSFORMERS and writer.manifest.parity is None:
        scanned = scanned_requests(request.samples, request.parity_sequences)
        ladders = scan_ladders(target, scanned, device=device_of(request), say=talk.say)
    finding = None
    talk.say(f"extract: {capture.backend.name} {capture.backend.version} loads {target.path}")
    with capture:
        if scanned:
            finding = scan(capture, target, scanned, ladders)
            ladders.clear()  # gigabytes that a long capture need not keep
            talk.say(f"parity: {finding.fault.value}: {finding.what}")
            if not finding.same:
                return finding, Pace()
            writer.note_parity(finding.to_dict())
        left = (asked for asked in read_requests(request.samples) if asked.sample not in writer.done)

        def look(documents: Sequence[Document]) -> None:
            refuse_foreign(documents, target.head(), str(request.samples))

        return finding, extract(capture, left, writer, plan, talk.say, look)


def choose_capture(request: ExtractRequest, target: Target, plan: Plan, talk: Talk) -> Capture:
    if request.backend != BackendName.TRANSFORMERS:
        return ENGINES[BackendName(request.backend)](
            target,
            python=request.engine_python or Path(sys.executable),
            folder=request.out,
            longest=plan.longest,
            dtype=request.dtype,
            options=request.engine_options,
            say=talk.say,
        )
    device, dtype = device_of(request), getattr(torch, request.dtype)
    streamed = request.streamed if request.streamed is not None else not fits(target, device, dtype)
    return TransformersCapture(
        target,
        device=device,
        dtype=dtype,
        batch_tokens=request.batch_tokens or BATCH_TOKENS[torch.device(device).type],
        stream_tokens=stream_tokens(target, dtype) if streamed else None,
        say=talk.say,
    )


def device_of(request: ExtractRequest) -> str:
    device = request.device or choose_device()
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"--device {device}: torch {torch.__version__} sees no GPU here")
    return device


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def result_of(
    request: ExtractRequest,
    plan: Plan,
    finding: ParityFinding | None,
    pace: Pace,
    seconds: float,
    lines: list[str],
) -> JobResult:
    document = {
        "schema": "shakedown/1",
        "command": "draft extract",
        "verdict": None if finding is None else finding.fault.value,
        "path": str(request.out),
        "samples": plan.samples,
        "tokens": plan.tokens,
        "last_rows": plan.last_rows,
        "state_bytes": plan.state_bytes,
        "seconds": seconds,
        "tokens_per_s": pace.tokens_per_s,
        "parity": finding.to_dict() if finding else None,
    }
    if lines:
        return JobResult(document=document | {"dry_run": lines}, lines=lines, exit_code=ExitCode.GOOD)
    if finding is not None and not finding.same:
        code = ExitCode.NO_ANSWER if finding.fault is Fault.UNDECIDED else ExitCode.BAD
        said = [f"{request.out}: nothing captured: {finding.fault.value}: {finding.what}"]
        return JobResult(document=document, lines=said, exit_code=code)
    rate = (
        f" in {seconds:.0f} s, {pace.tokens_per_s:,.0f} tokens/s" if plan.samples else ": all there already"
    )
    said = [f"{request.out}: {plan.line()}{rate}"]
    return JobResult(document=document, lines=said, exit_code=ExitCode.GOOD)
