"""What a cause must show before it is claimed, and how far it has shown it.

It never asks for an experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shakedown.core import Check, Factor, FactorKind, Purpose
from shakedown.isolate.arena import Arena, Rates, Reading, Tally, tally
from shakedown.isolate.closure import Names
from shakedown.isolate.judge import Showing, decide

OFTEN = 2  # looks that must show another failure before anything is concluded from it
ALONE, ONE_LESS, WORKAROUND = "alone_fails", "one_less_passes", "workaround_serves"

Decide = Callable[[Names, Tally], Showing]  # what the looks at a configuration settle; `UNKNOWN`: too few


def by_wald(rates: Rates) -> Decide:
    """Each configuration by itself, under flake rates: where no hypothesis is to be trusted."""

    def decided(_: Names, seen: Tally) -> Showing:
        return decide(seen.fails, seen.serves + (0 if seen.fails else seen.above), rates)

    return decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One experiment of a certificate and what it should show."""

    check: str
    kept: Names
    wants: Showing
    purpose: Purpose
    reason: str


class Evidence:
    """The readings of an arena, and what they settle."""

    def __init__(self, readings: Sequence[Reading], decided: Decide) -> None:
        self.readings = readings
        self._decided = decided
        told = [r for r in readings if r.direct and r.showing is not Showing.UNKNOWN]
        self._seen = {reading.kept for reading in told}
        self._alone = {reading.kept for reading in told if reading.alone}
        self._whole = {reading.kept for reading in told if reading.whole and reading.alone}
        self._last = {reading.kept: reading.showing for reading in readings if reading.direct}
        self._shown: dict[Names, Showing] = {}

    def tally(self, kept: Names) -> Tally:
        return tally(self.readings, kept)

    def shows(self, kept: Names, *, whole: bool = False) -> Showing:
        """What a configuration is settled to show; `UNKNOWN` where it needs a look, or another.

        A pass of a larger set counts, but never without a look at the configuration itself. `whole`: to
        serve it must have served with nothing beside it, not only have got past the failure.
        """
        if kept not in self._seen:
            return Showing.UNKNOWN
        if kept not in self._shown:
            seen = self.tally(kept)
            self._shown[kept] = Showing.OTHER if seen.untestable else self._decided(kept, seen)
        showing = self._shown[kept]
        return Showing.UNKNOWN if whole and self._cut_short(kept, showing) else showing

    def _cut_short(self, kept: Names, showing: Showing) -> bool:
        return showing is Showing.SERVES and kept not in self._whole

    def was_alone(self, kept: Names) -> bool:
        """Whether a configuration was launched with nothing beside it."""
        return kept in self._alone

    def blank(self, kept: Names) -> bool:
        """Whether the last look at a configuration, which had been repeated, showed nothing."""
        return self._last.get(kept) is Showing.UNKNOWN

    def hopeless(self, kept: Names) -> bool:
        """Whether another look can tell nothing, as it fails in another way or shows nothing."""
        return self.blank(kept) or self.shows(kept) is Showing.OTHER

    def state(self, demand: Demand) -> bool | None:
        """Met, not met, or open. Looks with other launches beside them prove nothing."""
        showing = self.shows(demand.kept, whole=demand.check == WORKAROUND)
        if showing is Showing.UNKNOWN or not self.was_alone(demand.kept):
            return None
        if showing is Showing.OTHER:
            return self._gone(demand.kept) if demand.check == ONE_LESS else False
        return showing is demand.wants

    def _gone(self, kept: Names) -> bool | None:
        """One member less: this failure is gone, and what it shows is said. By chance it shows that once."""
        return True if self.tally(kept).others >= OFTEN else None

    def stays_open(self, demand: Demand) -> bool:
        """Whether it is neither met nor not, and no look will tell."""
        return self.blank(demand.kept) and self.state(demand) is None

    def lacks(self, demand: Demand) -> bool:
        """Whether a look could still meet it: also where a flake has settled it against a likely guess."""
        if self.blank(demand.kept):
            return False
        state = self.state(demand)
        return state is None or (state is False and self.shows(demand.kept) is not Showing.OTHER)

    def bars(self, demand: Demand) -> bool:
        """Whether it can never be met, as the configuration fails in another way."""
        return self.state(demand) is False and self.shows(demand.kept) is Showing.OTHER


def demands(
    arena: Arena, sets: Sequence[Names], remedy: Names | None, evidence: Evidence
) -> tuple[Demand, ...]:
    """The certificate of causes that are each enough alone; `remedy` is what the workaround removes."""
    found: list[Demand] = []
    for members in sets:
        found += demands_of(arena, members, evidence, remedy or frozenset())
    if remedy is not None:
        found.append(
            Demand(
                check=WORKAROUND,
                kept=arena.removed(remedy),
                wants=Showing.SERVES,
                purpose=Purpose.WORKAROUND,
                reason=f"your own command less {spoken(remedy)} should serve",
            )
        )
    return tuple(found)


def base_demand(arena: Arena) -> Demand:
    return Demand(
        check="safe_mode_fails",
        kept=arena.floor,
        wants=Showing.FAILS,
        purpose=Purpose.PLAIN_NULL if arena.floor else Purpose.SAFE_MODE,
        reason="does it fail without any of the factors?",
    )


def demands_of(
    arena: Arena, members: Names, evidence: Evidence, remedy: Names = frozenset()
) -> tuple[Demand, ...]:
    """What one cause must show. `remedy`: what will be removed from the user's own command anyway."""
    alone = Demand(
        check=ALONE,
        kept=arena.alone(members),
        wants=Showing.FAILS,
        purpose=Purpose.ALONE,
        reason=f"{spoken(members)} alone should fail",
    )
    return (alone, *(_less(arena, members, member, evidence, remedy) for member in sorted(members)))


def _less(arena: Arena, members: Names, member: str, evidence: Evidence, remedy: Names) -> Demand:
    kept = _one_less(arena, members, member, evidence, remedy)
    whole = kept == arena.removed({member})  # and as such it is the workaround, which must serve to the end
    return Demand(
        check=ONE_LESS,
        kept=kept,
        wants=Showing.SERVES,
        purpose=Purpose.WORKAROUND if whole else Purpose.ONE_LESS,
        reason=f"your own command less {member} should not fail"
        if whole
        else f"{spoken(members)} alone, less {member}, should not fail",
    )


def _one_less(arena: Arena, members: Names, member: str, evidence: Evidence, remedy: Names) -> Names:
    """The configuration in which a member is missed: the cause alone less it, or the user's own command
    less it, which shows as much (where more factors serve, fewer do not fail) and may be launched anyway.

    What a single factor needs may be kept without it, so there it is always the latter, unless something
    else makes that one fail, or it shows nothing.
    """
    less, whole = arena.one_less(members, member), arena.removed({member})
    if len(members) == 1 and less == arena.floor and evidence.was_alone(less):
        return less
    if _is_no_remedy(whole, evidence) or evidence.tally(whole).fails:
        return less
    if len(members) == 1:
        return whole
    spared = member in remedy or evidence.shows(whole) is Showing.SERVES
    return whole if spared and evidence.shows(less) is Showing.UNKNOWN else less


def remedies(
    arena: Arena, sets: Sequence[Names], factors: Mapping[str, Factor], evidence: Evidence
) -> tuple[Names, ...]:
    """What a workaround could remove, cheapest to the user first: of each cause one member, then all.

    Those already known not to serve come last, so that the first is the one to try or to trust.
    """
    if not sets:
        return ()
    singles = [sorted(members, key=lambda name: _price(arena, factors, name)) for members in sets]
    widest = max(len(members) for members in singles)
    tries = [frozenset(members[min(step, len(members) - 1)] for members in singles) for step in range(widest)]
    tries.append(frozenset().union(*sets))
    unique = list(dict.fromkeys(tries))
    return tuple(sorted(unique, key=lambda removed: _is_no_remedy(arena.removed(removed), evidence)))


def _is_no_remedy(kept: Names, evidence: Evidence) -> bool:
    """Whether a command was seen to fail, or not to show anything."""
    showing = evidence.shows(kept)
    return showing in (Showing.FAILS, Showing.OTHER) or (showing is Showing.UNKNOWN and evidence.blank(kept))


def _price(arena: Arena, factors: Mapping[str, Factor], name: str) -> tuple[bool, bool, int, str]:
    """An off-switch costs less than a removal, which takes along what needs it; what makes the model fit
    is dearest."""
    gone = arena.universe - arena.removed(frozenset({name}))
    switch = factors[name].kind in (FactorKind.DEFAULT, FactorKind.BACKEND) or bool(factors[name].add_argv)
    fits = factors[name].kind is FactorKind.FIT and not factors[name].add_argv
    return (fits, not switch, sum(factors[other].dear for other in gone), name)


def check(evidence: Evidence, found: Sequence[Demand], other_notes: Mapping[str, str]) -> Check:
    """The demands of one kind as one line: true if all are met, false if one is not, else not known."""
    states = [evidence.state(demand) for demand in found]
    value = False if False in states else None if None in states else True
    ids = [trial for demand in found for trial in evidence.tally(demand.kept).trial_ids]
    notes = [other_notes[trial] for trial in ids if trial in other_notes]
    return Check(value=value, trial_ids=tuple(dict.fromkeys(ids)), note="; ".join(dict.fromkeys(notes)))


def spoken(names: Names) -> str:
    ordered = sorted(names)
    if len(ordered) > 4:
        return f"{', '.join(ordered[:3])} and {len(ordered) - 3} more"
    return " and ".join(filter(None, [", ".join(ordered[:-1]), *ordered[-1:]]))
