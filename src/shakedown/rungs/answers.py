"""What a script printed, read as findings. The text is untrusted: a library may print between the lines.

It runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from shakedown.core import CheckFinding, CheckLevel, Execution
from shakedown.rungs.table import Script

LONGEST = 600


def read_findings(script: Script, done: Execution) -> tuple[CheckFinding, ...]:
    """Every finding it printed, and one more where it did not come to its end."""
    found = tuple(filter(None, map(_finding, _objects(done.stdout))))
    if done.timed_out:
        return (*found, _broken_off(script, f"no answer within {script.deadline_s:.0f} s"))
    if done.code != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return (*found, _broken_off(script, lines[-1] if lines else f"exit code {done.code}"))
    return found


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                told = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(told, dict):
                yield told


def _finding(told: dict[str, Any]) -> CheckFinding | None:
    if told.get("level") not in set(CheckLevel) or not isinstance(told.get("rule"), str):
        return None
    words = {name: str(told.get(name) or "")[:LONGEST] for name in ("what", "evidence", "effect", "mend")}
    return CheckFinding(rule=told["rule"], level=CheckLevel(told["level"]), **words)


def _broken_off(script: Script, why: str) -> CheckFinding:
    return CheckFinding(
        rule=script.name,
        level=CheckLevel.UNKNOWN,
        what="",
        evidence=f"the check of {script.asks} broke off: {why}"[:LONGEST],
    )
