"""The commands of `shakedown draft` that look at a finished drafter: lint, evaluate, export.

It never decides anything; a job, and torch with it, is imported only when its command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shakedown.cli.draft import draft
from shakedown.cli.finish import finish
from shakedown.cli.options import json_option

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
