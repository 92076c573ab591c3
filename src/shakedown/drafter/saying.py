"""How often a long work speaks.

It never decides what is said.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]

SAY_EVERY_S = 10.0


def seldom(say: Say, every_s: float = SAY_EVERY_S) -> Say:
    """Says what comes at least `every_s` after what was said last, or after now; the rest is not said."""
    said_s = time.monotonic()

    def speak(text: str) -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= every_s:
            said_s = time.monotonic()
            say(text)

    return speak
