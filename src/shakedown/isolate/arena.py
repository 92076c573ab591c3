"""The field of one search: a set that fails, a set kept throughout, and what was seen between them.

It never asks for an experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shakedown.core import Signature, Step
from shakedown.isolate.closure import Dependencies, Names
from shakedown.isolate.judge import Showing, classify

Rates = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """`universe` shows `target`. `floor` is kept in every experiment and serves, where one is known."""

    universe: Names
    floor: Names
    target: Signature
    needs: Dependencies

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(sorted(self.universe - self.floor))

    def alone(self, members: Names) -> Names:
        return self.floor | self.needs.with_needs(members)

    def one_less(self, members: Names, member: str) -> Names:
        return self.floor | self.needs.without(self.needs.with_needs(members), {member})

    def removed(self, members: Iterable[str]) -> Names:
        return self.needs.without(self.universe, members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One outcome as it bears on an arena. `direct`: of a configuration inside it, not inferred.
    `whole`: it was not ended once it was past the failure. `alone`: nothing ran beside it."""

    kept: Names
    showing: Showing
    trial_id: str
    direct: bool = True
    whole: bool = True
    alone: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """All looks at one configuration. `above` are passes of larger ones, which hold for this one too.
    `trial_ids` are those that showed something; where none did, all."""

    fails: int = 0
    serves: int = 0
    others: int = 0
    above: int = 0
    trial_ids: tuple[str, ...] = ()

    @property
    def untestable(self) -> bool:
        """It only ever failed in another way. What showed nothing is none of it."""
        return self.others > 0 and not self.fails and not self.serves


def read(steps: Sequence[Step], arena: Arena) -> tuple[Reading, ...]:
    """The steps that bear on the arena, in order.

    A pass of a set that reaches outside holds for its part inside (fewer factors do not fail where
    more serve); a failure of such a set may be another cause's and is left out. So is a launch that was
    ended before it could show this failure: that was no look.
    """
    readings = []
    for step in steps:
        kept = step.experiment.kept
        if step.experiment.substitutes or not step.experiment.of_the_launch or not arena.floor <= kept:
            continue
        showing = classify(step.outcome.judgement, arena.target)
        inside = kept <= arena.universe
        if showing is Showing.UNKNOWN and step.outcome.judgement.passed is not None:
            continue
        if inside or showing is Showing.SERVES:
            readings.append(
                Reading(
                    kept=kept & arena.universe,
                    showing=showing,
                    trial_id=step.outcome.trial_id,
                    direct=inside,
                    whole=step.outcome.judgement.passed is None,
                    alone=step.outcome.alone,
                )
            )
    return tuple(readings)


def tally(readings: Sequence[Reading], kept: Names) -> Tally:
    own = [reading for reading in readings if reading.direct and reading.kept == kept]
    count = {showing: sum(reading.showing is showing for reading in own) for showing in Showing}
    told = [reading for reading in own if reading.showing is not Showing.UNKNOWN]
    above = [
        reading
        for reading in readings
        if reading.showing is Showing.SERVES and reading.kept >= kept and reading not in own
    ]
    return Tally(
        fails=count[Showing.FAILS],
        serves=count[Showing.SERVES],
        others=count[Showing.OTHER],
        above=len(above),
        trial_ids=tuple(reading.trial_id for reading in told or own),
    )
