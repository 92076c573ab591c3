"""Reproduction and the null hypotheses: does it fail at all, and does it fail without the flags?

It never searches among the flags.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shakedown.core import (
    Ended,
    Factor,
    FactorKind,
    Judgement,
    Mark,
    Outcome,
    Purpose,
    Verdict,
    missed_marks,
)
from shakedown.isolate.arena import Arena
from shakedown.isolate.closure import Dependencies, Names
from shakedown.isolate.judge import Showing, classify
from shakedown.isolate.notebook import Notebook, SearchLimits, shows_nothing
from shakedown.isolate.prior import Clues
from shakedown.isolate.tell import shown

AS_GIVEN = "does it fail as given?"
# Of a failure that does not show at once: 0 of 3 bounds little, but is said. One that is said to come and go
# shows in 8 launches with 94 %, if it shows in three of ten.
MOST_REPRODUCTIONS, INTERMITTENT_REPRODUCTIONS = 3, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """`failing` is the failure to search for; `ended` is set where there is nothing to search."""

    failing: Judgement
    ended: Ended | None = None
    note: str = ""


def reproduce(everything: Names, book: Notebook, limits: SearchLimits, clues: Clues) -> Reproduction:
    """The first failure is the reproduction; a crash without a fingerprint is looked at twice."""
    claimed = INTERMITTENT_REPRODUCTIONS if clues.intermittent else MOST_REPRODUCTIONS if clues.seen else 1
    looks = max(limits.repeats, claimed)
    served = 0
    while True:
        outcome = book.look(everything, Purpose.REPRODUCE, AS_GIVEN, _tell_reproduction, again=served > 0)
        judgement = outcome.judgement
        if shows_nothing(outcome):
            return Reproduction(failing=judgement, ended=Ended.UNDECIDED, note=shown(judgement))
        if not judgement.serves:
            return Reproduction(failing=_fingerprinted(everything, book, judgement))
        served += 1
        if served >= looks:
            return _not_reproduced(judgement, served, claimed=looks > 1)


def _fingerprinted(everything: Names, book: Notebook, judgement: Judgement) -> Judgement:
    """Without a fingerprint nothing tells one crash from another: one more look may give one."""
    if judgement.verdict is not Verdict.CRASHED or judgement.fingerprint:
        return judgement
    reason = "the crash left no fingerprint"
    second = book.look(everything, Purpose.REPRODUCE, reason, _tell_reproduction, again=True).judgement
    same = classify(second, judgement.signature) is Showing.FAILS
    return second if same and second.fingerprint else judgement


def _not_reproduced(judgement: Judgement, served: int, *, claimed: bool) -> Reproduction:
    if not claimed:
        return Reproduction(failing=judgement, ended=Ended.SERVES, note="it serves: nothing to isolate")
    rate = f"fewer than 3 in {served} launches" if served > 3 else "too rarely to see"
    note = f"0 of {served} failed, so below 3/{served}: it fails in {rate} (95 %)"
    return Reproduction(failing=judgement, ended=Ended.NOT_REPRODUCED, note=note)


def _tell_reproduction(outcome: Outcome) -> str:
    return f"as given: {shown(outcome.judgement)}"


Look = Callable[[Arena, Names, Purpose, str], Showing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Null:
    """Where to search. `base_fails`: it fails on the floor itself, so no factor above it is needed."""

    arena: Arena
    base_fails: bool = False


def find_floor(whole: Arena, factors: Sequence[Factor], look: Look) -> Null:
    """Safe mode first; where it fails in another way, put back defaults, then what makes the model fit.

    Off-switches that the user gave stay in safe mode, for they are safe; only where it then fails the
    same, one of them may be to blame.
    """
    tries = _tries(whole.needs, factors, missed_marks(whole.target.fingerprint))
    seen: set[Names] = set()
    for kept, purpose, reason in tries:
        if kept in seen:
            continue
        seen.add(kept)
        showing = look(whole, kept, purpose, reason)
        if showing is Showing.SERVES:
            return Null(arena=_within(whole, whole.universe, kept))
        if showing is Showing.FAILS:
            if kept and purpose is Purpose.SAFE_MODE:
                reason = "safe mode fails with the off-switches you gave; and without them?"
                showing = look(whole, frozenset(), Purpose.PLAIN_NULL, reason)
                return Null(arena=_within(whole, kept, frozenset()), base_fails=showing is Showing.FAILS)
            return Null(arena=_within(whole, kept, frozenset()), base_fails=not kept)
    return Null(arena=whole)


def opening(
    everything: Names, factors: Sequence[Factor], needs: Dependencies
) -> list[tuple[Names, Purpose, str]]:
    """What a search needs whatever comes of it, to run at once: the launch as given, and safe mode."""
    as_given = (everything, Purpose.REPRODUCE, AS_GIVEN)
    safe_mode = _tries(needs, factors, frozenset[str]())[0]
    return [as_given, safe_mode] if safe_mode[0] != everything else [as_given]


def _tries(
    needs: Dependencies, factors: Sequence[Factor], missed: frozenset[str]
) -> list[tuple[Names, Purpose, str]]:
    """`missed`: the marks that the launch as given did not meet."""
    kinds: dict[FactorKind, set[str]] = {}
    for factor in factors:
        kinds.setdefault(factor.kind, set()).add(factor.name)
    closed = needs.closed
    off = closed(factor.name for factor in factors if factor.safe)
    defaults = closed(kinds.get(FactorKind.DEFAULT, set()) | kinds.get(FactorKind.BACKEND, set()))
    fitting = kinds.get(FactorKind.FIT, set()) | kinds.get(FactorKind.CONFIG, set())
    fits, both = closed(fitting | off), closed(defaults | fitting)
    safe_mode = (off, Purpose.SAFE_MODE, "safe mode: everything optional off")
    plain = (defaults, Purpose.PLAIN_NULL, "no optional flags, defaults on: safe mode fails in another way")
    if missed - {Mark.ACCEPT_LENGTH}:  # without its defaults none is fast
        fast = (both, Purpose.PLAIN_NULL, "no optional flags, defaults on: does it meet the mark?")
        return [fast, plain, safe_mode]
    return [
        safe_mode,
        plain,
        (fits, Purpose.PLAIN_NULL, "what makes the model fit is put back: safe mode fails in another way"),
        (both, Purpose.PLAIN_NULL, "defaults and what makes the model fit put back"),
    ]


def _within(arena: Arena, universe: Names, floor: Names) -> Arena:
    return Arena(universe=universe, floor=floor, target=arena.target, needs=arena.needs)
