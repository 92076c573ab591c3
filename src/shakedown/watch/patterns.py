"""Turns the pattern lists of an engine table into one matcher each.

It never lets a broken pattern or an endless line stop a watch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MATCHED_CHARS = 1000  # of a line; log lines are untrusted, and no marker stands further in


class Phrases:
    """Says whether any of several patterns occurs in a line. A pattern that does not compile is literal."""

    def __init__(self, patterns: Iterable[str]) -> None:
        parts = [f"(?:{compile_or_escape(pattern).pattern})" for pattern in patterns]
        self._matcher = re.compile("|".join(parts)) if parts else None

    def __call__(self, text: str) -> bool:
        return self._matcher is not None and self._matcher.search(text, 0, MATCHED_CHARS) is not None


def compile_or_escape(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error:
        return re.compile(re.escape(pattern))
