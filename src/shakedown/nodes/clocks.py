"""How the clocks of two machines stand to each other, and which of two moments was first.

It sets no clock, and trusts no answer further than the time it took.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LOOKS = 5  # the fastest answer bounds the offset best
DRIFT = 1e-4  # seconds a second: a bad quartz is at half of that


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Another clock less ours, in seconds, right to within `within_s`, as read at `read_s` of ours."""

    seconds: float = 0.0
    within_s: float = 0.0
    read_s: float = 0.0

    def ours(self, theirs_s: float) -> float:
        """What our clock showed when theirs showed that."""
        return theirs_s - self.seconds

    def uncertain_s(self, at_s: float) -> float:
        """By then the clocks may have drifted apart a little more."""
        return self.within_s + DRIFT * abs(at_s - self.read_s) if self.within_s else 0.0


def compare(theirs: Callable[[], float], ours: Callable[[], float]) -> Offset:
    """Asks the other clock a few times: it was read somewhere between our two readings around it."""
    best: Offset | None = None
    for _ in range(LOOKS):
        before_s = ours()
        shown_s = theirs()
        after_s = ours()
        middle_s, within_s = (before_s + after_s) / 2, (after_s - before_s) / 2
        if best is None or within_s < best.within_s:
            best = Offset(seconds=shown_s - middle_s, within_s=within_s, read_s=after_s)
    assert best is not None
    return best


def is_before(a_s: float, b_s: float, uncertain_s: float) -> bool | None:
    """Whether `a_s` was first; None where the clocks cannot tell."""
    return None if abs(a_s - b_s) <= uncertain_s else a_s < b_s
