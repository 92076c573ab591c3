"""What of this machine would trouble a launch, looked at before the first one of a search.

Findings of the surroundings: leftovers of killed servers, a port that is taken, an interface that is not
there. They point at factors and are never a cause themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shakedown.core import CheckFinding, CheckLevel, Factor, Host
from shakedown.jobs.check import run_scripts, subject_of
from shakedown.jobs.reading import Reading
from shakedown.rungs import CHECKS

MACHINE = "machine"
NAMED = 20.0  # as the prior weighs a factor that the first cause names


def look_around(host: Host, reading: Reading) -> tuple[CheckFinding, ...]:
    """What is worth telling, worst first."""
    scripts = [script for script in CHECKS if script.name == MACHINE]
    worst_first = (CheckLevel.ERROR, CheckLevel.WARNING)
    found = [it for it in run_scripts(host, subject_of(reading), scripts) if it.level in worst_first]
    return tuple(sorted(found, key=lambda it: worst_first.index(it.level)))


def told(findings: Iterable[CheckFinding]) -> str:
    return "; ".join(f"{it.what} ({it.evidence})" for it in findings)


def suspicions(text: str, factors: Iterable[Factor]) -> Mapping[str, float]:
    """Factors whose flag or variable the findings name."""
    named = {factor.name: factor.name.partition("=")[0].partition(" ")[0] for factor in factors}
    return {name: NAMED for name, word in named.items() if len(word) > 5 and word in text}
