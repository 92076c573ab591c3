"""What a script printed, read as findings or as evidence.

The text is untrusted: a library may print between the lines. It runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from shakedown.core import CheckFinding, CheckLevel, Evidence, Execution
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


def read_evidence(script: Script, done: Execution, at_s: float) -> tuple[Evidence, ...]:
    """What a script saw after a failure. What broke off is told as not read."""
    found = tuple(filter(None, (_evidence(told, at_s) for told in _objects(done.stdout))))
    if done.timed_out or done.code != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = (
            f"no answer within {script.deadline_s:.0f} s" if done.timed_out else (lines or ["no answer"])[-1]
        )
        found = (*found, Evidence(kind="not read", text=f"{script.asks}: {why}"[:LONGEST], at_s=at_s))
    return found


def _evidence(told: dict[str, Any], at_s: float) -> Evidence | None:
    kind, text, pid, after_s = (told.get(key) for key in ("kind", "text", "pid", "after_s"))
    if not isinstance(kind, str) or not isinstance(text, str):
        return None
    when_s = float(after_s) if isinstance(after_s, int | float) else at_s
    return Evidence(
        kind=kind[:LONGEST], text=text[:LONGEST], at_s=when_s, pid=pid if isinstance(pid, int) else None
    )


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
