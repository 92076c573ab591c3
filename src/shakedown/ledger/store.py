"""The ledger: opened, and written to; nothing in it is ever changed.

Records come redacted. It never judges, and never formats.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from shakedown.core import (
    Conclusion,
    Ending,
    Judgement,
    Phase,
    RecordState,
    SearchRecord,
    TrialRecord,
    Verdict,
)
from shakedown.errors import LedgerProblem
from shakedown.ledger.codec import to_text
from shakedown.ledger.events import Closing, Concluding, EventKind, Stopping, experiment_key
from shakedown.ledger.ids import Kind, make_id
from shakedown.ledger.migrations import migrate
from shakedown.ledger.place import ELSEWHERE, default_path, make_folder, on_network, prepare
from shakedown.ledger.problems import BUSY_S, reported
from shakedown.ledger.query import Queries
from shakedown.ledger.writers import hold, this_writer

MODEL_FACT = "model_key"  # the fact of a trial that says what its timings are learnt for


class Ledger(Queries):
    """One open ledger, for one thread; other processes may have it open too.

    Every write is on the disk when its method returns. All methods raise `LedgerProblem`.
    """

    @classmethod
    def open(cls, path: Path | None = None) -> Self:
        """The ledger at `path` (None: the user's own), made where it is missing."""
        path = prepare(path or default_path())
        with reported(path):
            connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            try:
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA foreign_keys = ON")
                migrate(connection)
                _set_journal(connection, "delete" if on_network(path) else "wal")
                connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut, too
            except BaseException:
                connection.close()
                raise
        return cls(path, connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for name in tuple(self._held):
            self._let_go(name)
        with reported(self.path):
            self._connection.close()

    def new_id(self, kind: Kind) -> str:
        while True:
            name = make_id(kind, datetime.now(UTC))
            if not self._rows("SELECT 1 FROM entry WHERE id = ?", (name,)):
                return name

    def run_folder(self, trial_id: str) -> Path:
        """The folder of a trial's log and state, beside the ledger; made, for the user alone."""
        folder = self.folder_of(trial_id)
        try:
            make_folder(folder)
        except OSError as error:
            raise LedgerProblem(f"the folder {folder} cannot be made: {error.strerror}", ELSEWHERE) from error
        return folder

    def open_trial(self, record: TrialRecord) -> None:
        """Write a trial down, before its launch is started."""
        key = experiment_key(record.experiment) if record.experiment else None
        model_key = dict(record.facts).get(MODEL_FACT, "")
        text = to_text(replace(record, state=RecordState.OPEN))
        self._enter(record.id, Kind.TRIAL, record.search_id, record.engine, model_key, key, text)

    def close_trial(
        self,
        trial_id: str,
        judgement: Judgement,
        *,
        seconds: float,
        ending: Ending | None = None,
        silences: Mapping[Phase, float] | None = None,
        kept_running: bool = False,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Write down what became of a trial, after it is cleaned. A second closing corrects the first.

        `silences` are the longest quiet spells of each phase in seconds; `facts` add to the opening's.
        """
        closing = Closing(
            judgement=judgement,
            seconds=seconds,
            ending=ending,
            silences=silences or {},
            kept_running=kept_running,
            facts=tuple((facts or {}).items()),
        )
        self._add(trial_id, EventKind.CLOSED, closing, judgement.verdict)
        self._let_go(trial_id)

    def open_search(self, record: SearchRecord) -> None:
        text = to_text(replace(record, state=RecordState.OPEN))
        self._enter(record.id, Kind.SEARCH, None, record.engine, "", None, text)

    def close_search(self, search_id: str, conclusion: Conclusion, *, seconds: float) -> None:
        """Write down what a search found; `seconds` are those of all its sittings."""
        self._add(search_id, EventKind.CONCLUDED, Concluding(conclusion=conclusion, seconds=seconds))

    def adopt(self, search_id: str) -> bool:
        """From now on this process goes on with the search; False where another one does.

        Of two that come at once one gets it.
        """
        with self._writing() as connection:
            if self.search(search_id).state is RecordState.OPEN:
                return False
            self._insert(connection, search_id, EventKind.ADOPTED, this_writer())
            self._hold(search_id)  # before anybody can read who goes on with it
        return True

    def mark_stopped(self, trial_id: str, ending: Ending | None = None) -> None:
        """What an interrupted or kept trial left running is ended now."""
        self._add(trial_id, EventKind.STOPPED, Stopping(ending=ending))

    def _enter(
        self,
        name: str,
        kind: Kind,
        search_id: str | None,
        engine: str,
        model_key: str,
        key: str | None,
        record: str,
    ) -> None:
        columns = "id, kind, search_id, engine, model_key, experiment_key, writer, record"
        values = (name, kind, search_id, engine, model_key, key, to_text(this_writer()), record)
        with self._writing() as connection:
            connection.execute(f"INSERT INTO entry ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
            self._hold(name)

    def _hold(self, entry_id: str) -> None:
        self._let_go(entry_id)
        with suppress(OSError):
            make_folder(self.folder_of(entry_id))
        if (held := hold(self.folder_of(entry_id))) is not None:
            self._held[entry_id] = held

    def _let_go(self, entry_id: str) -> None:
        if (held := self._held.pop(entry_id, None)) is not None:
            os.close(held)

    def _add(self, entry_id: str, kind: EventKind, body: object, verdict: Verdict | None = None) -> None:
        with self._writing() as connection:
            self._insert(connection, entry_id, kind, body, verdict)

    def _insert(
        self,
        connection: sqlite3.Connection,
        entry_id: str,
        kind: EventKind,
        body: object,
        verdict: Verdict | None = None,
    ) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        connection.execute(
            "INSERT INTO event (entry_id, kind, at, verdict, body) VALUES (?, ?, ?, ?, ?)",
            (entry_id, kind, now, verdict, to_text(body)),
        )

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with reported(self.path):
            self._connection.execute("BEGIN IMMEDIATE")  # waits for its turn here, never in mid-write
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _set_journal(connection: sqlite3.Connection, mode: str) -> None:
    """SQLite does not wait for its turn to change the mode, so it is asked again while others are busy."""
    until = monotonic() + BUSY_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != mode:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}")
        except sqlite3.OperationalError:
            if monotonic() > until:
                raise
            sleep(0.05)
