"""What to expect of a search's readings if no hypothesis holds: the measure of all that do.

It knows no hypotheses. Imports numpy, so import it late.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shakedown.isolate.closure import Names

SPARED = (0.98, 0.9, 0.65)  # chance that removing one factor spares the failure: which, is not known
SLIP = 0.03  # chance that a foretold reading is not so


class Doubt:
    """A failure shows every time, more factors never help, and each factor removed may end it by itself."""

    def __init__(self) -> None:
        self._logs = np.full(len(SPARED), -np.log(len(SPARED)))
        self._read: list[tuple[Names, bool]] = []

    @property
    def log(self) -> float:
        """The log-likelihood of the readings so far."""
        top = self._logs.max()
        return float(top + np.log(np.exp(self._logs - top).sum()))

    def observe(self, kept: Names, failed: bool) -> None:
        expected = self._expected(kept)
        self._logs += np.log(expected if failed else 1 - expected)
        self._read.append((kept, failed))

    def _expected(self, kept: Names) -> NDArray[np.float64]:
        """For each share, the probability that this configuration fails."""
        spared = np.array(SPARED)
        same = [failed for names, failed in self._read if names == kept]
        fails = any(failed and names <= kept for names, failed in self._read)
        serves = any(not failed and names >= kept for names, failed in self._read)
        if same or fails is not serves:
            foretold = same[-1] if same else fails
            return np.full_like(spared, 1 - SLIP if foretold else SLIP)
        removed = min(
            (len(names - kept) for names, failed in self._read if failed and names >= kept), default=0
        )
        return np.asarray(np.clip(spared**removed, SLIP, 1 - SLIP))
