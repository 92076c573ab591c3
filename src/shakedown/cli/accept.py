"""The command `shakedown accept`.

It never decides anything; its job, and torch with it, is imported only when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakedown.cli.finish import finish
from shakedown.cli.options import Number, command_argument, launch_options
from shakedown.cli.output import choose_talk

if TYPE_CHECKING:
    from shakedown.jobs.result import JobResult

folder = click.Path(path_type=Path, exists=True, file_okay=False)
file = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@command_argument
@click.option(
    "--drafter",
    "drafters",
    type=folder,
    multiple=True,
    metavar="D",
    help="EAGLE-3 directory; several compete.",
)
@click.option("--drafts", type=click.IntRange(1, 15), help="With --drafter: tokens drafted a round.")
@click.option("--target", metavar="M", help="The target's folder, where CMD does not tell.")
@click.option("--prompts", type=file, help="JSON Lines; left out: 160 of our own, of 8 kinds.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1024),
    multiple=True,
    default=(1,),
    show_default=True,
    help="Requests at a time; several are measured in turn, the first is judged.",
)
@click.option("--tokens", type=click.IntRange(8), default=64, show_default=True, help="Tokens an answer.")
@click.option("--requests", "most", type=click.IntRange(8), default=160, show_default=True, help="At most.")
@click.option(
    "--margin",
    type=Number(0.01, 2),
    default=0.1,
    show_default=True,
    help="Tokens a round within which the engine is as expected.",
)
@click.option("--trained-on", type=file, help="Samples of `draft synth` that the drafter was trained for.")
@click.option("--states", is_flag=True, help="Look at the engine's states even where nothing is missing.")
@click.option(
    "--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with plots."
)
@launch_options
def accept(
    command: tuple[str, ...],
    as_json: bool,
    drafters: tuple[Path, ...],
    drafts: int | None,
    target: str | None,
    prompts: Path | None,
    concurrency: tuple[int, ...],
    tokens: int,
    most: int,
    margin: float,
    trained_on: Path | None,
    states: bool,
    page: Path | None,
    **options: Any,
) -> None:
    """Say what CMD's drafter is worth, what it should be, and whose fault a gap is."""

    def job() -> JobResult:
        from shakedown.jobs.accept import accept_job
        from shakedown.jobs.accept_request import AcceptRequest
        from shakedown.jobs.request import LaunchRequest

        request = AcceptRequest(
            drafters=drafters,
            drafts=drafts,
            target=target,
            prompts=prompts,
            concurrency=concurrency,
            tokens=tokens,
            most=most,
            margin=margin,
            trained_on=trained_on,
            states=states,
            page=page,
        )
        return accept_job(request, LaunchRequest.here(command, **options), choose_talk())

    finish("accept", as_json, job)
