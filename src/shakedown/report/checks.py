"""What `check` found, for a terminal: what would fail first, what was looked at in one line each rule.

It never prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shakedown.core import CheckFinding, CheckLevel
from shakedown.report.text import labelled

SHOWN = (CheckLevel.ERROR, CheckLevel.WARNING, CheckLevel.NOTE)
WORDS = {CheckLevel.ERROR: "would fail", CheckLevel.WARNING: "may fail", CheckLevel.NOTE: "note"}


def check_lines(findings: Sequence[CheckFinding]) -> list[str]:
    counted = {level: sum(found.level is level for found in findings) for level in CheckLevel}
    lines = [headline(counted)]
    for level in SHOWN:
        for found in findings:
            if found.level is level:
                lines += told(found)
    looked = _rules(found for found in findings if found.level is CheckLevel.OK)
    lines += labelled("looked at", ", ".join(looked), limit=1000) if looked else []
    for found in findings:
        if found.level is CheckLevel.UNKNOWN:
            lines += labelled("not seen", f"{found.rule}: {found.evidence}")
    return lines


def headline(counted: dict[CheckLevel, int]) -> str:
    if counted[CheckLevel.ERROR]:
        return f"this launch would fail: {counted[CheckLevel.ERROR]} found"
    if counted[CheckLevel.WARNING]:
        return f"it may fail: {counted[CheckLevel.WARNING]} found"
    if not counted[CheckLevel.NOTE] + counted[CheckLevel.OK]:
        return "nothing could be looked at"
    return f"nothing found that would make it fail ({counted[CheckLevel.OK]} looked at)"


def told(found: CheckFinding) -> list[str]:
    lines = labelled(WORDS[found.level], f"{found.what} [{found.rule}]")
    lines += labelled("", found.evidence)
    lines += labelled("causes", found.effect) if found.effect else []
    return lines + (labelled("mend", found.mend) if found.mend else [])


def _rules(findings: Iterable[CheckFinding]) -> list[str]:
    return list(dict.fromkeys(found.rule for found in findings))
