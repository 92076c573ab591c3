"""What wrong states look like: each pattern is what the engine would have returned had it made that mistake.

It never decides that states are wrong; it names what wrong ones are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from shakedown.drafter.rungs import Ladder, distance

Rows = torch.Tensor  # bool [R]: the rows that are looked at

SHIFTS = (-2, -1, 1, 2)  # tokens
LATE = (-1, -2, -3, -4, -5, -6)  # tokens back to what a step of several tokens may have left in a buffer
EXPLAINED = 6.0  # times the noise: within it a pattern fits
PARTIAL = (0.2, 0.95)  # the share of a sum over ranks that may be missing: 1 - 1/TP, for TP from 2 to 16
REPEATED = 0.2  # of the rows equal to the bit to the row before


class Fault(StrEnum):
    SAME = "same"
    LAYER_SHIFT = "layer_shift"
    OTHER_LAYER = "other_layer"
    TOKEN_SHIFT = "token_shift"
    PERMUTED = "permuted_slots"
    RESIDUAL_MISSING = "residual_missing"
    BRANCH_MISSING = "branch_missing"
    PARTIAL_SUM = "partial_sum"
    NORM_APPLIED = "final_norm_applied"
    NORM_MISSING = "final_norm_missing"
    STALE = "stale"
    NOT_FINITE = "not_finite"
    UNKNOWN = "unknown"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`rung`: which one the states are made from; `shift`: tokens by which they are late (below 0) or early;
    `error`: what is left unexplained, relative."""

    fault: Fault
    rung: int
    error: float
    shift: int = 0
    missing: float = 0.0


def explain(
    expected: int,
    states: Sequence[torch.Tensor],
    ladders: Sequence[Ladder],
    where: Sequence[Rows],
    noise: float,
) -> Explanation:
    """The pattern that fits one slot of some documents best on the rows `where`, or UNKNOWN."""
    if not all(torch.isfinite(x[rows]).all() for x, rows in zip(states, where, strict=True)):
        return Explanation(fault=Fault.NOT_FINITE, rung=expected, error=torch.inf)
    if repeats(states) > REPEATED:
        return Explanation(fault=Fault.STALE, rung=expected, error=0.0)
    patterns = list(all_patterns(expected, states, ladders, where))
    best = min(patterns, key=lambda pattern: pattern.error)
    if best.error <= EXPLAINED * noise:
        return best
    missing = partial_sum(expected, states, ladders, where)
    if missing is not None:
        return Explanation(fault=Fault.PARTIAL_SUM, rung=expected, error=best.error, missing=missing)
    return Explanation(fault=Fault.UNKNOWN, rung=best.rung, error=best.error)


def all_patterns(
    expected: int, states: Sequence[torch.Tensor], ladders: Sequence[Ladder], where: Sequence[Rows]
) -> Iterator[Explanation]:
    """Simple ones first: of two that fit alike, min() keeps the first."""
    documents = list(zip(states, ladders, where, strict=True))
    final, last = ladders[0].final, ladders[0].layers
    rungs = torch.cat([distance(x, ladder.rungs)[:, rows] for x, ladder, rows in documents], dim=1)
    for rung, error in enumerate(medians(rungs)):
        yield Explanation(fault=fault_of_rung(rung, expected, last), rung=rung, error=error)
    for shift in SHIFTS:
        shifted = torch.cat([shifted_errors(x, ladder, rows, shift) for x, ladder, rows in documents], dim=1)
        for rung, error in enumerate(medians(shifted)):
            yield Explanation(fault=Fault.TOKEN_SHIFT, rung=rung, error=error, shift=shift)
    normed = torch.cat([distance(x, ladder.normed())[:, rows] for x, ladder, rows in documents], dim=1)
    for rung, error in enumerate(medians(normed)):
        if expected != final:
            yield Explanation(fault=Fault.NORM_APPLIED, rung=rung, error=error)
    if all(expected in ladder.branches for ladder in ladders):
        for fault, of_branch in ((Fault.RESIDUAL_MISSING, False), (Fault.BRANCH_MISSING, True)):
            errors = [
                distance(x, without(ladder, expected, of_branch))[rows] for x, ladder, rows in documents
            ]
            yield Explanation(fault=fault, rung=expected, error=float(torch.cat(errors).median()))
    late = torch.cat([late_errors(x, ladder, rows, expected) for x, ladder, rows in documents])
    if len(late):
        yield Explanation(fault=Fault.STALE, rung=expected, error=float(late.median()))
    before = [
        of_predecessor(x, ladder, earlier, rows, expected)
        for (x, ladder, rows), earlier in zip(documents[1:], ladders, strict=False)
    ]
    if before and sum(map(len, before)):
        yield Explanation(fault=Fault.STALE, rung=expected, error=float(torch.cat(before).median()))


def fault_of_rung(rung: int, expected: int, last: int) -> Fault:
    if rung == expected:
        return Fault.UNKNOWN  # it fits, but not well enough: no pattern
    if expected == last + 1 and rung == last:
        return Fault.NORM_MISSING
    if rung == last + 1:
        return Fault.NORM_APPLIED
    return Fault.LAYER_SHIFT


def medians(errors: torch.Tensor) -> list[float]:
    if errors.shape[1] == 0:
        return [torch.inf] * len(errors)
    return [float(value) for value in errors.median(dim=1).values]


def shifted_errors(x: torch.Tensor, ladder: Ladder, rows: Rows, shift: int) -> torch.Tensor:
    """[N + 2, n]: rows against the rungs `shift` tokens later, where the ladder holds those."""
    later = torch.searchsorted(ladder.rows, ladder.rows + shift).clamp_max(len(ladder.rows) - 1)
    held = rows & (ladder.rows[later] == ladder.rows + shift)
    return distance(x[held], ladder.rungs[:, later[held]])


def late_errors(x: torch.Tensor, ladder: Ladder, rows: Rows, expected: int) -> torch.Tensor:
    """[n]: rows against the nearest of the states that a few earlier tokens had, which one may differ by row:
    a buffer of the step before, read by a step of several tokens."""
    nearest = torch.full((len(ladder.rows),), torch.inf)
    for shift in LATE:
        source = torch.searchsorted(ladder.rows, ladder.rows + shift).clamp_max(len(ladder.rows) - 1)
        held = ladder.rows[source] == ladder.rows + shift
        errors = distance(x, ladder.rungs[expected][source])
        nearest = torch.where(held, torch.minimum(nearest, errors), nearest)
    return nearest[rows & nearest.isfinite()]


def without(ladder: Ladder, rung: int, of_branch: bool) -> torch.Tensor:
    """A rung without what its layer added last, or only that."""
    branch = ladder.branches[rung]
    return ladder.rungs[rung] - branch if of_branch else branch


def of_predecessor(
    x: torch.Tensor, ladder: Ladder, earlier: Ladder, rows: Rows, expected: int
) -> torch.Tensor:
    """Errors against the states of the document captured before, at the same places."""
    places = torch.searchsorted(earlier.rows, ladder.rows).clamp_max(len(earlier.rows) - 1)
    held = rows & (earlier.rows[places] == ladder.rows)
    return distance(x[held], earlier.rungs[expected][places[held]])


def repeats(states: Sequence[torch.Tensor]) -> float:
    """Share of rows that equal the row before to the bit."""
    equal = torch.cat([(x[1:] == x[:-1]).all(-1) for x in states])
    return float(equal.float().mean()) if len(equal) else 0.0


def partial_sum(
    expected: int, states: Sequence[torch.Tensor], ladders: Sequence[Ladder], where: Sequence[Rows]
) -> float | None:
    """The missing share, where each row lacks a part of what its layer added last: one rank's states before
    the sum over ranks. Parts of a sum are all but orthogonal, so what is missing of the branch b is c·b and a
    rest of the size |b|·√(c - c²); other faults do not keep that proportion."""
    if not all(expected in ladder.branches for ladder in ladders):
        return None
    shares, rests = [], []
    for x, ladder, rows in zip(states, ladders, where, strict=True):
        branch, lacking = ladder.branches[expected][rows], (ladder.rungs[expected] - x)[rows]
        size = branch.pow(2).sum(-1).clamp_min(1e-30)
        share = (lacking * branch).sum(-1) / size
        shares.append(share)
        rests.append((lacking - share[:, None] * branch).pow(2).sum(-1) / size)
    missing, rest = float(torch.cat(shares).median()), float(torch.cat(rests).median())
    wanted = missing - missing * missing
    return missing if PARTIAL[0] < missing < PARTIAL[1] and 0.4 * wanted < rest < 2.5 * wanted else None


def named_together(expected: Mapping[int, int], bad: Mapping[int, Explanation]) -> tuple[Fault, str]:
    """One name and one sentence for what is wrong with some slots."""
    rungs = {slot: bad[slot].rung if slot in bad else rung for slot, rung in expected.items()}
    if all(found.fault is Fault.LAYER_SHIFT for found in bad.values()):
        if Counter(rungs.values()) == Counter(expected.values()):
            return Fault.PERMUTED, f"the slots stand in another order: they hold rungs {list(rungs.values())}"
        by = {rungs[slot] - expected[slot] for slot in bad}
        held = ", ".join(f"slot {slot} holds rung {rungs[slot]} for {expected[slot]}" for slot in bad)
        if len(by) == 1:
            return Fault.LAYER_SHIFT, f"layers are shifted by {by.pop():+d}: {held}"
        return Fault.OTHER_LAYER, f"other layers than expected: {held}"
    slot, found = next(iter(bad.items()))
    where = f"slot {slot} (rung {expected[slot]})"
    match found.fault:
        case Fault.TOKEN_SHIFT:
            shifted = f"holds rung {found.rung} of the token {abs(found.shift)}"
            what = f"{shifted} {'earlier' if found.shift < 0 else 'later'}"
        case Fault.RESIDUAL_MISSING:
            what = "holds only what the layer before added last, without the residual stream"
        case Fault.BRANCH_MISSING:
            what = "holds the residual stream without what the layer before added last"
        case Fault.PARTIAL_SUM:
            what = f"lacks {found.missing:.0%} of what the layer before added last: one rank's part of a sum"
        case Fault.NORM_APPLIED:
            what = f"holds rung {found.rung} after the final norm"
        case Fault.NORM_MISSING:
            what = "holds the last layer's output without the final norm"
        case Fault.STALE:
            what = "holds states of an earlier step or document: a buffer was read before it was written"
        case Fault.NOT_FINITE:
            what = "holds values that are no numbers"
        case _:
            what = f"fits nothing known; the nearest is rung {found.rung}, {found.error:.3f} away"
    return found.fault, f"{where} {what}"
