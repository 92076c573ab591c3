"""What is known of a watched launch at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from shakedown.core import Evidence, Exit, Judgement, Listener, Phase, PhaseSpan, Suspect
from shakedown.watch.log import WatchedLine
from shakedown.watch.proc import Progress
from shakedown.watch.situation import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What is known of a launch now. Times are seconds since it started.

    `judgement` is set once `state` is FINAL and does not change any more. `listening` is who listens on
    the port, if it is ours. `note` says in words what the watcher makes of a silence.
    """

    now_s: float
    state: State
    judgement: Judgement | None
    phase: Phase
    phases: tuple[PhaseSpan, ...]
    listening: Listener | None
    quiet_s: float
    last_progress: Progress | None
    suspect: Suspect | None
    evidence: tuple[Evidence, ...]
    first_error: str | None
    exit: Exit | None
    new_lines: tuple[WatchedLine, ...]
    note: str = ""
