"""What a contestant's answers were worth: launches, seconds, right and wrong, and how honest it was.

It runs no search.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from isolate_rivals import Answer
from isolate_worlds import MIX, Kind, World

import shakedown.isolate

RESAMPLES = 400
BINS = (0.0, 0.9, 0.95, 0.97, 0.99, 1.0001)

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Case:
    """One world as it ended. `right`: exactly the causes, or refused where it never shows again.

    `named` is kept of a wrong answer only.
    """

    launches: int
    seconds: float
    right: bool
    contains: bool
    innocent: bool
    proven_innocent: bool
    refused: bool
    gone: bool
    probability: float | None
    slowest_s: float
    most_mb: int
    named: tuple[tuple[str, ...], ...]

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Case:
        return cls(**{**row, "named": tuple(map(tuple, row["named"]))})


def judge(world: World, answer: Answer, slowest_s: float, most_mb: int) -> Case:
    truth = frozenset[str]().union(*world.causes)
    named = frozenset[str]().union(*(answer.causes or ()))
    gone, refused = not world.causes, answer.causes is None
    innocent = bool(named - truth) or (gone and not refused)
    right = refused if gone else not refused and set(answer.causes or ()) == set(world.causes)
    return Case(
        launches=world.launches,
        seconds=world.seconds,
        right=right,
        contains=not refused and not gone and truth <= named,
        innocent=innocent,
        proven_innocent=innocent and answer.proven,
        refused=refused,
        gone=gone,
        probability=answer.probability,
        slowest_s=round(slowest_s, 4),
        most_mb=most_mb,
        named=() if right else tuple(tuple(sorted(cause)) for cause in answer.causes or ()),
    )


def mixed(found: Mapping[Kind, Sequence[Case]]) -> list[Case]:
    """The first cases of each kind in the shares of the mix, as many as there are of all of them."""
    whole = min(int(len(found[kind]) / share + 1e-9) for kind, share in MIX.items())
    return [case for kind, share in MIX.items() for case in found[kind][: round(share * whole)]]


def summarise(cases: Sequence[Case], seed: int) -> dict[str, Any]:
    """Means and shares of a row, with 95 % bootstrap intervals where a number is compared."""
    launches = [case.launches for case in cases]
    return {
        "cases": len(cases),
        "launches": round(statistics.fmean(launches), 3),
        "launches_interval": _interval(launches, _means, seed),
        "median": statistics.median(launches),
        "median_interval": _interval(launches, _medians, seed),
        "p90": _tail(launches),
        "p90_interval": _interval(launches, _tails, seed),
        "minutes": round(statistics.fmean(case.seconds for case in cases) / 60, 2),
        "right": _share(case.right for case in cases),
        "right_interval": _interval([float(case.right) for case in cases], _means, seed),
        "contains": _share(case.contains for case in cases),
        "innocent": _share(case.innocent for case in cases),
        "proven_innocent": _share(case.proven_innocent for case in cases),
        "refused_rightly": _share(case.refused and case.gone for case in cases),
        "refused_wrongly": _share(case.refused and not case.gone for case in cases),
        "slowest_ms_a_launch": round(max(case.slowest_s for case in cases) * 1000),
    }


def calibration(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Of the answers with a stated probability: what was stated and what was right, from bin to bin."""
    stated = [(case.probability, case.right) for case in cases if case.probability is not None]
    rows = []
    for low, high in pairwise(BINS):
        inside = [(said, right) for said, right in stated if low <= said < high]
        if inside:
            rows.append(
                {
                    "from": low,
                    "to": min(high, 1.0),
                    "answers": len(inside),
                    "stated": round(statistics.fmean(said for said, _ in inside), 4),
                    "right": _share(right for _, right in inside),
                }
            )
    return rows


def planner() -> str:
    """Which planner it was, as a hash of its source: the version number changes more rarely."""
    room = Path(shakedown.isolate.__file__).parent
    source = b"".join(file.read_bytes() for file in sorted(room.glob("*.py")))
    return hashlib.sha256(source).hexdigest()[:12]


def _share(values: Any) -> float:
    return round(statistics.fmean(float(value) for value in values), 4)


def _tail(values: Sequence[float]) -> float:
    return sorted(values)[max(0, -(-9 * len(values) // 10) - 1)]


def _interval(values: Sequence[float], of: Callable[[Any], Any], seed: int) -> Interval:
    """95 % of what `of` gives for the rows of an array, over resamples of the values."""
    chance = np.random.default_rng(seed)
    drawn = np.asarray(values, dtype=float)[chance.integers(0, len(values), (RESAMPLES, len(values)))]
    low, high = np.quantile(of(drawn), (0.025, 0.975))
    return round(float(low), 3), round(float(high), 3)


def _means(drawn: Any) -> Any:
    return drawn.mean(axis=1)


def _medians(drawn: Any) -> Any:
    return np.median(drawn, axis=1)


def _tails(drawn: Any) -> Any:
    return np.sort(drawn, axis=1)[:, max(0, -(-9 * drawn.shape[1] // 10) - 1)]
