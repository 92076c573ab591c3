"""Tells an error that a launch has survived from the one that it died of: what moved afterwards tells.

It never looks at a clock, and takes no error for survived while a process may have gone with it.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shakedown.core import Exit
from shakedown.watch.causes import ErrorFinder, LoggedError, first_of
from shakedown.watch.proc import Progress, Vanished

LIVED_ON_S = 30.0  # progress this long after a "fatal" line: others go on, or it was not fatal
ASKED = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM))
_KEPT = 64  # moments of one process, a second apart: more than any death takes
_PROCESSES = 1000


@dataclass(slots=True)
class Movements:
    """When each process made hard progress, and when anything did (None)."""

    _moments: dict[int | None, deque[float]] = field(default_factory=dict)

    def add(self, moved: Iterable[Progress], at_s: float) -> None:
        for pid in {None, *(progress.pid for progress in moved)}:
            if pid not in self._moments and len(self._moments) >= _PROCESSES:
                continue
            moments = self._moments.setdefault(pid, deque(maxlen=_KEPT))
            if not moments or at_s - moments[-1] >= 1.0:
                moments.append(at_s)

    def last_s(self, pid: int | None, until_s: float) -> float | None:
        """The latest movement of a process, or of any, that was no later than that."""
        return next((at_s for at_s in reversed(self._moments.get(pid, ())) if at_s <= until_s), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the log names as the cause of an end. `earlier`: its first error, where that is another."""

    error: LoggedError | None
    earlier: LoggedError | None = None


def told(
    finder: ErrorFinder, movements: Movements, vanished: Iterable[Vanished], exit_: Exit | None, end_s: float
) -> Told:
    """The first error that was not survived. `end_s`: when the leader was seen to have exited, or now."""
    gone = tuple(v for v in vanished if v.lived_s >= 2.0)

    def is_open(error: LoggedError | None, least_s: float = 0.0) -> bool:
        return error is not None and not _survived(error, movements, gone, exit_, end_s, least_s)

    fatal = finder.fatal if is_open(finder.fatal, LIVED_ON_S) else None
    error = first_of([error for error in finder.errors if is_open(error)], fatal)
    first = first_of(finder.errors, None)
    return Told(error=error, earlier=first if first is not error else None)


def _survived(
    error: LoggedError,
    movements: Movements,
    gone: Iterable[Vanished],
    exit_: Exit | None,
    end_s: float,
    least_s: float,
) -> bool:
    """Whether its process moved on long after it, and long before the end, with nobody gone in between."""
    after_s, before_s = _margins(exit_)
    moved_s = movements.last_s(error.pid, end_s - before_s)
    if moved_s is None or moved_s < error.at_s + max(after_s, least_s):
        return False
    return not any(-5.0 <= v.at_s - error.at_s <= LIVED_ON_S and v.at_s <= moved_s for v in gone)


def _margins(exit_: Exit | None) -> tuple[float, float]:
    """Seconds after an error in which what moves may be its consequence, and before the end.

    Who ends of an exception says good-bye for seconds: one took 8 s to exit. Who is struck says nothing.
    """
    if exit_ is None:
        return LIVED_ON_S, 10.0
    struck = exit_.signal is not None and exit_.signal not in ASKED
    return (5.0, 3.0) if struck else (10.0, 10.0)
