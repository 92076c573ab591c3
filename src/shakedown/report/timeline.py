"""Phases on a clock: bars per rank or per launch, as inline SVG whose words keep their size.

It never invents an end: what was not seen to end is hatched up to the end of the launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shakedown.core import Judgement, Phase, Verdict
from shakedown.report.escape import clean
from shakedown.report.markup import Child, Html, tag
from shakedown.report.words import phase_times, seconds_words

KIND = {
    Phase.IMPORT: "prepare",
    Phase.CONFIG: "prepare",
    Phase.DOWNLOAD: "prepare",
    Phase.DIST_INIT: "ranks",
    Phase.WEIGHT_LOAD: "load",
    Phase.POST_LOAD: "load",
    Phase.COMPILE: "build",
    Phase.KV_CACHE: "build",
    Phase.GRAPH_CAPTURE: "build",
    Phase.WARM_UP: "build",
    Phase.BIND: "up",
    Phase.READY: "up",
    Phase.SERVING: "up",
}
KEYS = {
    "prepare": "import, config, download",
    "ranks": "ranks meet",
    "load": "weights",
    "build": "compile, cache, graphs, warm-up",
    "up": "bind, ready, serving",
}
MOST_RANKS = 64
HEIGHT = 20
PERCENT_PX = 6.6  # one per cent of a bar's line on a window of 1100 px
LETTER_PX = 5.8  # of the labels' 11 px type, on average
HATCHES = tag(
    "svg",
    tag(
        "defs",
        tag(
            "pattern",
            tag("line", x1="0", y1="0", x2="0", y2="6", class_="hatch"),
            id="open",
            width="6",
            height="6",
            patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        ),
    ),
    class_="hidden",
    aria_hidden="true",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    phase: Phase
    started_s: float
    ended_s: float
    open: bool = False
    timed: bool = True  # of a launch that serves, an open phase is over, nobody knows since when

    @property
    def label(self) -> str:
        took = f" {seconds_words(self.ended_s - self.started_s)}" if self.timed else ""
        return self.phase.value + took

    @property
    def words(self) -> str:
        return self.label + (", no end seen" if self.open else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a timeline; `mark_s` is when hard progress was last seen; `beside` stands at its end."""

    name: Child
    bars: tuple[Bar, ...]
    mark_s: float | None = None
    beside: Child = None


def launch_bars(judgement: Judgement, seconds: float | None) -> tuple[Bar, ...]:
    """The launch as a whole: each phase from the first process that enters it to the next phase's first."""
    starts = [_finite(span.started_s) for span in judgement.phases]
    at_s = min(starts, default=0.0)
    bars = []
    for time in phase_times(judgement, seconds):
        end_s = at_s + _finite(time.seconds)
        bars.append(Bar(phase=time.phase, started_s=at_s, ended_s=end_s, open=time.unfinished))
        at_s = end_s
    if seconds is not None and any(span.phase is Phase.SERVING for span in judgement.phases):
        end_s = max(_finite(seconds), at_s)
        bars.append(Bar(phase=Phase.SERVING, started_s=at_s, ended_s=end_s))
    return tuple(bars)


def rank_rows(judgement: Judgement, seconds: float | None) -> list[Row]:
    """The launch as a whole first, then every process that names itself in the log."""
    mark_s = last_progress_s(judgement)
    failed = judgement.verdict is not Verdict.SERVES
    rows = [Row(name="the launch", bars=launch_bars(judgement, seconds), mark_s=mark_s if failed else None)]
    ranks: dict[str, list[Bar]] = {}
    for span in judgement.phases:
        start_s = _finite(span.started_s)
        end_s = _finite(seconds or 0.0) if span.ended_s is None else _finite(span.ended_s)
        bar = Bar(
            phase=span.phase,
            started_s=start_s,
            ended_s=max(end_s, start_s),
            open=span.ended_s is None and span.phase is not Phase.SERVING,
            timed=failed or span.ended_s is not None or span.phase is Phase.SERVING,
        )
        ranks.setdefault(span.rank, []).append(bar)
    ranks.pop("", None)  # lines that name no process; the launch as a whole has them
    return rows + [
        Row(name=clean(rank, 40), bars=tuple(bars), mark_s=rows[0].mark_s) for rank, bars in ranks.items()
    ]


def last_progress_s(judgement: Judgement) -> float | None:
    times = [each.at_s for each in judgement.evidence if each.kind == "progress"]
    return times[-1] if times and math.isfinite(times[-1]) else None


def timeline(rows: Sequence[Row], caption: Child = None) -> Html | None:
    """All rows on one clock; None where there is nothing to draw."""
    ends = [bar.ended_s for row in rows for bar in row.bars]
    if not ends or max(ends) <= 0:
        return None
    span_s, two = max(ends), not any(row.beside for row in rows)
    lines = [_line(row.name, _drawn(row, span_s), row.beside, two) for row in rows[:MOST_RANKS]]
    if len(rows) > MOST_RANKS:
        lines.append(tag("p", f"and {len(rows) - MOST_RANKS} more in the ledger", class_="note"))
    kinds = {KIND[bar.phase] for row in rows for bar in row.bars}
    keys = [_key(kind, words) for kind, words in KEYS.items() if kind in kinds]
    if any(bar.open for row in rows for bar in row.bars):
        keys.append(_key("none", "no end seen", hatched=True))
    if any(row.mark_s is not None for row in rows):
        keys.append(_key_mark())
    scale = _line(None, _scale(span_s), None, two)
    return tag("figure", lines, scale, tag("figcaption", keys, tag("br") if caption else None, caption))


def _line(name: Child, drawn: Html, beside: Child, two: bool) -> Html:
    cells = [tag("div", name, class_="name"), tag("div", drawn)]
    if not two:
        cells.append(tag("div", beside))
    return tag("div", cells, class_="line two" if two else "line")


def _drawn(row: Row, span_s: float) -> Html:
    said = "; ".join(bar.words for bar in row.bars) or "no phase seen"
    parts = [_bar(bar, span_s) for bar in row.bars]
    if row.mark_s is not None and 0 <= row.mark_s <= span_s:
        at = _percent(row.mark_s, span_s)
        parts.append(tag("line", x1=at, x2=at, y1="-3", y2=str(HEIGHT + 3), class_="mark"))
    return tag("svg", tag("title", said), parts, role="img", height=str(HEIGHT))


def _bar(bar: Bar, span_s: float) -> Html:
    width = (bar.ended_s - bar.started_s) / span_s * 100
    inner = [tag("rect", width="100%", height=str(HEIGHT), class_=KIND[bar.phase])]
    if bar.open:
        inner.append(tag("rect", width="100%", height=str(HEIGHT), fill="url(#open)"))
    room = (width * PERCENT_PX - 8) / LETTER_PX  # letters; a label that is cut off says nothing
    if label := next((each for each in (bar.label, bar.phase.value) if len(each) <= room), None):
        inner.append(tag("text", label, x="5", y="14"))
    when = f"{bar.words}, from {bar.started_s:.1f} s to {bar.ended_s:.1f} s"
    return tag(
        "svg",
        tag("title", when),
        inner,
        x=_percent(bar.started_s, span_s),
        width=f"{max(width, 0.15):.3f}%",
        height=str(HEIGHT),
    )


def _scale(span_s: float) -> Html:
    parts: list[Html] = []
    for at_s in _ticks(span_s):
        at = _percent(at_s, span_s)
        parts.append(tag("line", x1=at, x2=at, y1="0", y2="4", class_="tick"))
        anchor = "start" if at_s == 0 else "end" if at_s > 0.97 * span_s else "middle"
        parts.append(tag("text", _clock(at_s, span_s), x=at, y="15", text_anchor=anchor, class_="scale"))
    return tag("svg", parts, height="17", aria_hidden="true")


def _ticks(span_s: float) -> list[float]:
    """At most nine, at round numbers of seconds, minutes or hours."""
    steps = [s * 10**power for power in range(-3, 2) for s in (1, 2, 5)]
    steps += [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400]
    step = next((step for step in steps if span_s / step <= 8), span_s / 4)
    return [n * step for n in range(int(span_s / step) + 1)]


def _clock(at_s: float, span_s: float) -> str:
    if span_s > 480:
        return f"{at_s / 60:.0f} min"
    return f"{at_s:g} s"


def _key(kind: str, words: str, *, hatched: bool = False) -> Html:
    fill = {"fill": "url(#open)"} if hatched else {"class_": kind}
    swatch = tag("svg", tag("rect", width="14", height="10", **fill), aria_hidden="true")
    return tag("span", swatch, words, class_="key")


def _key_mark() -> Html:
    line = tag("line", x1="7", x2="7", y1="0", y2="10", class_="mark")
    return tag("span", tag("svg", line, aria_hidden="true"), "last hard progress", class_="key")


def _percent(at_s: float, span_s: float) -> str:
    return f"{min(max(at_s / span_s, 0.0), 1.0) * 100:.3f}%"


def _finite(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else 0.0


def launch_row(
    name: Child, judgement: Judgement | None, seconds: float | None, beside: Iterable[Child] = ()
) -> Row:
    """One launch among others."""
    bars = launch_bars(judgement, seconds) if judgement else ()
    mark_s = last_progress_s(judgement) if judgement and not judgement.serves else None
    return Row(name=name, bars=bars, mark_s=mark_s, beside=list(beside))
