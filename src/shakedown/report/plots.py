"""Numbers with their intervals as inline SVG: dots on a line each, and curves over layers.

It never scales by colour alone and needs no script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shakedown.report.escape import clean
from shakedown.report.markup import Child, Html, tag

HEIGHT, CURVE_HEIGHT = 22, 220
WIDTH = 720  # of a curve's own units


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One line of a dot plot; `mark` is a second value on it, such as what was expected."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    mark: float | None = None
    words: str = ""


def dots(rows: Sequence[Dot], caption: str, *, most: float | None = None) -> Html | None:
    """All rows on one scale from 0; None where there is nothing to draw."""
    shown = [row for row in rows if math.isfinite(row.value)]
    if not shown:
        return None
    reach = most or max(max(row.value, row.high or 0, row.mark or 0) for row in shown) * 1.05 or 1.0
    lines = [
        tag(
            "div",
            tag("div", clean(row.name, 40), class_="name"),
            _dotted(row, reach),
            tag("div", row.words or _words(row), class_="note"),
            class_="line",
        )
        for row in shown
    ]
    return tag("figure", lines, tag("figcaption", caption))


def _words(row: Dot) -> str:
    if row.low is None or row.high is None:
        return f"{row.value:.2f}"
    return f"{row.value:.2f} ({row.low:.2f} to {row.high:.2f})"


def _dotted(row: Dot, reach: float) -> Html:
    def at(value: float) -> str:
        return f"{100 * min(max(value / reach, 0), 1):.2f}%"

    middle = str(HEIGHT // 2)
    parts: list[Child] = [tag("line", x1="0", x2="100%", y1=middle, y2=middle, class_="tick")]
    if row.low is not None and row.high is not None:
        parts.append(tag("line", x1=at(row.low), x2=at(row.high), y1=middle, y2=middle, class_="whisker"))
    if row.mark is not None:
        place = at(row.mark)
        parts.append(tag("line", x1=place, x2=place, y1="3", y2=str(HEIGHT - 3), class_="mark"))
    parts.append(tag("circle", cx=at(row.value), cy=middle, r="4", class_="dot"))
    words = f"{clean(row.name, 40)}: {_words(row)}"
    return tag("svg", parts, height=str(HEIGHT), role="img", aria_label=words)


def curves(
    lines: Sequence[tuple[str, Sequence[float]]], caption: str, *, marks: Sequence[int] = ()
) -> Html | None:
    """Values above 0 on a logarithmic scale over their places; `marks` are places worth a line."""
    values = [value for _, line in lines for value in line if 0 < value < math.inf]
    if not values:
        return None
    low, high = math.log10(min(values)), math.log10(max(values))
    span = max(high - low, 0.1)
    count = max(len(line) for _, line in lines)

    def x(place: int) -> float:
        return 40 + (WIDTH - 60) * place / max(1, count - 1)

    def y(value: float) -> float:
        return 12 + (CURVE_HEIGHT - 36) * (high - math.log10(value)) / span

    drawn: list[Child] = [
        tag("line", x1=f"{x(m):.1f}", x2=f"{x(m):.1f}", y1="8", y2=str(CURVE_HEIGHT - 24), class_="mark")
        for m in marks
    ]
    for name, line in lines:
        points = " ".join(
            f"{x(at):.1f},{y(value):.1f}" for at, value in enumerate(line) if 0 < value < math.inf
        )
        drawn.append(tag("polyline", tag("title", clean(name, 60)), points=points, class_="curve"))
        best = min(range(len(line)), key=lambda at: line[at] if line[at] > 0 else math.inf)
        drawn.append(
            tag(
                "text",
                clean(name, 20),
                x=f"{x(best) + 4:.1f}",
                y=f"{min(y(max(line[best], 10**low)) + 12, CURVE_HEIGHT - 26):.1f}",
            )
        )
    for place in range(0, count, max(1, count // 8)):
        drawn.append(tag("text", str(place), x=f"{x(place):.1f}", y=str(CURVE_HEIGHT - 8), class_="scale"))
    for power in range(math.ceil(low), math.floor(high) + 1):
        drawn.append(tag("text", f"1e{power}", x="2", y=f"{y(10.0**power) + 4:.1f}", class_="scale"))
    picture = tag(
        "svg", drawn, viewBox=f"0 0 {WIDTH} {CURVE_HEIGHT}", width="100%", role="img", aria_label=caption
    )
    return tag("figure", picture, tag("figcaption", caption))
