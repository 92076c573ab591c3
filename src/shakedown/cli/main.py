"""The command line: parse, call a job, render, exit.

It never decides anything; a job is imported only when its command runs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from shakedown import __version__
from shakedown.cli.accept import accept
from shakedown.cli.draft_build import draft
from shakedown.cli.finish import finish, tell_defect
from shakedown.cli.options import (
    Duration,
    command_argument,
    engine_option,
    expect_option,
    fleet_options,
    json_option,
    launch_options,
    ledger_option,
    machine_options,
    nodes_option,
)
from shakedown.cli.output import choose_talk, print_usage, settle_streams, unread_help
from shakedown.cli.recorded import report, runs, show, stop
from shakedown.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from shakedown.jobs.fleet import Fleet
    from shakedown.jobs.result import JobResult


class Commands(click.Group):
    """Help that is not read to its end, as by `head`, is no failure."""

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        with unread_help():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with unread_help():
            return super().invoke(ctx)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="shakedown")
def cli() -> None:
    """The test run for a new LLM server: launch, watch, judge, isolate, prove."""


@cli.command()
@command_argument
@launch_options
@expect_option
@nodes_option
@click.option("--keep", is_flag=True, help="Leave a server that serves running; end it with `stop ID`.")
@click.option("--detach", is_flag=True, help="Watch it in the background; see it with `show ID --follow`.")
def run(
    command: tuple[str, ...], as_json: bool, nodes: Path | None, keep: bool, detach: bool, **options: Any
) -> None:
    """Launch CMD once, watch it to a verdict, stop it."""

    def job() -> JobResult:
        from shakedown.jobs.detach import detach_job
        from shakedown.jobs.request import LaunchRequest
        from shakedown.jobs.run import run_job

        if nodes is not None:
            from shakedown.jobs.nodes import run_nodes_job

            if keep or detach:
                raise UsageError(
                    "a launch of several nodes is ended after its verdict: no --keep, no --detach"
                )
            return run_nodes_job(LaunchRequest.here(command, **options), nodes, choose_talk())

        start = detach_job if detach else run_job
        return start(LaunchRequest.here(command, **options), choose_talk(), keep=keep)

    finish("run", as_json, job)


@cli.command()
@command_argument
@launch_options
@expect_option
@nodes_option
@click.option("--max-launches", type=click.IntRange(1), default=40, show_default=True, help="Launch at most.")
@click.option("--intermittent", is_flag=True, help="It comes and goes: a launch that serves proves less.")
@click.option("--resume", metavar="ID", help="Go on with an interrupted search; finished trials count.")
@click.option("--pid", type=click.IntRange(1), help="Read CMD, its variables and folder from a process.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the planner.")
@fleet_options
def isolate(
    command: tuple[str, ...],
    as_json: bool,
    nodes: Path | None,
    max_launches: int,
    intermittent: bool,
    resume: str | None,
    pid: int | None,
    seed: int,
    executor: str,
    workers: int | None,
    ray_address: str | None,
    gpus_per_launch: int | None,
    **options: Any,
) -> None:
    """Find and prove what makes CMD fail, and hand back CMD, working."""

    def job() -> JobResult:
        from shakedown.core import INTERMITTENT_FACT
        from shakedown.jobs.isolate import isolate_job
        from shakedown.jobs.request import LaunchRequest

        facts = ((INTERMITTENT_FACT, "yes"),) if intermittent else ()
        request, talk = LaunchRequest.here(command, facts=facts, **options), choose_talk()
        fleet = fleet_of(executor, workers, ray_address, gpus_per_launch)
        if nodes is not None and fleet is not None:
            raise UsageError("--launch starts one launch on several nodes: give no --executor ray with it")
        if nodes is not None:
            from shakedown.jobs.nodes_isolate import isolate_nodes_job

            if pid is not None:
                raise UsageError("--launch reads the commands from a file: give no --pid with it")
            return isolate_nodes_job(
                request, nodes, talk, max_launches=max_launches, resume=resume, seed=seed
            )
        if pid is not None and (command or resume):
            raise UsageError("--pid reads the command from a process: give neither CMD nor --resume with it")
        return isolate_job(
            request, talk, max_launches=max_launches, resume=resume, seed=seed, pid=pid, fleet=fleet
        )

    finish("isolate", as_json, job)


def fleet_of(
    executor: str, workers: int | None, ray_address: str | None, gpus_per_launch: int | None
) -> Fleet | None:
    from shakedown.jobs.fleet import Fleet

    if executor == "ray":
        return Fleet(workers=workers or 2, address=ray_address, gpus_per_launch=gpus_per_launch)
    if (workers or 1) > 1 or ray_address is not None or gpus_per_launch is not None:
        raise UsageError(
            "--workers, --ray-address and --gpus-per-launch belong to --executor ray",
            "give --executor ray with them",
        )
    return None


@cli.command()
@click.argument("target", metavar="URL|PID")
@click.option(
    "--log", type=click.Path(path_type=Path, dir_okay=False), help="Its log, where no file is open."
)
@click.option("--numeric", is_flag=True, help="Also send requests for log-probabilities.")
@engine_option
@machine_options
@click.option("--deadline", type=Duration(), help="Judge what is known after this long: 90s, 10m, 2h.")
@ledger_option
@json_option
def attach(
    target: str,
    log: Path | None,
    numeric: bool,
    engine: str | None,
    deadline: float | None,
    ledger: Path | None,
    as_json: bool,
    host: str | None,
    via: str | None,
) -> None:
    """Judge a running server, whoever started it; never stop it."""

    def job() -> JobResult:
        from shakedown.jobs.attach import attach_job
        from shakedown.jobs.running import AttachRequest

        request = AttachRequest(
            where=target,
            log=log,
            numeric=numeric,
            engine=engine,
            deadline_s=deadline,
            ledger=ledger,
            host=host,
            via=via,
        )
        return attach_job(request, choose_talk())

    finish("attach", as_json, job)


@cli.command()
@command_argument
@engine_option
@machine_options
@click.option("--port", type=click.IntRange(1, 65535), help="Where the server will listen, if CMD hides it.")
@json_option
def check(command: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Say what would make CMD fail, before any weights are loaded; without CMD, look at the machine."""

    def job() -> JobResult:
        from shakedown.jobs.check import check_job
        from shakedown.jobs.request import LaunchRequest

        return check_job(LaunchRequest.here(command, **options), choose_talk())

    finish("check", as_json, job)


@cli.command()
@click.option("--max-launches", type=click.IntRange(1), default=12, show_default=True)
@click.option("--deadline", type=Duration(), default="20m", show_default=True)
@ledger_option
@json_option
def demo(max_launches: int, deadline: float, ledger: Path | None, as_json: bool) -> None:
    """The main job on a real engine with a real fault, on a CPU."""
    from shakedown.jobs.demo import demo_job

    finish("demo", as_json, lambda: demo_job(choose_talk(), ledger, max_launches, deadline))


for command in (accept, draft, report, runs, show, stop):
    cli.add_command(command)


def main() -> NoReturn:
    settle_streams()
    try:
        sys.exit(cli.main(prog_name="shakedown", standalone_mode=False))
    except click.ClickException as error:
        print_usage(error, sys.argv[1:])
        sys.exit(error.exit_code)
    except click.Abort:  # Ctrl-C before a job began
        sys.exit(Interrupted.exit_code)
    except Exception as unforeseen:  # noqa: BLE001  (while the words were read; told with its trace)
        sys.exit(tell_defect(unforeseen, as_json=False, command=""))
