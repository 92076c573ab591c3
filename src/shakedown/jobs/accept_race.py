"""What one `accept` found: all of it, or as much as it had when it was cut.

It measures nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shakedown.acceptance.identity import Identity
from shakedown.acceptance.pace import Pace
from shakedown.acceptance.rounds import Source
from shakedown.acceptance.verdict import Finding, Shown, undecided
from shakedown.core import Launch
from shakedown.errors import ShakedownError
from shakedown.jobs.accept_compare import drift_between, pace_between
from shakedown.jobs.accept_launches import Contender
from shakedown.jobs.accept_measure import Measurement
from shakedown.jobs.accept_request import AcceptRequest
from shakedown.jobs.reading import Reading

if TYPE_CHECKING:
    from shakedown.jobs.accept_states import StatesSeen

UNSEEN = Identity(compared=0, partings=(), own=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """One contender beside the plain server: `measured` at each concurrency, the first one judged."""

    contender: Contender
    measured: tuple[Measurement, ...]
    paces: tuple[Pace | None, ...]
    drift: tuple[float | None, ...]
    shown: Shown
    seen: StatesSeen | None
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """All that one `accept` found. `plain`: before and after the others, at each concurrency. `cut`: why it
    did not come to its end, at what; `unmeasured` are those whose turn it was not by then."""

    request: AcceptRequest
    launch: Launch
    engine: str
    version: str
    plain: tuple[tuple[Measurement, ...], tuple[Measurement, ...]]
    raced: tuple[Raced, ...] = field(default=())
    unmeasured: tuple[Contender, ...] = ()
    cut: ShakedownError | None = None
    cut_at: str = ""

    @property
    def beside(self) -> tuple[Measurement, ...]:
        """The plain server as the others are held against it: after them, or before where that is all."""
        return latest(*self.plain)


@dataclass(slots=True, kw_only=True)
class Kept:
    """Filled as it goes on, for whoever is told that it was cut. `doing`: what it is at."""

    doing: str = ""
    launches: list[tuple[Contender, list[Measurement]]] = field(default_factory=list)
    identities: list[Identity] = field(default_factory=list)
    raced: list[Raced] = field(default_factory=list)

    def begin(self, contender: Contender, doing: str) -> None:
        self.doing = doing
        self.launches.append((contender, []))

    def add(self, measurement: Measurement) -> None:
        self.launches[-1][1].append(measurement)

    @property
    def measured(self) -> bool:
        return any(found for _, found in self.launches)

    @property
    def plain(self) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
        found = [tuple(found) for each, found in self.launches if each.speculation is None]
        return found[0], found[1] if len(found) > 1 else ()


def race_of(
    request: AcceptRequest,
    launch: Launch,
    reading: Reading,
    kept: Kept,
    others: Sequence[Contender] = (),
    cut: ShakedownError | None = None,
) -> Race:
    """`others`: all contenders, of which a race that was `cut` has not judged each, nor measured."""
    table = reading.table
    found = [(each, tuple(found)) for each, found in kept.launches if each.speculation is not None and found]
    half = [
        unjudged(request, each, measured, kept, number)
        for number, (each, measured) in enumerate(found)
        if number >= len(kept.raced)
    ]
    return Race(
        request=request,
        launch=launch,
        engine=reading.command.engine.name,
        version=table.version if table is not None and table.source == "live" else "",
        plain=kept.plain,
        raced=(*kept.raced, *half),
        unmeasured=tuple(others[len(found) :]),
        cut=cut,
        cut_at=kept.doing,
    )


def unjudged(
    request: AcceptRequest, contender: Contender, measured: tuple[Measurement, ...], kept: Kept, number: int
) -> Raced:
    """What is there of a contender when all is cut."""
    before, after = kept.plain
    identity = kept.identities[number] if number < len(kept.identities) else UNSEEN
    return Raced(
        contender=contender,
        measured=measured,
        paces=tuple(pace_between(p, d) for p, d in zip(latest(before, after), measured, strict=False)),
        drift=drifts(before, after)[: len(measured)],
        shown=first_shown(request, measured[0], latest(before, after)[0], identity),
        seen=None,
        finding=undecided(f"cut while {kept.doing}"),
    )


def latest(before: Sequence[Measurement], after: Sequence[Measurement]) -> tuple[Measurement, ...]:
    return (*after, *before[len(after) :])


def drifts(before: Sequence[Measurement], after: Sequence[Measurement]) -> tuple[float | None, ...]:
    known = [drift_between(b, a) for b, a in zip(before, after, strict=False)]
    return (*known, *[None] * (len(before) - len(after)))


def first_shown(
    request: AcceptRequest,
    drafted: Measurement,
    plain: Measurement,
    identity: Identity,
    drift: float | None = None,
) -> Shown:
    """What is shown without any reference."""
    pace = pace_between(plain, drafted)
    efforts = [each.effort for each in drafted.answers if each.steps]
    return Shown(
        measured=drafted.acceptance.tokens_per_round if drafted.acceptance else None,
        idle=drafted.idle,
        why_unmeasured=drafted.why_none,
        identity=identity if identity.compared else None,
        break_even=pace.round_cost.value if pace and drafted.source is not Source.NONE else None,
        speed_up=pace.speed_up if pace else None,
        drift=drift,
        rounds=sum(each.rounds for each in efforts),
        steps=sum(each.steps for each in efforts),
        margin=request.margin,
    )
