"""The seam to the base ladder: what is asked when the failure needs no flag at all.

It runs nothing: the ladder is handed in, and its rungs are launches of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shakedown.core import Cause, CauseKind, Check, Judgement, Outcome, Workaround

UNTRIED = Check(value=None, note="no rung was tried")


@dataclass(frozen=True, slots=True, kw_only=True)
class RungFinding:
    """How far down it fails: `rung` is the lowest rung that does, and the next simpler one passes."""

    rung: str | None
    rung_fails: Check
    next_simpler_passes: Check
    workaround_serves: Check = UNTRIED
    workaround: Workaround | None = None


class BaseLadder(Protocol):
    """Goes down the rungs below safe mode; raises `BudgetSpent` like the oracle."""

    def __call__(self, failing: Judgement, evidence: Outcome | None) -> RungFinding: ...


NO_LADDER = RungFinding(rung=None, rung_fails=UNTRIED, next_simpler_passes=UNTRIED)


def base_cause(safe_mode_fails: Check, finding: RungFinding) -> Cause:
    return Cause(
        kind=CauseKind.BASE,
        factors=(),
        rung=finding.rung,
        certificate=(
            ("safe_mode_fails", safe_mode_fails),
            ("rung_fails", finding.rung_fails),
            ("next_simpler_passes", finding.next_simpler_passes),
            ("workaround_serves", finding.workaround_serves),
        ),
        workaround=finding.workaround,
    )
