"""The schema, as the steps that lead to it; a ledger of any older version is carried forward.

It never changes or drops what a row says: steps only add.
"""

from __future__ import annotations

import sqlite3

APPLICATION_ID = 0x53484B44  # "SHKD" in the file's header: this SQLite file is a ledger

# A step is never edited once released; the number of steps is the schema's version.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE entry (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL,            -- trial | search
            search_id TEXT,                -- of a trial that belongs to a search
            engine TEXT NOT NULL,
            model_key TEXT NOT NULL,       -- what timings are learnt for
            experiment_key TEXT,           -- what a resume recalls by
            writer TEXT NOT NULL,          -- the process that opened it
            record TEXT NOT NULL
        )""",
        "CREATE INDEX entry_by_search ON entry (search_id, experiment_key)",
        "CREATE INDEX entry_by_model ON entry (engine, model_key)",
        """CREATE TABLE event (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            entry_id TEXT NOT NULL REFERENCES entry (id),
            kind TEXT NOT NULL,
            at TEXT NOT NULL,
            verdict TEXT,                  -- of a closed trial
            body TEXT NOT NULL
        )""",
        "CREATE INDEX event_by_entry ON event (entry_id)",
        *(
            f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
            for table in ("entry", "event")
            for verb in ("UPDATE", "DELETE")
        ),
    ),
)


class NotOurs(Exception):
    """The file is a database, but no ledger this Shakedown can use; the message says why."""


def migrate(connection: sqlite3.Connection, steps: tuple[tuple[str, ...], ...] = STEPS) -> None:
    """Bring the schema up to `len(steps)`; all or nothing, and safe where two processes do it at once."""
    connection.execute("BEGIN")  # one look: another process may be making the file
    try:
        if _version(connection, steps) == len(steps):
            return
    finally:
        _roll_back(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in steps[_version(connection, steps) :]:  # read again: another may have been faster
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps)}")
    except BaseException:
        _roll_back(connection)
        raise
    connection.execute("COMMIT")


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # a full disk has ended it already
        connection.execute("ROLLBACK")


def _version(connection: sqlite3.Connection, steps: tuple[tuple[str, ...], ...]) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or version or tables):
        raise NotOurs("it is an SQLite file of another program")
    if version > len(steps):
        raise NotOurs(f"a newer Shakedown wrote it (schema {version}; this one knows {len(steps)})")
    return int(version)
