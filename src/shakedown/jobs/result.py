"""What every command hands back, and how a verdict becomes an exit code.

It never prints and never exits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from shakedown.core import Conclusion, Ended, LogLine, Phase, Verdict


class ExitCode(IntEnum):
    """The contract of DESIGN: 125 means no answer, so that `git bisect run` skips."""

    GOOD = 0
    BAD = 1
    USAGE = 2
    NOTHING_TO_ISOLATE = 3
    NO_ANSWER = 125
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """`document` is what --json prints, `lines` what a person reads."""

    document: dict[str, Any]
    lines: Sequence[str]
    exit_code: ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How a launch stands: for the live view and for plain lines. `note` says what a silence looks like."""

    at_s: float
    title: str
    phase: Phase
    state: str
    quiet_s: float
    lines: tuple[tuple[LogLine, bool], ...] = ()  # with: is it noise, to be folded
    note: str = ""


class Talk(Protocol):
    """Where a job says what it does. Standard error in the end; never standard output."""

    def say(self, text: str) -> None: ...
    def progress(self, progress: Progress) -> None: ...


def exit_code_of(verdict: Verdict) -> ExitCode:
    if verdict is Verdict.SERVES:
        return ExitCode.GOOD
    return ExitCode.NO_ANSWER if verdict is Verdict.UNDECIDED else ExitCode.BAD


def exit_code_of_search(conclusion: Conclusion) -> ExitCode:
    match conclusion.ended:
        case Ended.PROVEN:
            return ExitCode.GOOD
        case Ended.SERVES:
            return ExitCode.NOTHING_TO_ISOLATE
        case Ended.NOT_REPRODUCED | Ended.UNDECIDED:
            return ExitCode.NO_ANSWER
        case Ended.NOT_PROVEN | Ended.BUDGET:
            return ExitCode.BAD
