"""Which simulated cases are run, and in which order: a run that is cut has seen all settings evenly.

It runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from isolate_worlds import Clue, Kind

OURS, TOLD = "shakedown", "shakedown --intermittent"
# Cases a round: twenty of the mix, and more of the rare kinds, which are reported apart.
ROUND = {Kind.BASE: 4, Kind.ONE: 11, Kind.TWO: 5, Kind.THREE: 4, Kind.APART: 5, Kind.GONE: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the cases of some rows have in common. `who` is `OURS`, `TOLD` or a rival's name."""

    who: str
    size: int
    q: float
    failure: str
    clue: Clue

    @property
    def ours(self) -> bool:
        return self.who in (OURS, TOLD)

    @property
    def label(self) -> str:
        name = f"{self.failure}{' told' if self.who == TOLD else ''}, {self.clue}" if self.ours else self.who
        return f"N={self.size} q={self.q:g} {name}"

    @property
    def rounds(self) -> float:
        """Rounds for each round of the least wanted setting: those with a mark to meet, or cheap ones, get
        more. Forty factors that fail now and then cost a hundred times what twelve sure ones do."""
        if not self.ours:
            return 2.0
        if self.q == 1:
            return 8.0
        if self.size == 24:
            return 4.0 if self.clue is Clue.NONE else 8.0
        return 1.0 if self.size > 24 else 2.0


@dataclass(frozen=True, slots=True)
class Task:
    """Cases `first` to `first + count - 1` of one kind in one setting."""

    setting: Setting
    kind: Kind
    first: int
    count: int


def schedule(settings: Sequence[Setting], kinds: Sequence[Kind], cases: int) -> list[Task]:
    """All tasks of `cases` cases of the mix, each setting's rounds spread evenly from first to last."""
    found = [
        ((number + 1) / setting.rounds, setting, number)
        for setting in settings
        for number in range(-(-cases // 20))
    ]
    found.sort(key=lambda item: item[0])
    return [task for _, setting, number in found for task in _round(setting, kinds, number)]


def _round(setting: Setting, kinds: Sequence[Kind], number: int) -> Iterator[Task]:
    for kind in kinds:
        yield Task(setting, kind, number * ROUND[kind], ROUND[kind])
