"""The commands of `shakedown draft` that look at a finished drafter: lint, evaluate, export.

It never decides anything; a job, and torch with it, is imported only when its command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shakedown.cli.draft import draft
from shakedown.cli.finish import finish
from shakedown.cli.options import Number, json_option
from shakedown.cli.output import choose_talk

if TYPE_CHECKING:
    from shakedown.jobs.result import JobResult

__all__ = ["draft"]  # the group, with these commands in it

folder = click.Path(path_type=Path, exists=True, file_okay=False)


@draft.command()
@click.argument("directory", type=folder, metavar="DIR")
@click.option("--target", type=folder, metavar="M", help="The model it drafts for: folder of a checkpoint.")
@click.option("--engine", type=click.Choice(["vllm", "sglang"]), help="Judge for this engine only.")
@click.option("--engine-version", "version", metavar="V", help="Judge for the nearest version known below.")
@click.option(
    "--engine-python", "python", metavar="P", help="Judge for the engine that this interpreter has, as it is."
)
@json_option
def lint(
    directory: Path,
    target: Path | None,
    engine: str | None,
    version: str | None,
    python: str | None,
    as_json: bool,
) -> None:
    """Say what an engine would ignore in any EAGLE-3 directory, and whether it serves as trained."""

    def job() -> JobResult:
        from shakedown.jobs.draft_lint import LintRequest, lint_job

        return lint_job(
            LintRequest(drafter=directory, target=target, engine=engine, version=version, python=python)
        )

    finish("draft lint", as_json, job)


@draft.command()
@click.option("--target", metavar="M", required=True, help="The model it drafts for: folder or name.")
@click.option("--drafter", type=folder, metavar="D", required=True, help="Any EAGLE-3 directory like ours.")
@click.option("--states", type=folder, help="The text, with states of `draft extract`.")
@click.option(
    "--samples",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The text, as samples of `draft synth`: states are computed.",
)
@click.option("--drafts", type=click.IntRange(1, 15), default=3, show_default=True, help="The engine's k.")
@click.option(
    "--temperature",
    type=Number(0, 10),
    default=0.0,
    show_default=True,
    help="0: greedy. Above: also the rules by which engines accept then.",
)
@click.option("--documents", type=click.IntRange(1), help="Only so many, from the first on.")
@click.option("--device", metavar="D", help="Left out: the first GPU, or the CPU.")
@json_option
def evaluate(
    target: str,
    drafter: Path,
    states: Path | None,
    samples: Path | None,
    drafts: int,
    temperature: float,
    documents: int | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Say how many tokens a round a drafter gives on the target's own text, as an engine counts them."""

    def job() -> JobResult:
        from shakedown.jobs.draft_evaluate import EvaluateRequest, evaluate_job

        request = EvaluateRequest(
            target=target,
            drafter=drafter,
            states=states,
            samples=samples,
            drafts=drafts,
            temperature=temperature,
            documents=documents,
            device=device,
        )
        return evaluate_job(request, choose_talk())

    finish("draft evaluate", as_json, job)


@draft.command()
@click.option("--target", metavar="M", required=True, help="The model it drafts for: folder or name.")
@click.option("--checkpoint", type=folder, required=True, help="The folder of `draft train`, or one step's.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="New folder.")
@json_option
def export(target: str, checkpoint: Path, out: Path, as_json: bool) -> None:
    """Write a trained drafter as one directory that SGLang and vLLM serve, read back and linted."""

    def job() -> JobResult:
        from shakedown.jobs.draft_export import ExportRequest, export_job

        return export_job(ExportRequest(target=target, checkpoint=checkpoint, out=out))

    finish("draft export", as_json, job)
