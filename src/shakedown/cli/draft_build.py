"""The command `shakedown draft build`.

It never decides anything; its job, and torch with it, is imported only when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakedown.cli.draft import target_options
from shakedown.cli.draft_checks import draft
from shakedown.cli.finish import finish
from shakedown.cli.options import Url, command_argument, server_options
from shakedown.cli.output import choose_talk

if TYPE_CHECKING:
    from shakedown.jobs.result import JobResult

__all__ = ["draft"]  # the group, with this command in it


@draft.command()
@command_argument
@target_options
@click.option("--server", type=Url(), metavar="URL", help="Where it is served; or give the command: -- CMD.")
@click.option(
    "--recipe",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML: what differs from the defaults, which fit the target's size.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder.")
@server_options
def build(
    command: tuple[str, ...],
    as_json: bool,
    target: str,
    trust_remote_code: bool,
    server: str | None,
    recipe: Path | None,
    out: Path,
    **options: Any,
) -> None:
    """All of it: synth, extract, train, export, evaluate; a stage that is done is not done again."""

    def job() -> JobResult:
        from shakedown.jobs.draft_build import BuildRequest, build_job
        from shakedown.jobs.request import LaunchRequest

        request = BuildRequest(
            target=target, out=out, recipe=recipe, server=server, trust_remote_code=trust_remote_code
        )
        return build_job(request, LaunchRequest.here(command, **options), choose_talk())

    finish("draft build", as_json, job)
