"""`shakedown stop`: end what a run of ours left."""

from __future__ import annotations

from pathlib import Path

from shakedown.core import Ending, RecordState, SearchRecord, TrialRecord
from shakedown.errors import HostProblem
from shakedown.host.local import LocalHost
from shakedown.jobs.result import ExitCode, JobResult
from shakedown.launch import HEALTHY_GRACE_S
from shakedown.ledger import Ledger


def stop_job(path: Path | None, entry_id: str, *, dry_run: bool) -> JobResult:
    """Ends the processes of one trial, or of every trial of a search, and says what was there."""
    host = LocalHost()
    with Ledger.open(path) as ledger:
        record = ledger.find(entry_id)
        trials = ledger.trials_of(record.id) if isinstance(record, SearchRecord) else (record,)
        done = [stop_trial(ledger, host, trial, dry_run=dry_run) for trial in trials]
    left = any(each["left"] for each in done)
    return JobResult(
        document={"schema": "shakedown/1", "command": "stop", "verdict": None, "trials": done},
        lines=[str(each["said"]) for each in done],
        exit_code=ExitCode.BAD if left else ExitCode.GOOD,
    )


def stop_trial(ledger: Ledger, host: LocalHost, trial: TrialRecord, *, dry_run: bool) -> dict[str, object]:
    try:
        run = host.attach_run(trial.folder)
    except HostProblem:
        return said(trial, "nothing was started", ())
    running = host.processes(run)
    names = [f"{p.name} (pid {p.pid})" for p in running] if isinstance(running, tuple) else []
    if not names:
        return said(trial, "nothing of it is running", ())
    if trial.state is RecordState.OPEN:  # the watcher would take our signal for a crash of the launch
        return said(trial, "still watched by the process that started it: press Ctrl-C there", names)
    if dry_run:
        return said(trial, f"would end {', '.join(names)}", ())
    healthy = trial.kept_running and trial.state is RecordState.FINISHED
    ending = host.end(run, grace_s=HEALTHY_GRACE_S if healthy else 0.0)
    ledger.mark_stopped(trial.id, ending)
    return said(trial, told(ending, names), [f"{p.name} (pid {p.pid})" for p in ending.left])


def told(ending: Ending, names: list[str]) -> str:
    if ending.left:
        still = ", ".join(f"{p.name} (pid {p.pid}, state {p.state})" for p in ending.left)
        return f"STILL ALIVE: {still}"
    swept = f", {len(ending.swept_shm)} shared memory segments unlinked" if ending.swept_shm else ""
    return f"ended {', '.join(names)} in {ending.seconds:.1f} s{swept}"


def said(trial: TrialRecord, text: str, left: list[str] | tuple[str, ...]) -> dict[str, object]:
    return {"id": trial.id, "said": f"{trial.id}: {text}", "left": list(left)}
