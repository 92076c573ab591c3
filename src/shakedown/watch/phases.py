"""Follows each rank of a launch through its phases and says how far the launch as a whole is.

It never moves a rank backwards.
"""

from __future__ import annotations

import re

from shakedown.core import Engine, Phase, PhaseSpan
from shakedown.watch.patterns import MATCHED_CHARS, compile_or_escape

_NUMBER = re.compile(r"\d+")


class Timeline:
    """Phases per rank. Ranks that differ only by number ("TP0", "TP1") are peers; "" is the leader."""

    def __init__(self, engine: Engine) -> None:
        self._markers = [(compile_or_escape(m.pattern), m.phase) for m in engine.markers]
        self._spans: dict[str, list[PhaseSpan]] = {}
        self.enter("", Phase.IMPORT, 0.0)

    def read(self, rank: str, text: str, at_s: float) -> None:
        """Moves `rank` on if the line is a marker."""
        for pattern, phase in self._markers:
            if pattern.search(text, 0, MATCHED_CHARS):
                self.enter(rank, phase, at_s)

    def enter(self, rank: str, phase: Phase, at_s: float) -> None:
        spans = self._spans.setdefault(rank, [])
        if spans:
            current = spans[-1]
            if phase.order <= current.phase.order:
                return
            spans[-1] = PhaseSpan(phase=current.phase, rank=rank, started_s=current.started_s, ended_s=at_s)
        spans.append(PhaseSpan(phase=phase, rank=rank, started_s=at_s, ended_s=None))

    @property
    def common(self) -> Phase:
        """The furthest phase that all ranks of one kind have reached.

        A front end prints its last line of configuration and then waits for minutes while workers load:
        the launch is where its furthest *kind* of rank is, and a kind is where its slowest member is.
        """
        kinds: dict[str, Phase] = {}
        for rank, spans in self._spans.items():
            kind, here = _NUMBER.sub("#", rank), spans[-1].phase
            known = kinds.get(kind)
            kinds[kind] = here if known is None or here.order < known.order else known
        return max(kinds.values(), key=lambda phase: phase.order)

    def all_spans(self) -> tuple[PhaseSpan, ...]:
        """Every span of every rank, in order of start."""
        spans = [span for row in self._spans.values() for span in row]
        return tuple(sorted(spans, key=lambda span: (span.started_s, span.rank, span.phase.order)))
