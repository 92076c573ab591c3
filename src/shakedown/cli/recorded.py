"""Commands about what was recorded or still runs: `runs`, `show`, `report`, `stop`.

A job is imported only when its command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from shakedown.cli.finish import finish
from shakedown.cli.options import Duration, json_option, ledger_option, machine_options
from shakedown.cli.output import choose_talk
from shakedown.errors import UsageError

if TYPE_CHECKING:
    from shakedown.jobs.result import JobResult


@click.command()
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Show at most.")
@ledger_option
@json_option
def runs(limit: int, ledger: Path | None, as_json: bool) -> None:
    """List the ledger, newest first."""
    from shakedown.jobs.ledger import runs_job

    finish("runs", as_json, lambda: runs_job(ledger, limit))


@click.command()
@click.argument("id")
@click.option("--follow", is_flag=True, help="Show how a run goes until it is judged; exit as `run` would.")
@ledger_option
@json_option
def show(id: str, follow: bool, ledger: Path | None, as_json: bool) -> None:
    """Tell one run or search as a chain: observed, suspected, tried, concluded, next."""
    from shakedown.jobs.ledger import follow_job, show_job

    finish("show", as_json, lambda: follow_job(ledger, id, choose_talk()) if follow else show_job(ledger, id))


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID [ID]")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["md", "json", "html", "junit", "vllm-issue", "sglang-issue"]),
    help="Left out: md; for two IDs a table for the terminal.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file.")
@ledger_option
def report(ids: tuple[str, ...], kind: str | None, output: Path | None, ledger: Path | None) -> None:
    """Write the report of one run or search, or set two side by side."""
    from shakedown.jobs.report import report_job

    as_json = kind == "json" and output is None
    finish("report", as_json, lambda: report_job(ledger, ids, kind, output))


@click.command()
@click.argument("id", required=False)
@click.option("--pid", type=click.IntRange(1), help="A process that no run of ours started: show its tree.")
@click.option("--yes", is_flag=True, help="With --pid: end exactly what is shown, and children it forks.")
@click.option("--grace", type=Duration(), default="15s", show_default=True, help="With --pid: before KILL.")
@click.option("--dry-run", is_flag=True, help="Print what would be signalled; signal nothing.")
@machine_options
@ledger_option
@json_option
def stop(
    id: str | None,
    pid: int | None,
    yes: bool,
    grace: float,
    dry_run: bool,
    ledger: Path | None,
    as_json: bool,
    **machine: str | None,
) -> None:
    """End what a run or search of ours left running, or with --pid and --yes a foreign process tree."""

    def job() -> JobResult:
        from shakedown.jobs.stop import stop_foreign_job, stop_job

        if id is not None and pid is None:
            return stop_job(ledger, id, choose_talk(), dry_run=dry_run, **machine)
        if pid is not None and id is None:
            return stop_foreign_job(pid, choose_talk(), agreed=yes, dry_run=dry_run, grace_s=grace, **machine)
        raise UsageError("say what to stop: the ID of a run, or --pid P, not both")

    finish("stop", as_json, job)
