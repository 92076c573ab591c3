"""What a check found before anything was launched.

It looks at nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckLevel(StrEnum):
    ERROR = "error"  # this launch would fail
    WARNING = "warning"  # it may
    NOTE = "note"
    OK = "ok"  # looked at, nothing wrong
    UNKNOWN = "unknown"  # could not be looked at here


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """`effect`: what it would cause; `mend`: what the user can do. Both "" where nothing is wrong."""

    rule: str
    level: CheckLevel
    what: str
    evidence: str
    effect: str = ""
    mend: str = ""
