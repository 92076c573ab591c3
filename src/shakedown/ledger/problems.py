"""What SQLite complains of, said as a `LedgerProblem`: what happened, to which file, what to do.

It never hides a fault: what is not known here is passed on in SQLite's own words.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shakedown.errors import LedgerProblem
from shakedown.ledger.codec import Undecodable
from shakedown.ledger.migrations import NotOurs

BUSY_S = 10.0  # writes take milliseconds; who holds the lock for longer is stopped or stuck

INDEX_BYTES = 64 << 10  # what SQLite may want at once beside the file
ASIDE = "move it aside (a new one is begun), or use another with --ledger PATH"
# The beginnings of SQLite's error names; the first that fits is said.
KNOWN: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "SQLITE_BUSY",
        f"another process has locked it for over {BUSY_S:.0f} s",
        ("see which with `lslocks` or `lsof`, or use another with --ledger PATH",),
    ),
    (
        "SQLITE_FULL",
        "the disk is full",
        ("make room; finished trials are safe", "or use another disk with --ledger PATH"),
    ),
    (
        "SQLITE_READONLY_DBMOVED",
        "the file was moved or deleted while in use",
        ("put it back, or start again",),
    ),
    (
        "SQLITE_READONLY",
        "it is read-only",
        ("make it and its folder writable, or use another with --ledger PATH",),
    ),
    ("SQLITE_CORRUPT", "it is damaged", ("`sqlite3 PATH .recover` may save what is readable", ASIDE)),
    ("SQLITE_NOTADB", "it is not an SQLite file, or its head is damaged", (ASIDE,)),
    ("SQLITE_IOERR", "the disk reports an error", ("look into `dmesg` and the quota", ASIDE)),
    (
        "SQLITE_CANTOPEN",
        "it cannot be opened",
        ("make it and its folder readable and writable, or use another with --ledger PATH",),
    ),
    (
        "SQLITE_PERM",
        "access is denied",
        ("make it readable and writable, or use another with --ledger PATH",),
    ),
)


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Raise `LedgerProblem` for what goes wrong inside with the ledger at `path`."""
    try:
        yield
    except NotOurs as error:
        hint = "upgrade Shakedown" if "newer" in str(error) else "check the path"
        raise LedgerProblem(
            f"the ledger {path} cannot be used: {error}", hint, "or use another with --ledger PATH"
        ) from error
    except Undecodable as error:
        raise LedgerProblem(f"the ledger {path} holds an unreadable row: {error}", ASIDE) from error
    except sqlite3.Error as error:
        raise _said(path, error) from error


def _said(path: Path, error: sqlite3.Error) -> LedgerProblem:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_IOERR") and _is_full(path.parent):
        name = "SQLITE_FULL"  # so it calls one that has no room left for its index of 32 KiB
    for beginning, what, hints in KNOWN:
        if name.startswith(beginning):
            return LedgerProblem(f"the ledger {path} cannot be used: {what} ({error})", *hints)
    return LedgerProblem(f"the ledger {path} cannot be used: {error} ({name or type(error).__name__})", ASIDE)


def _is_full(folder: Path) -> bool:
    try:
        space = os.statvfs(folder)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < INDEX_BYTES
