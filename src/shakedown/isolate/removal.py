"""The user's own command less a cause: the removal after which it serves, or what is left to search.

It looks for no cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shakedown.core import Factor, Purpose, Signature
from shakedown.isolate.arena import Arena
from shakedown.isolate.certify import OFTEN, remedies, spoken
from shakedown.isolate.closure import Names
from shakedown.isolate.inquiry import Inquiry
from shakedown.isolate.judge import Showing, classify
from shakedown.isolate.tell import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What was removed, and what is `kept`. `left` is the failure that it shows then, None where it serves
    or nothing is settled."""

    removed: Names
    kept: Names
    serves: bool = False
    left: Signature | None = None
    note: str = ""


def remove(arena: Arena, sets: Sequence[Names], factors: Mapping[str, Factor], inquiry: Inquiry) -> Removal:
    """The cheapest removal after which the command serves or fails the same, or the first and what it shows
    instead: once more where that was seen once, for by chance anything is seen once."""
    odd: list[tuple[Names, Showing]] = []
    for removed in remedies(arena, sets, factors, inquiry.evidence(arena)):
        showing = _settle(arena, removed, inquiry)
        if showing in (Showing.SERVES, Showing.FAILS):
            return _removal(arena, removed, showing, inquiry)
        odd.append((removed, showing))
    assert odd, "a cause without members"
    removed, showing = min(odd, key=lambda tried: tried[1] is not Showing.OTHER)
    if showing is Showing.OTHER and recurring(arena, arena.removed(removed), inquiry) is None:
        reason = "it fails in another way: does it again?"
        inquiry.look(arena, arena.removed(removed), Purpose.WORKAROUND, reason, again=True)
        showing = _settle(arena, removed, inquiry)
    return _removal(arena, removed, showing, inquiry)


def recurring(arena: Arena, kept: Names, inquiry: Inquiry) -> Signature | None:
    """The other failure that a command shows, where that was seen again: in it, or in less than it."""
    inside = [
        step.outcome.judgement
        for step in inquiry.book.steps
        if step.experiment.of_the_launch
        and not step.experiment.substitutes
        and step.outcome.alone
        and arena.floor <= step.experiment.kept <= kept
    ]
    for look in reversed(inquiry.book.looks(kept)):
        signature = look.judgement.signature
        seen = sum(classify(judgement, signature) is Showing.FAILS for judgement in inside)
        if classify(look.judgement, arena.target) is Showing.OTHER and seen >= OFTEN:
            return signature
    return None


def _settle(arena: Arena, removed: Names, inquiry: Inquiry) -> Showing:
    reason = f"your own command less {spoken(removed)} should serve"
    return inquiry.settle(arena, arena.removed(removed), Purpose.WORKAROUND, reason)


def _removal(arena: Arena, removed: Names, showing: Showing, inquiry: Inquiry) -> Removal:
    kept = arena.removed(removed)
    if showing is Showing.SERVES:
        return Removal(removed=removed, kept=kept, serves=True)
    left = arena.target if showing is Showing.FAILS else recurring(arena, kept, inquiry)
    if left is not None:
        return Removal(removed=removed, kept=kept, left=left)
    last = shown(inquiry.book.looks(kept)[-1].judgement)
    note = f"your own command less {spoken(removed)} settles nothing: {last}"
    return Removal(removed=removed, kept=kept, note=note)
