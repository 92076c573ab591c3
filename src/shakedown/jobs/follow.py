"""`shakedown show ID --follow`: how a run goes, read from what its watcher and supervisor leave on the disk.

It never signals anything and never judges: the run's own watcher does.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path

from shakedown.core import Exit, RecordState, SearchRecord, TrialRecord
from shakedown.engines import engine_named
from shakedown.errors import HostProblem, Interrupted, UsageError
from shakedown.host.machine import Machine
from shakedown.jobs.machines import machine_of
from shakedown.jobs.result import Progress, Talk
from shakedown.ledger import Ledger
from shakedown.report.again import ours
from shakedown.watch.log import LogReader
from shakedown.watch.phases import Timeline

LOOK_S = 0.5


class Sight:
    """One run as its redacted log and its state show it. Times count from its start."""

    def __init__(self, record: TrialRecord, machine: Machine) -> None:
        self._record = record
        self._host = machine
        engine = engine_named(record.engine)
        self._reader, self._timeline = LogReader(engine), Timeline(engine)
        self._offset = 0

    def look(self) -> Progress | None:
        """None while nothing is started yet."""
        try:
            run = self._host.attach_run(self._record.folder)
        except HostProblem:
            return None
        at_s = self._host.clock_s() - run.started_s
        data = b""
        if self._reader.hungry:
            data, self._offset = self._host.read_log(run, self._offset)
        lines = self._reader.feed(data, at_s)
        for line in lines:
            self._timeline.read(line.rank, line.text, at_s)
        return Progress(
            at_s=at_s,
            title=self._record.id,
            phase=self._timeline.common,
            state="exited" if isinstance(self._host.exit_of(run), Exit) else "running",
            quiet_s=quiet_s(self._record.folder),
            lines=tuple((seen.line, seen.noise) for seen in lines),
        )


def quiet_s(folder: Path) -> float:
    """Since the last line of its log was written, also before we came."""
    written = [path.stat().st_mtime for path in folder.glob("launch.log*") if path.exists()]
    return max(0.0, time.time() - max(written)) if written else 0.0


def follow(path: Path | None, entry_id: str, talk: Talk) -> TrialRecord:
    """The record once closed, or its watcher is gone. Raises Interrupted, which only ends the looking."""
    with Ledger.open(path) as ledger, ExitStack() as machines:
        record = ledger.find(entry_id)
        if isinstance(record, SearchRecord):
            raise UsageError(
                f"{record.id} is a search; --follow follows one run",
                f"its launches so far: {ours('show', record.id, dict(record.facts))}",
            )
        sight = Sight(record, machines.enter_context(closing(machine_of(dict(record.facts), talk))))
        try:
            while record.state is RecordState.OPEN:
                if progress := sight.look():
                    talk.progress(progress)
                time.sleep(LOOK_S)
                record = ledger.trial(record.id)
        except KeyboardInterrupt:
            raise Interrupted(
                f"no longer followed; {record.id} goes on",
                f"look again: {ours('show', record.id, dict(record.facts))} --follow",
                f"end it: {ours('stop', record.id, dict(record.facts))}",
            ) from None
    if record.state is RecordState.INTERRUPTED:
        talk.say("its watcher is gone, so there is no verdict; what it started may still run")
    return record
