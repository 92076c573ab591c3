"""A user's own expression for "it is ready", tried on lines that nobody vouches for.

It never lets an expression that backtracks for ever stop the watch.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from shakedown.errors import UsageError

SEARCH_S = 1.0  # for the lines of one look; a sane expression reads 50 MB in it
LONGEST = 4096  # characters of a line that are searched


class ReadyLine:
    """`expression` must be valid: whoever reads it from a user has compiled it once."""

    def __init__(self, expression: str) -> None:
        self._pattern = re.compile(expression)

    def is_in(self, lines: Iterable[str]) -> bool:
        """Raises UsageError for an expression that takes for ever on one of the lines."""
        try:
            with at_most(SEARCH_S):
                return any(self._pattern.search(line[:LONGEST]) for line in lines)
        except TimeoutError:
            raise UsageError(
                f"--ready-log {self._pattern.pattern!r} takes over {SEARCH_S:.0f} s on a line of the log",
                "avoid a repetition inside a repetition, such as (a+)+",
            ) from None


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError after `seconds`, also in the middle of a search: those look for signals."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals strike the main thread only, and that is where launches are watched
        return

    def strike(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
