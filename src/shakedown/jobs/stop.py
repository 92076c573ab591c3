"""`shakedown stop`: end what a run of ours left, or a foreign tree once it was shown and agreed to."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from shakedown.core import Ending, Missing, RecordState, SearchRecord, TrialRecord
from shakedown.errors import HostProblem
from shakedown.host import foreign
from shakedown.host.ending import signal_process
from shakedown.host.felling import Felled, fell
from shakedown.host.machine import FOLDER_FACT, Machine
from shakedown.host.shm import still_there
from shakedown.host.survey import Survey
from shakedown.jobs.foreign import survey, survey_document, survey_lines
from shakedown.jobs.machines import machine_at, machine_of
from shakedown.jobs.result import ExitCode, JobResult, Talk
from shakedown.jobs.trials import DETACHED_FACT
from shakedown.launch import HEALTHY_GRACE_S
from shakedown.ledger import Ledger

WATCHER_S = 60.0  # its clean-up ends in 30 s even where nothing answers


def stop_job(
    path: Path | None,
    entry_id: str,
    talk: Talk,
    *,
    dry_run: bool,
    host: str | None = None,
    via: str | None = None,
) -> JobResult:
    """Ends the processes of one trial, or of every trial of a search, and says what was there."""
    with Ledger.open(path) as ledger:
        record = ledger.find(entry_id)
        trials = ledger.trials_of(record.id) if isinstance(record, SearchRecord) else (record,)
        facts = dict(record.facts)
        folder = Path(facts[FOLDER_FACT]) if FOLDER_FACT in facts else None
        far = machine_at(host, via, talk, folder=folder) if host or via else machine_of(facts, talk)
        with closing(far) as machine:
            done = [stop_trial(ledger, machine, trial, dry_run=dry_run) for trial in trials]
    left = any(each["left"] for each in done)
    return JobResult(
        document={"schema": "shakedown/1", "command": "stop", "verdict": None, "trials": done},
        lines=[str(each["said"]) for each in done],
        exit_code=ExitCode.BAD if left else ExitCode.GOOD,
    )


def stop_trial(ledger: Ledger, host: Machine, trial: TrialRecord, *, dry_run: bool) -> dict[str, object]:
    try:
        run = host.attach_run(trial.folder)
    except HostProblem:
        return said(trial, "nothing was started", ())
    running = host.processes(run)
    if isinstance(running, Missing):  # inside a container, for one
        names = ["what it started"]
    else:
        names = [f"{p.name} (pid {p.pid})" for p in running]
    if not names:
        return said(trial, "nothing of it is running", ())
    detached = DETACHED_FACT in dict(trial.facts)
    if trial.state is RecordState.OPEN and not detached:
        # The watcher would take our signal for a crash of the launch.
        return said(trial, "still watched by the process that started it: press Ctrl-C there", names)
    if dry_run:
        return said(trial, f"would end {', '.join(names)}", ())
    if trial.state is RecordState.OPEN:
        trial = end_watch(ledger, trial)
        if trial.state is RecordState.OPEN:
            return said(trial, f"its watcher has not ended it within {WATCHER_S:.0f} s", names)
    healthy = trial.kept_running and trial.state is RecordState.FINISHED
    ending = host.end(run, grace_s=HEALTHY_GRACE_S if healthy else 0.0)
    ledger.mark_stopped(trial.id, ending)
    return said(trial, told(ending, names), [f"{p.name} (pid {p.pid})" for p in ending.left])


def end_watch(ledger: Ledger, trial: TrialRecord) -> TrialRecord:
    """Asks a detached watcher to clean up, as Ctrl-C asks one in a terminal; the record after that."""
    if watcher := ledger.writer_of(trial.id):
        signal_process(watcher, signal.SIGTERM)
    until = time.monotonic() + WATCHER_S
    while (trial := ledger.trial(trial.id)).state is RecordState.OPEN and time.monotonic() < until:
        time.sleep(0.05)
    return trial


def told(ending: Ending, names: list[str]) -> str:
    if ending.left:
        still = ", ".join(f"{p.name} (pid {p.pid}, state {p.state})" for p in ending.left)
        return f"STILL ALIVE: {still}"
    swept = f", {len(ending.swept_shm)} shared memory segments unlinked" if ending.swept_shm else ""
    return f"ended {', '.join(names)} in {ending.seconds:.1f} s{swept}"


def said(trial: TrialRecord, text: str, left: list[str] | tuple[str, ...]) -> dict[str, object]:
    return {"id": trial.id, "said": f"{trial.id}: {text}", "left": list(left)}


def stop_foreign_job(
    pid: int,
    talk: Talk,
    *,
    agreed: bool,
    dry_run: bool,
    grace_s: float,
    host: str | None = None,
    via: str | None = None,
) -> JobResult:
    """Shows a process that we did not start, with its descendants; ends exactly these once `agreed`.

    Raises UsageError for what is never ended.
    """
    with closing(machine_at(host, via, talk)) as machine:
        return stop_foreign_on(machine, pid, agreed=agreed, dry_run=dry_run, grace_s=grace_s)


def stop_foreign_on(machine: Machine, pid: int, *, agreed: bool, dry_run: bool, grace_s: float) -> JobResult:
    found = survey(pid, machine)
    if found is None:
        text = f"there is no process {pid}: it is already dead"
        return foreign_result({"pid": pid, "said": text, "ended": 0, "left": []}, [text], ExitCode.GOOD)
    machine.ask(foreign.refuse_to_end, pid)
    lines, document = survey_lines(found), survey_document(found)
    if dry_run or not agreed:
        count = len(found.members)
        text = f"nothing was ended; --yes ends exactly {'these' if count > 1 else 'this'}"
        document |= {"said": text, "ended": 0, "left": []}
        return foreign_result(document, [*lines, text], ExitCode.GOOD if dry_run else ExitCode.USAGE)
    users = {member.uid for member in found.members}
    felled = machine.ask(fell, found.process.identity, users=users, grace_s=grace_s)
    left = [each.pid for each in felled.left]
    said_lines = felled_lines(felled, found, machine.ask(still_there, found.shm))
    document |= {"said": said_lines[0], "ended": felled.ended, "left": left, "seconds": felled.seconds}
    return foreign_result(document, [*lines, *said_lines], ExitCode.BAD if left else ExitCode.GOOD)


def felled_lines(felled: Felled, found: Survey, kept: Sequence[str]) -> list[str]:
    forced = ", some of them only by KILL" if felled.forced else ""
    count = f"{felled.ended} process{'es' * (felled.ended != 1)}"
    lines = [f"ended {count} in {felled.seconds:.1f} s{forced}" if felled.ended else "already dead"]
    if felled.left:
        names = {member.sample.pid: member.sample.name for member in found.members}
        still = ", ".join(f"{names.get(each.pid, 'a process')} (pid {each.pid})" for each in felled.left)
        lines.insert(0, f"STILL ALIVE: {still}")
    if kept:
        lines.append(f"left in /dev/shm: {', '.join(kept)}; others may use it, so it is yours to remove")
    return lines


def foreign_result(document: dict[str, object], lines: list[str], exit_code: ExitCode) -> JobResult:
    head = {"schema": "shakedown/1", "command": "stop", "verdict": None}
    return JobResult(document=head | document, lines=lines, exit_code=exit_code)
