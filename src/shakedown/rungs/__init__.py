"""Scripts for the launch's own interpreter: checks before a launch, and the rungs below safe mode.

It runs none of them; each is text that a host feeds to an interpreter, and needs nothing of Shakedown there.
"""

from shakedown.rungs.answers import read_evidence, read_findings
from shakedown.rungs.table import (
    AFTERWARDS,
    CHECKS,
    PASSED,
    SCRIPT_RUNGS,
    Script,
    ScriptRung,
    parameters,
    script_rungs,
    script_text,
)

__all__ = [
    "AFTERWARDS",
    "CHECKS",
    "PASSED",
    "SCRIPT_RUNGS",
    "Script",
    "ScriptRung",
    "parameters",
    "read_evidence",
    "read_findings",
    "script_rungs",
    "script_text",
]
