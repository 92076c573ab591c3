"""What the ledger remembers, as the other rooms see it.

Secrets never reach a record: they are redacted before one is made. It never reads or writes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from shakedown.core.isolation import Conclusion, Experiment, Factor
from shakedown.core.verdicts import Judgement

WEIGHTS_FACT = "weight_bytes"  # the fact of a launch that says how much it loads
PLACE_FACT = "weights_on"  # and the kind of file system that lies on
SSH_FACT, VIA_FACT = "over_ssh", "over_via"  # facts of a launch on another machine: how it was reached

OPTIONS_FACT = "options"  # our own options as they were given, as a shell takes them, secrets left out
LEDGER_FACT = "ledger"  # where it is, if not in the user's state folder
BOOT_FACT = "boot"  # the boot of the machine that it ran on
DRIVER_FACT = "driver"  # the version of the driver of its GPUs
VERSION_FACT = "engine_version"
BESIDE_FACT = "beside"  # of a launch of a search: how many others were started with it
INTERMITTENT_FACT = "intermittent"  # of a search whose failure was said to come and go


class RecordState(StrEnum):
    """`open` was written before the launch started; a kill leaves it so until it is found `interrupted`."""

    OPEN = "open"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One launch. `experiment` is None for a plain `run`. `started_at` is ISO 8601, UTC.

    `env` holds only the variables that are factors or were changed (redacted), `facts` short named
    strings (engine version, host, boot id, port), `kept_running` a launch left alive by --keep.
    """

    id: str
    search_id: str | None
    experiment: Experiment | None
    engine: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    folder: Path
    started_at: str
    state: RecordState
    seconds: float | None = None
    judgement: Judgement | None = None
    kept_running: bool = False
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """One `isolate`: enough to go on from. `secrets`: names of secret variables, with a keyed hash or ""."""

    id: str
    engine: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    secrets: tuple[tuple[str, str], ...]
    cwd: str
    started_at: str
    state: RecordState
    seed: int
    facts: tuple[tuple[str, str], ...] = ()
    conclusion: Conclusion | None = None
    factors: tuple[Factor, ...] = ()  # what was searched: a resume and a later report need the very same
    seconds: float | None = None  # all sittings together
