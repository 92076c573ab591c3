"""Two runs or searches side by side: verdicts, phases, first causes, arguments, variables, facts.

It never says which of the two is right.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from shakedown.core import Judgement, Phase, SearchRecord, TrialRecord
from shakedown.report.document import SCHEMA, Document, whole
from shakedown.report.escape import cell, clean, prose
from shakedown.report.loading import load_words
from shakedown.report.recipe import first_cause
from shakedown.report.shell import quoted
from shakedown.report.words import (
    ENDED,
    cause_words,
    phase_times,
    seconds_words,
    state_words,
    suspect_words,
    verdict_words,
)

Difference = tuple[str, str | None, str | None]  # name, left, right; None: that side does not have it
ABSENT = "–"
NAME_WIDTH = 26
SIDE_WIDTH = 34  # with the ratio within 100 columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two. A search stands for the launch that failed first, with its cause beside."""

    record: TrialRecord | SearchRecord
    judgement: Judgement | None
    seconds: float | None
    became: str
    cause: str
    resolved: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        record: TrialRecord | SearchRecord,
        trials: Sequence[TrialRecord] = (),
        resolved: Iterable[tuple[str, str]] = (),
    ) -> Self:
        """`resolved` are the arguments as the engine logged them, where it did."""
        if isinstance(record, TrialRecord):
            judgement, seconds, became, cause = record.judgement, record.seconds, state_words(record), ""
        else:
            first = next((trial for trial in trials if trial.judgement), None)
            judgement, seconds = (first.judgement, first.seconds) if first else (None, None)
            found = record.conclusion
            became = f"{verdict_words(found.failing)}, {ENDED[found.ended]}" if found else record.state.value
            cause = cause_words(first_cause(found), record.factors) if found and found.causes else ""
        return cls(
            record=record,
            judgement=judgement,
            seconds=seconds,
            became=became,
            cause=cause,
            resolved=dict(resolved),
        )

    def phases(self) -> dict[Phase, tuple[float, bool]]:
        """Seconds of each phase of the launch as a whole, and whether it never left it."""
        times = phase_times(self.judgement, self.seconds) if self.judgement else ()
        return {time.phase: (time.seconds, time.unfinished) for time in times}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    phase: Phase
    left_s: float | None
    right_s: float | None
    unfinished: tuple[bool, bool]
    ratio: float | None  # right / left; None where one is unfinished, so that its time means nothing

    @property
    def words(self) -> tuple[str, str, str]:
        left, right = (
            ABSENT if seconds is None else seconds_words(seconds) + (", not finished" if unfinished else "")
            for seconds, unfinished in zip((self.left_s, self.right_s), self.unfinished, strict=True)
        )
        return left, right, "" if self.ratio is None else f"{self.ratio:.2f}x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything in pairs; `findings` are always there, of the rest only what differs."""

    left: Side
    right: Side
    phases: tuple[PhaseRow, ...]
    findings: tuple[tuple[str, str, str], ...]
    arguments: tuple[Difference, ...]
    resolved: tuple[Difference, ...]
    env: tuple[Difference, ...]
    facts: tuple[Difference, ...]


def compare(left: Side, right: Side) -> Comparison:
    sides = (left, right)
    findings = [
        ("ID", *(side.record.id for side in sides)),
        ("became", *(side.became for side in sides)),
        ("first cause", *(side.judgement.cause if side.judgement else "" for side in sides)),
        ("suspect", *(_suspect(side.judgement) for side in sides)),
        ("proven or likely", *(side.cause for side in sides)),
        ("weights", *(load_words(s.record) if isinstance(s.record, TrialRecord) else "" for s in sides)),
        ("seconds", *(seconds_words(s.seconds) if s.seconds is not None else "" for s in sides)),
        ("started", *(side.record.started_at for side in sides)),
    ]
    facts = [dict(side.record.facts) | {"engine": side.record.engine} for side in sides]
    resolved = _differing(left.resolved, right.resolved) if left.resolved and right.resolved else ()
    return Comparison(
        left=left,
        right=right,
        phases=tuple(_phases(left, right)),
        findings=tuple((name, a, b) for name, a, b in findings if a or b),
        arguments=_differing(_arguments(left.record.argv), _arguments(right.record.argv)),
        resolved=resolved,
        env=_differing(dict(left.record.env), dict(right.record.env)),
        facts=_differing(*facts),
    )


def compare_document(found: Comparison) -> Document:
    """`verdict` of the whole is null; each side has its own."""
    return whole(
        {
            "schema": SCHEMA,
            "command": "report",
            "verdict": None,
            "sides": [_side(found.left), _side(found.right)],
            "phases": [
                {
                    "phase": row.phase,
                    "seconds": [row.left_s, row.right_s],
                    "unfinished": row.unfinished,
                    "ratio": row.ratio,
                }
                for row in found.phases
            ],
            "differences": {
                "arguments": _pairs(found.arguments),
                "resolved": _pairs(found.resolved),
                "env": _pairs(found.env),
                "facts": _pairs(found.facts),
            },
        }
    )


def compare_markdown(found: Comparison) -> str:
    lines = [f"# {prose(found.left.became)} against {prose(found.right.became)}"]
    for title, heads, rows in _tables(found):
        lines += ["", f"**{title}**", "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        lines += [
            f"| {prose(row[0], 60)} | {' | '.join(cell(each, 200) for each in row[1:])} |" for row in rows
        ]
    return "\n".join(lines) + "\n"


def compare_text(found: Comparison) -> list[str]:
    lines: list[str] = []
    for title, heads, rows in _tables(found):
        lines += ([""] if lines else []) + [
            title,
            _columns(heads[0], *(clean(head, 40) for head in heads[1:])),
        ]
        for row in rows:
            lines += _wrapped(row)
    return lines


Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def _tables(found: Comparison) -> list[Table]:
    heads = ("", "left", "right")
    phases: list[tuple[str, ...]] = [(row.phase.value, *row.words) for row in found.phases]
    tables: list[Table] = [("Findings", heads, list(found.findings))]
    tables += [("Phases", ("phase", "left", "right", "right / left"), phases)] if phases else []
    named = (
        ("Arguments that differ", found.arguments),
        ("Variables that differ", found.env),
        ("Arguments that resolved differently", found.resolved),
        ("Facts that differ", found.facts),
    )
    for title, rows in named:
        if rows:
            tables.append((title, heads, [tuple(ABSENT if x is None else x for x in row) for row in rows]))
    return tables


def _wrapped(row: Sequence[str]) -> list[str]:
    widths = (NAME_WIDTH, SIDE_WIDTH, SIDE_WIDTH, SIDE_WIDTH)
    cells = [textwrap.wrap(clean(text, 400), width) or [""] for text, width in zip(row, widths, strict=False)]
    deepest = max(map(len, cells))
    return [_columns(*(cell[at] if at < len(cell) else "" for cell in cells)) for at in range(deepest)]


def _columns(name: str, *sides: str) -> str:
    return f"  {name:<{NAME_WIDTH}}  {'  '.join(f'{side:<{SIDE_WIDTH}}' for side in sides)}".rstrip()


def _phases(left: Side, right: Side) -> Iterable[PhaseRow]:
    ours, theirs = left.phases(), right.phases()
    for phase in Phase:
        if phase in ours or phase in theirs:
            (a, a_open), (b, b_open) = (side.get(phase, (None, False)) for side in (ours, theirs))
            told = a and b is not None and not (a_open or b_open) and math.isfinite(a + b)
            yield PhaseRow(
                phase=phase,
                left_s=a,
                right_s=b,
                unfinished=(a_open, b_open),
                ratio=b / a if told and a and b is not None else None,
            )


def _arguments(argv: Sequence[str]) -> dict[str, str]:
    """Each flag with its values as they are written, without knowing the engine; other words by place."""
    found: dict[str, list[str]] = {}
    name, at = "", 0
    for token, shown in zip(argv, quoted(argv), strict=True):
        if token.startswith("-") and len(token) > 1 and not token[1].isdigit():
            name, joined, value = token.partition("=")
            found.setdefault(name, []).extend([value] if joined else [])
        elif name:
            found[name].append(shown)
        else:
            found[f"word {at}"] = [shown]
            at += 1
    return {clean(name): " ".join(values) or "given" for name, values in found.items()}


def _differing(left: Mapping[str, str], right: Mapping[str, str]) -> tuple[Difference, ...]:
    names = [*left, *(name for name in right if name not in left)]
    rows = ((name, left.get(name), right.get(name)) for name in names)
    return tuple(row for row in rows if row[1] != row[2])


def _suspect(judgement: Judgement | None) -> str:
    return suspect_words(judgement.suspect) if judgement and judgement.suspect else ""


def _side(side: Side) -> Document:
    judgement = side.judgement
    return {
        "id": side.record.id,
        "command": "isolate" if isinstance(side.record, SearchRecord) else "run",
        "verdict": judgement.verdict if judgement else None,
        "wait": judgement.wait if judgement else None,
        "phase": judgement.phase if judgement else None,
        "cause": clean(judgement.cause, 4000) if judgement else "",
        "seconds": side.seconds,
        "engine": side.record.engine,
        "started_at": side.record.started_at,
    }


def _pairs(rows: Iterable[Difference]) -> list[Document]:
    return [{"name": name, "left": left, "right": right} for name, left, right in rows]
