"""The page at the end of a build: what it took, what the drafter is worth, how to serve it.

It computes nothing that a stage did not measure, but one quotient with its assumption beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shakedown.drafter.journal import write_whole
from shakedown.errors import HostProblem
from shakedown.jobs.result import ExitCode, JobResult
from shakedown.jobs.stages import Done
from shakedown.report.escape import code

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The documents of the stages. `break_even`: what a round costs in plain steps, by engine."""

    target: str
    drafter: Path
    data: Mapping[str, Any]
    states: Mapping[str, Any]
    trained: Mapping[str, Any]
    exported: Mapping[str, Any]
    judged: Mapping[str, Any]
    stages: Sequence[Done]
    break_even: Mapping[str, float]

    @property
    def hours(self) -> float:
        return sum(stage.seconds for stage in self.stages) / 3600

    @property
    def speed_up(self) -> dict[str, dict[str, float | None]]:
        """Tokens a round over what a round costs: its value and interval, by engine."""
        tokens = self.judged["tokens_per_round"]
        return {
            engine: {"break_even": cost}
            | {
                key: tokens[key] / cost if tokens[key] is not None else None
                for key in ("value", "low", "high")
            }
            for engine, cost in self.break_even.items()
        }


def document_of(build: Build) -> dict[str, Any]:
    return {
        "schema": "shakedown/1",
        "command": "draft build",
        "verdict": build.exported["verdict"],
        "target": build.target,
        "drafter": str(build.drafter),
        "samples": build.data["samples"],
        "generated_tokens": build.data["generated_tokens"],
        "tokens": build.states["tokens"],
        "state_bytes": build.states["state_bytes"],
        "hours": build.hours,
        "tokens_per_round": build.judged["tokens_per_round"],
        "drafts": build.judged["drafts"],
        "per_position": build.judged["per_position"],
        "speed_up": build.speed_up,
        "engines": build.exported["engines"],
        "stages": [
            {"stage": stage.name, "seconds": stage.seconds, "folder": str(stage.folder)}
            for stage in build.stages
        ],
    }


def result_of(build: Build, page: Path) -> JobResult:
    document = document_of(build) | {"page": str(page)}
    lines = [
        f"{build.drafter}: {shown(build.judged['tokens_per_round'])} tokens a round "
        f"at {build.judged['drafts']} drafts",
        f"  made of   {build.data['samples']:,} samples, {build.states['tokens']:,} tokens, "
        f"{build.states['state_bytes'] / GB:.2f} GB of states, in {duration(build.hours * 3600)}",
        *(f"  {engine:<8}  {told_speed_up(found)}" for engine, found in build.speed_up.items()),
        f"  all of it {page}",
    ]
    return JobResult(document=document, lines=lines, exit_code=ExitCode.GOOD)


def page_of(build: Build) -> str:
    tokens = build.judged["tokens_per_round"]
    parts = [
        f"# A drafter for {code(build.target)}",
        "",
        f"**{shown(tokens)} tokens a round** at {build.judged['drafts']} drafts, walked greedily over "
        f"{build.judged['documents']:,} answers it was not trained on (95 % interval by document).",
        "",
        "| samples | tokens generated | tokens in all | states | time |",
        "|---|---|---|---|---|",
        f"| {build.data['samples']:,} | {build.data['generated_tokens']:,} | {build.states['tokens']:,} "
        f"| {build.states['state_bytes'] / GB:.2f} GB | {duration(build.hours * 3600)} |",
        "",
        "## Acceptance",
        "",
        "| draft | accepted once tried | of all rounds |",
        "|---|---|---|",
        *(
            f"| {each['position']} | {shown(each['conditional'])} | {shown(each['unconditional'])} |"
            for each in build.judged["per_position"]
        ),
        "",
        "For comparison with what trainers print for the same text: product of marginals "
        f"{build.judged['product_of_marginals']:.2f}, uniform joint {build.judged['uniform_joint']:.2f}.",
        "",
        "## Expected speed-up at batch 1",
        "",
        "| engine | a round costs | expected |",
        "|---|---|---|",
        *(
            f"| {engine} | {found['break_even']:.2f} plain steps | {told_speed_up(found)} |"
            for engine, found in build.speed_up.items()
        ),
        "",
        "Tokens a round divided by the cost of a round. The cost is an assumption unless the recipe gives "
        "yours: the default was measured with SmolLM2-135M on one H200, where a drafter's layer is a large "
        "part of the model; with larger targets a round costs less. `shakedown accept` measures both.",
        "",
        "## Served as trained by",
        "",
        *(f"- {engine_line(each)}" for each in build.exported["engines"]),
        "",
        "## Stages",
        "",
        "| stage | time of its last start | folder |",
        "|---|---|---|",
        *(
            f"| {stage.name} | {duration(stage.seconds)} | {code(stage.folder.name)} |"
            for stage in build.stages
        ),
    ]
    return "\n".join(parts) + "\n"


def engine_line(found: Mapping[str, Any]) -> str:
    runner = f", {found['runner']}" if found.get("runner") else ""
    return f"{found['engine']} {found['version']}{runner}: {found['verdict']}"


def told_speed_up(found: Mapping[str, float | None]) -> str:
    value, low, high = found["value"], found["low"], found["high"]
    if low is None or high is None:
        return f"{value:.2f}x"
    return f"{value:.2f}x ({low:.2f} to {high:.2f})"


def shown(interval: Mapping[str, float | None]) -> str:
    if interval["low"] is None or interval["high"] is None:
        return f"{interval['value']:.2f}"
    return f"{interval['value']:.2f} ({interval['low']:.2f} to {interval['high']:.2f})"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def write_page(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode())
    except OSError as problem:
        raise HostProblem(f"{path} cannot be written: {problem.strerror}") from None
