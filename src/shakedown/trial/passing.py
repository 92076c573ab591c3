"""A program that need not serve: it passes by saying so.

It sends nothing.
"""

from __future__ import annotations

from shakedown.core import Evidence, Judgement, Phase, Verdict
from shakedown.watch import Assessment


class PassLine:
    """The line by which a rung says that it ran to its end and computed right."""

    def __init__(self, line: str) -> None:
        self._line = line

    def step(self, assessment: Assessment) -> Judgement | None:
        said = [seen.line.text for seen in assessment.new_lines if self._line in seen.line.text]
        if not said:
            return None
        evidence = Evidence(kind="passed", text=said[0], at_s=assessment.now_s)
        return Judgement(
            verdict=Verdict.SERVES,
            phase=Phase.READY,
            phases=assessment.phases,
            evidence=(evidence,),
            exited=False,
        )
