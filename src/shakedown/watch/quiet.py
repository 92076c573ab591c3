"""How long a launch has been without hard progress, and how long its phase may be.

It never reads anything: who has seen a movement tells it.
"""

from __future__ import annotations

from shakedown.core import Phase
from shakedown.watch.proc import Progress
from shakedown.watch.situation import Limits, budget, silence


class Quiet:
    """The last hard progress, and what the silences before it taught. Times are seconds since the start.

    `longest` is the longest silence of each phase that ended in progress.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._overturned_s: dict[Phase, float] = {}
        self.longest: dict[Phase, float] = {}
        self.progress: Progress | None = None
        self.progress_s = 0.0
        self.pending_since_s: float | None = None  # a request is in flight

    def unmoved_s(self, now_s: float) -> float:
        return now_s - self.progress_s

    def silence_s(self, phase: Phase, now_s: float) -> float:
        pending_s = None if self.pending_since_s is None else now_s - self.pending_since_s
        return silence(phase, self.unmoved_s(now_s), pending_s)

    def budget_s(self, phase: Phase) -> float:
        return budget(self._limits, phase, self._overturned_s.get(phase, 0.0))

    def end(self, progress: Progress, phase: Phase, now_s: float) -> None:
        """New hard progress: the silence of `phase` before it was healthy, whatever was suspected."""
        silence_s = self.silence_s(phase, now_s)
        self.longest[phase] = max(silence_s, self.longest.get(phase, 0.0))
        if silence_s >= self.budget_s(phase):
            self._overturned_s[phase] = silence_s
        self.progress, self.progress_s = progress, now_s
