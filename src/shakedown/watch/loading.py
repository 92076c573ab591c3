"""How a launch loads its weights: how long, how much of it from the disk, with how many busy cores.

It knows neither how large the weights are nor where they lie.
"""

from __future__ import annotations

from collections.abc import Iterable

from shakedown.core import Loading, Phase, ProcessSample

Key = tuple[int, int]


class LoadMeter:
    """Fed once a step; counts what moved in every interval that touches the phase."""

    def __init__(self) -> None:
        self._before: dict[Key, ProcessSample] = {}
        self._was = Phase.IMPORT
        self._began_s: float | None = None
        self._ended_s = 0.0
        self._last_s = 0.0
        self._disk_bytes = 0
        self._cpu_s = 0.0

    def feed(self, phase: Phase, samples: Iterable[ProcessSample], now_s: float) -> None:
        current = {(each.pid, each.started_ticks): each for each in samples}
        if Phase.WEIGHT_LOAD in (phase, self._was):
            if self._began_s is None:
                self._began_s = self._last_s
            self._ended_s = now_s
            for key, sample in current.items():
                before = self._before.get(key, sample)
                self._disk_bytes += sample.disk_bytes - before.disk_bytes
                self._cpu_s += sample.cpu_s - before.cpu_s
        self._before, self._was, self._last_s = current, phase, now_s

    @property
    def loading(self) -> Loading | None:
        """None where no weights were seen to load."""
        if self._began_s is None or self._ended_s <= self._began_s:
            return None
        return Loading(seconds=self._ended_s - self._began_s, disk_bytes=self._disk_bytes, cpu_s=self._cpu_s)
