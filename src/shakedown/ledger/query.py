"""Questions to the ledger: one record, the latest runs, what a search has, what was learnt.

It never writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from shakedown.core import (
    BESIDE_FACT,
    BOOT_FACT,
    WEIGHTS_FACT,
    Experiment,
    Identity,
    LogNormal,
    Outcome,
    Phase,
    RecordState,
    SearchRecord,
    TrialRecord,
    Verdict,
)
from shakedown.errors import UsageError
from shakedown.ledger.codec import decode, from_text
from shakedown.ledger.events import (
    Closing,
    Event,
    EventKind,
    experiment_key,
    last_writer,
    search_after,
    trial_after,
)
from shakedown.ledger.ids import Kind
from shakedown.ledger.problems import reported
from shakedown.ledger.writers import Writer, boot_id, is_gone, this_writer

SILENCE_FACTOR = 3.0  # a suspect is silent three times longer than any healthy start was …
SILENCE_FLOOR_S = 15.0  # … and never under this: a busy machine stretches a short silence
LEARNT_FROM = 20  # trials: one start with a cold compile cache is forgotten in time

ENTRIES = "SELECT id, kind, writer, record FROM entry"


class Queries:
    """All reading. Every method raises `LedgerProblem` for a ledger that cannot be read."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._held: dict[str, int] = {}

    def folder_of(self, entry_id: str) -> Path:
        """Where the log and the state of an entry lie, beside the ledger."""
        return self.path.parent / "runs" / entry_id

    def trial(self, id_prefix: str) -> TrialRecord:
        found = self._named(id_prefix, Kind.TRIAL)
        assert isinstance(found, TrialRecord)
        return found

    def search(self, id_prefix: str) -> SearchRecord:
        found = self._named(id_prefix, Kind.SEARCH)
        assert isinstance(found, SearchRecord)
        return found

    def find(self, id_prefix: str) -> TrialRecord | SearchRecord:
        """The one record whose ID begins with `id_prefix`, or has it as its last block.

        Raises `UsageError` for none or several.
        """
        return self._named(id_prefix, None)

    def runs(self, limit: int = 20) -> tuple[TrialRecord | SearchRecord, ...]:
        """The latest searches and single runs, newest first; trials of a search are not listed."""
        return self._records(f"{ENTRIES} WHERE search_id IS NULL ORDER BY seq DESC LIMIT ?", (limit,))

    def trials_of(self, search_id: str) -> tuple[TrialRecord, ...]:
        """Every trial of a search (its whole ID), in the order in which they were started."""
        found = self._records(f"{ENTRIES} WHERE search_id = ? ORDER BY seq", (search_id,))
        return tuple(record for record in found if isinstance(record, TrialRecord))

    def interrupted(self) -> tuple[TrialRecord, ...]:
        """Trials whose process is gone before it closed them and that nobody has stopped since."""
        query = (
            f"{ENTRIES} WHERE kind = ? AND NOT EXISTS (SELECT 1 FROM event WHERE entry_id = entry.id"
            " AND kind IN (?, ?)) ORDER BY seq"
        )
        found = self._records(query, (Kind.TRIAL, EventKind.CLOSED, EventKind.STOPPED))
        return tuple(r for r in found if isinstance(r, TrialRecord) and r.state is RecordState.INTERRUPTED)

    def kept(self) -> tuple[TrialRecord, ...]:
        """Trials whose launch was left running on purpose and that nobody has stopped since."""
        query = (
            f"{ENTRIES} WHERE EXISTS (SELECT 1 FROM event WHERE entry_id = entry.id AND kind = ?"
            " AND body LIKE '%\"kept_running\":true%') ORDER BY seq"
        )
        found = self._records(query, (EventKind.CLOSED,))
        return tuple(r for r in found if isinstance(r, TrialRecord) and r.kept_running)

    def recall(
        self, search_id: str, experiment: Experiment, *, facts: Mapping[str, str] | None = None
    ) -> Outcome | None:
        """What the same experiment showed in the same search, if it was finished.

        Only with equal `facts` ("": the trial has none), and only since this boot, of which the facts may
        tell for another machine: a changed one is asked again. A failure of the surroundings is no answer.
        """
        query = f"{ENTRIES} WHERE search_id = ? AND experiment_key = ? ORDER BY seq DESC"
        for row in self._rows(query, (search_id, experiment_key(experiment))):
            trial = self._record(row)
            with reported(self.path):
                writer = from_text(Writer, row["writer"])
            assert isinstance(trial, TrialRecord)
            if trial.state is not RecordState.FINISHED or trial.judgement is None or trial.seconds is None:
                continue
            same_machine = not differing(trial, facts or {})
            if BOOT_FACT not in (facts or {}):
                same_machine = same_machine and writer.boot_id == boot_id()
            if same_machine and not trial.judgement.environment:
                return Outcome(
                    trial_id=trial.id,
                    judgement=trial.judgement,
                    seconds=trial.seconds,
                    alone=BESIDE_FACT not in dict(trial.facts),
                )
        return None

    def learnt_silences(self, engine: str, model_key: str) -> Mapping[Phase, float]:
        """Seconds of silence after which a phase is suspect, for phases that healthy starts have shown."""
        longest: dict[Phase, float] = {}
        for closing in self._closings(engine, model_key, Verdict.SERVES):
            for phase, silence_s in closing.silences.items():
                longest[phase] = max(silence_s, longest.get(phase, 0.0))
        return {phase: max(SILENCE_FLOOR_S, SILENCE_FACTOR * s) for phase, s in longest.items()}

    def phase_times(self, engine: str, model_key: str | None) -> Mapping[Phase, LogNormal]:
        """How long each phase takes in healthy starts, each by its slowest rank; model None: of any."""
        seen: dict[Phase, list[float]] = {}
        for closing in self._closings(engine, model_key, Verdict.SERVES):
            for phase, took_s in _phase_seconds(closing).items():
                seen.setdefault(phase, []).append(took_s)
        return {phase: LogNormal.of(times) for phase, times in seen.items()}

    def load_rate(self, engine: str) -> float | None:
        """Bytes of weights loaded a second, median over healthy starts of any model; None: none known."""
        query = (
            "SELECT body, record FROM event JOIN entry ON entry.id = entry_id"
            " WHERE engine = ? AND event.kind = ? AND verdict = ? ORDER BY event.seq DESC LIMIT ?"
        )
        rates = []
        for row in self._rows(query, (engine, EventKind.CLOSED, Verdict.SERVES, LEARNT_FROM)):
            with reported(self.path):
                facts = dict(from_text(TrialRecord, row["record"]).facts)
                took_s = _phase_seconds(from_text(Closing, row["body"])).get(Phase.WEIGHT_LOAD, 0.0)
            if took_s > 0 and facts.get(WEIGHTS_FACT, "").isdecimal():
                rates.append(int(facts[WEIGHTS_FACT]) / took_s)
        return median(rates) if rates else None

    def average_seconds(
        self, engine: str, model_key: str | None, verdict: Verdict | None = None
    ) -> float | None:
        """Mean seconds of the latest trials (of one verdict, if given), start to cleaned; None: none."""
        times = [closing.seconds for closing in self._closings(engine, model_key, verdict)]
        return fmean(times) if times else None

    def events(self, entry_id: str) -> tuple[Event, ...]:
        rows = self._rows("SELECT kind, at, body FROM event WHERE entry_id = ? ORDER BY seq", (entry_id,))
        with reported(self.path):
            return tuple(
                Event(kind=decode(EventKind, row["kind"], "event.kind"), at=row["at"], body=row["body"])
                for row in rows
            )

    def _named(self, wanted: str, kind: Kind | None) -> TrialRecord | SearchRecord:
        wanted = wanted.strip().lower()
        kinds = [kind] if kind else list(Kind)
        marks = ", ".join("?" * len(kinds))
        for matches in ("substr(id, 1, length(?)) = ?", "substr(id, -length(?) - 1) = '-' || ?"):
            query = f"{ENTRIES} WHERE kind IN ({marks}) AND {matches} ORDER BY id = ? DESC, seq DESC LIMIT 6"
            rows = self._rows(query, (*kinds, wanted, wanted, wanted)) if wanted else []
            if len(rows) == 1 or (rows and rows[0]["id"] == wanted):
                return self._record(rows[0])
            if rows:
                several = ", ".join(row["id"] for row in rows)
                raise UsageError(f"{wanted!r} fits more than one ID: {several}", "give a few signs more")
        noun = kind.value if kind else "run"
        raise UsageError(f"no {noun} {wanted!r} in the ledger {self.path}", "`shakedown runs` lists them")

    def writer_of(self, entry_id: str) -> Identity | None:
        """The living process that writes this entry (its whole ID); None where none is seen from here."""
        here = this_writer()
        for row in self._rows(f"{ENTRIES} WHERE id = ?", (entry_id,)):
            with reported(self.path):
                writer = last_writer(from_text(Writer, row["writer"]), self.events(entry_id))
            near = (writer.boot_id, writer.namespace) == (here.boot_id, here.namespace)
            gone = is_gone(writer, here, self.folder_of(entry_id))
            return writer.process if near and not gone else None
        return None

    def _records(self, query: str, values: Sequence[object]) -> tuple[TrialRecord | SearchRecord, ...]:
        return tuple(self._record(row) for row in self._rows(query, values))

    def _record(self, row: sqlite3.Row) -> TrialRecord | SearchRecord:
        events = self.events(row["id"])
        with reported(self.path):
            writer = last_writer(from_text(Writer, row["writer"]), events)
            gone = is_gone(writer, this_writer(), self.folder_of(row["id"]))
            if row["kind"] == Kind.SEARCH:
                return search_after(from_text(SearchRecord, row["record"]), events, gone=gone)
            return trial_after(from_text(TrialRecord, row["record"]), events, gone=gone)

    def _closings(self, engine: str, model_key: str | None, verdict: Verdict | None) -> list[Closing]:
        query = (
            "SELECT body FROM event JOIN entry ON entry.id = entry_id"
            " WHERE engine = ? AND (? IS NULL OR model_key = ?) AND event.kind = ?"
            " AND (? IS NULL OR verdict = ?)"
            " AND event.seq = (SELECT max(seq) FROM event WHERE entry_id = entry.id AND kind = ?)"
            " ORDER BY event.seq DESC LIMIT ?"
        )
        closed = EventKind.CLOSED
        rows = self._rows(
            query, (engine, model_key, model_key, closed, verdict, verdict, closed, LEARNT_FROM)
        )
        with reported(self.path):
            return [from_text(Closing, row["body"]) for row in rows]

    def _rows(self, query: str, values: Sequence[Any]) -> list[sqlite3.Row]:
        with reported(self.path):
            return self._connection.execute(query, values).fetchall()


def differing(trial: TrialRecord, facts: Mapping[str, str]) -> tuple[str, ...]:
    """The names of those `facts` that a trial does not have like this; "" for one that it must not have."""
    had = dict(trial.facts)
    return tuple(name for name, value in facts.items() if had.get(name, "") != value)


def _phase_seconds(closing: Closing) -> dict[Phase, float]:
    slowest: dict[Phase, float] = {}
    for span in closing.judgement.phases:
        if span.ended_s is not None:
            slowest[span.phase] = max(span.ended_s - span.started_s, slowest.get(span.phase, 0.0))
    return slowest
