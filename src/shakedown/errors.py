"""The error tree, drawn.

ShakedownError                 what happened, to which thing, with which value; then hints
├── UsageError                 the command given to us cannot be used            exit 2
├── EnvironmentProblem         the surroundings forbid the launch                exit 125
│   ├── PortHeld               another process listens on the launch's port
│   └── HostProblem            the machine refused something we need
├── LedgerProblem              the ledger cannot be read or written              exit 125
├── DataProblem                a data file is damaged or does not fit its use    exit 125
├── BudgetSpent                no launch or no time left                         (caught by isolate)
├── Defect                     a fault of our own that nobody foresaw            exit 125
└── Interrupted                the user pressed Ctrl-C; clean-up is done         exit 130
"""

from __future__ import annotations

import traceback
from pathlib import Path

OURS = Path(__file__).parent


class ShakedownError(Exception):
    """Base of all errors meant for the user. `hints` are ways out, one per line."""

    exit_code = 125

    def __init__(self, message: str, *hints: str) -> None:
        super().__init__(message)
        self.message = message
        self.hints = hints


class UsageError(ShakedownError):
    exit_code = 2


class EnvironmentProblem(ShakedownError):
    pass


class PortHeld(EnvironmentProblem):
    pass


class HostProblem(EnvironmentProblem):
    pass


class LedgerProblem(ShakedownError):
    pass


class DataProblem(ShakedownError):
    pass


class BudgetSpent(ShakedownError):
    pass


class Defect(ShakedownError):
    @classmethod
    def of(cls, unforeseen: Exception) -> Defect:
        """What `unforeseen` is, what it says, and where in our own code it came up."""
        frames = traceback.extract_tb(unforeseen.__traceback__)
        within = [frame for frame in frames if Path(frame.filename).is_relative_to(OURS)]
        place = "".join(
            f" (in {Path(frame.filename).relative_to(OURS.parent)}, line {frame.lineno}, {frame.name})"
            for frame in within[-1:]
        )
        return cls(
            f"a fault of Shakedown's own: {type(unforeseen).__name__}: {unforeseen}{place}",
            "it says nothing about the launch: please report it, with what stands on standard error",
        )


class Interrupted(ShakedownError):
    exit_code = 130
