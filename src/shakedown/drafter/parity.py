"""Are captured states the ones they are taken for? By token, by slot, against every rung of a ladder.

It never computes a state: both sides are handed in, so that decode states can be judged like prefill's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from shakedown.drafter.patterns import Explanation, Fault, Rows, explain, named_together
from shakedown.drafter.rungs import Ladder, distance, kept_rows
from shakedown.drafter.threads import one_thread

MARGIN = 5.0  # the next rung must be so many times as far as the noise, else the layers cannot be told apart
ALLOWED = 3.0  # times the distance between the reference in bfloat16 and in float32
OUTLIER = 10.0  # times the noise: a token that is wrong, not rounded
OUTLIERS = 0.02  # of the tokens may be that, beyond those that bfloat16 itself makes (routers flip)
LEAST_NOISE = 1e-4  # where the reference in bfloat16 is exact, as in models of a few numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFinding:
    """One slot against the ladder; errors are medians over tokens, relative to the state's size.

    `expected`, `best` and `nearest` are rungs: k is the input of layer k, the last but one the output of all
    layers, the last one that after the final norm. `margin` is the nearest other rung's error over the noise.
    """

    slot: int
    expected: int
    best: int
    error: float
    noise: float
    nearest: int
    nearest_error: float
    margin: float
    wrong_tokens: float
    explanation: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityFinding:
    fault: Fault
    what: str
    slots: tuple[SlotFinding, ...]
    documents: int
    tokens: int

    @property
    def same(self) -> bool:
        return self.fault is Fault.SAME

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: what is no number is None."""
        found: dict[str, Any] = finite(asdict(self))
        return found


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@one_thread()
def compare_states(
    engine: Sequence[torch.Tensor], ladders: Sequence[Ladder], expected: Sequence[int]
) -> ParityFinding:
    """Judges the states of some documents, each [slots, R, H] on the rows of its ladder.

    `expected` is the rung that each slot is taken for. The documents stand in the order in which they were
    captured: one that holds its predecessor's states is found.
    """
    found = [states.float() for states in engine]
    kept = [kept_rows(ladder) for ladder in ladders]
    slots = tuple(
        judge_slot(slot, rung, [states[slot] for states in found], ladders, kept)
        for slot, rung in enumerate(expected)
    )
    fault, what = conclude(slots)
    return ParityFinding(
        fault=fault,
        what=what,
        slots=slots,
        documents=len(ladders),
        tokens=int(sum(rows.sum() for rows in kept)),
    )


def judge_slot(
    slot: int, expected: int, states: Sequence[torch.Tensor], ladders: Sequence[Ladder], kept: Sequence[Rows]
) -> SlotFinding:
    errors = torch.cat(
        [distance(x, ladder.rungs)[:, rows] for x, ladder, rows in zip(states, ladders, kept, strict=True)],
        dim=1,
    )  # [N + 2, tokens]
    noises = torch.cat([ladder.noise[:, rows] for ladder, rows in zip(ladders, kept, strict=True)], dim=1)
    medians = errors.median(dim=1).values
    noise = max(float(noises[expected].median()), LEAST_NOISE)
    others = medians.clone()
    others[expected] = torch.inf
    nearest = int(others.argmin())
    wrong = errors[expected] > OUTLIER * noise
    excess = float(wrong.float().mean() - (noises[expected] > OUTLIER * noise).float().mean())
    error = float(medians[expected])
    margin = float(others[nearest]) / noise
    if not error <= ALLOWED * noise:  # also where it is no number
        explanation = explain(expected, states, ladders, kept, noise)
    elif excess > OUTLIERS:
        where = [
            rows & (distance(x, ladder.rungs[expected]) > OUTLIER * noise)
            for x, ladder, rows in zip(states, ladders, kept, strict=True)
        ]
        explanation = explain(expected, states, ladders, where, noise)
    elif margin < MARGIN:
        explanation = Explanation(fault=Fault.UNDECIDED, rung=nearest, error=error)
    else:
        explanation = Explanation(fault=Fault.SAME, rung=expected, error=error)
    return SlotFinding(
        slot=slot,
        expected=expected,
        best=int(medians.argmin()),
        error=error,
        noise=noise,
        nearest=nearest,
        nearest_error=float(others[nearest]),
        margin=margin,
        wrong_tokens=max(excess, 0.0),
        explanation=explanation,
    )


def conclude(slots: Sequence[SlotFinding]) -> tuple[Fault, str]:
    """The fault of all slots together, and a sentence."""
    bad = [slot for slot in slots if slot.explanation.fault not in (Fault.SAME, Fault.UNDECIDED)]
    if bad:
        return named_together(
            {slot.slot: slot.expected for slot in slots}, {slot.slot: slot.explanation for slot in bad}
        )
    unclear = [slot for slot in slots if slot.explanation.fault is Fault.UNDECIDED]
    if unclear:
        slot = unclear[0]
        return Fault.UNDECIDED, (
            f"slot {slot.slot} fits rung {slot.expected}, but rung {slot.nearest} is only {slot.margin:.1f}"
            f" times the noise away (needed: {MARGIN:.0f}): these layers cannot be told apart"
        )
    worst = max(slots, key=lambda slot: slot.error / slot.noise)
    return Fault.SAME, (
        f"every slot fits its rung, at worst slot {worst.slot} by {worst.error:.4f}: bfloat16's own noise is"
        f" {worst.noise:.4f}, the nearest other rung {worst.nearest_error:.3f} away"
    )
