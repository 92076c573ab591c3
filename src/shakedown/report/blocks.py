"""The pieces report pages are made of: badges, tables, folds, commands, evidence, logs.

It never holds markup that a record could have brought with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from shakedown.core import Judgement, SearchRecord, TrialRecord
from shakedown.report.escape import clean
from shakedown.report.excerpt import LogExcerpt
from shakedown.report.markup import Child, Html, preformatted, tag
from shakedown.report.style import CSS
from shakedown.report.timeline import HATCHES
from shakedown.report.words import phase_times, seconds_words, suspect_words

LONGEST = 2000
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # even a flaw here could load nothing


def code(text: str, limit: int = LONGEST) -> Html:
    return tag("code", clean(text, limit))


def badge(words: str, kind: str) -> Html:
    """`kind` is one of our own words: a verdict, yes, no, supported."""
    return tag("span", words, class_=f"badge {kind}")


def verdict_badge(trial: TrialRecord) -> Html:
    if trial.judgement is None:
        return badge(trial.state.value, "none")
    judgement = trial.judgement
    if judgement.environment:
        return badge("not counted", "none")
    wait = f" ({judgement.wait.value})" if judgement.wait else ""
    return badge(judgement.verdict.value + wait, judgement.verdict.value)


def section(title: str, *children: Child) -> Html | None:
    """None where there is nothing in it."""
    body = tag("div", children)
    if body == "<div></div>":
        return None
    name = re.sub(r"\W+", "-", title.lower())
    return tag("section", tag("h2", title, id=name), body, aria_labelledby=name)


def facts(pairs: Iterable[tuple[str, Child]]) -> Html:
    shown = [(tag("dt", name), tag("dd", value)) for name, value in pairs if value]
    return tag("dl", shown, class_="facts")


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Html],
    *,
    numbers: Sequence[str] = (),
    small: bool = False,
) -> Html:
    marks = [tag("th", head, scope="col", class_="num" if head in numbers else None) for head in heads]
    parts = (tag("caption", caption), tag("thead", tag("tr", marks)), tag("tbody", rows))
    body = tag("table", *parts, class_="small" if small else None)
    return tag("div", body, class_="scroll")


def row(*cells: Child, numbers: Sequence[int] = (), id: str | None = None) -> Html:
    tds = [tag("td", cell, class_="num" if at in numbers else None) for at, cell in enumerate(cells)]
    return tag("tr", tds, id=id)


def fold(summary: Child, *children: Child, note: str = "", kind: str | None = None) -> Html:
    said = tag("summary", summary, tag("span", note, class_="note") if note else None)
    return tag("details", said, children, class_=kind)


def names(names: Iterable[str]) -> Html | None:
    shown = [tag("li", code(name, 200)) for name in names]
    return tag("ul", shown, class_="plain names") if shown else None


def copyable(lines: Sequence[str], label: str, *, good: bool = False) -> Html:
    """One click selects the whole: a page without scripts cannot put it on the clipboard."""
    return preformatted(lines, class_="copy good" if good else "copy", tabindex="0", aria_label=label)


def seconds_cell(seconds: float | None) -> str:
    return "" if seconds is None or not math.isfinite(seconds) else f"{seconds:.1f}"


def finding_facts(judgement: Judgement) -> list[tuple[str, Child]]:
    return [
        ("First cause", code(judgement.cause) if judgement.cause else None),
        ("Suspect", code(suspect_words(judgement.suspect)) if judgement.suspect else None),
    ]


def origin_facts(record: TrialRecord | SearchRecord) -> list[tuple[str, Child]]:
    known = dict(record.facts)
    place = f"{record.engine} {known.get('engine_version', '')}".strip()
    host = f" on {known['host']}" if known.get("host") else ""
    return [("Engine", clean(place + host)), ("Started", started(record))]


def started(record: TrialRecord | SearchRecord) -> str:
    try:
        at = datetime.fromisoformat(record.started_at)
    except ValueError:
        return clean(record.started_at, 40)
    return f"{at:%Y-%m-%d %H:%M:%S} {at.tzname() or ''}".strip()


def phases_table(judgement: Judgement, seconds: float | None) -> Html | None:
    times = phase_times(judgement, seconds)
    rows = [row(time.phase.value, time.words) for time in times]
    return table("The launch as a whole", ("phase", "time"), rows, small=True) if rows else None


def stack(judgement: Judgement) -> Html | None:
    """The suspect's frames, which are what a hang's fingerprint is made of."""
    frames = [frame for frame in judgement.fingerprint.split(" < ") if frame.strip()]
    if judgement.suspect is None or len(frames) < 2:
        return None
    shown = tag("ol", [tag("li", code(frame)) for frame in frames], class_="stack")
    return fold("Stack of the suspect", shown, note=f"{len(frames)} frames, innermost first")


def answers(judgement: Judgement) -> Html | None:
    """What the canary asked and got; folded in with the other evidence where it did not serve."""
    asked = [each for each in judgement.evidence if each.kind.startswith("canary ")]
    rows = [row(clean(each.kind.removeprefix("canary "), 40), clean(each.text, LONGEST)) for each in asked]
    return (
        table("Questions to the running server", ("question", "answer"), rows, small=True) if rows else None
    )


def evidence(judgement: Judgement) -> Html | None:
    if not judgement.evidence:
        return None
    rows = [
        row(
            seconds_cell(each.at_s),
            clean(each.kind, 40),
            str(each.pid) if each.pid else "",
            code(each.text),
            numbers=(0, 2),
        )
        for each in judgement.evidence
    ]
    heads = ("at s", "kind", "pid", "observed")
    shown = table("Seconds since the start of the launch", heads, rows, numbers=("at s", "pid"))
    return fold("Evidence", shown, note=f"{len(rows)} observations")


def log(excerpt: LogExcerpt | None) -> list[Html]:
    if excerpt is None or not any(excerpt.lines):
        return []
    resolved = [row(code(name), code(value, 400)) for name, value in excerpt.resolved]
    folds = [fold("Log", preformatted(excerpt.lines, class_="log"), note=_log_note(excerpt))]
    if resolved:
        said = table("As the engine logged them", ("argument", "value"), resolved, small=True)
        folds.append(fold("Resolved arguments", said, note=str(len(resolved))))
    return folds


def _log_note(excerpt: LogExcerpt) -> str:
    if excerpt.left_out:
        return f"first {len(excerpt.head)} and last {len(excerpt.tail)} lines; {excerpt.left_out}"
    return f"{len(excerpt.head)} lines"


def took(seconds: float | None) -> str:
    return f" after {seconds_words(seconds)}" if seconds is not None else ""


def page(title: str, header: Child, main: Child, footer: Child) -> Html:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=PAGE_POLICY),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", clean(title, 150)),
        tag("style", Html(CSS)),
    )
    body = tag("body", HATCHES, tag("header", header), tag("main", main), tag("footer", footer))
    return Html("<!doctype html>\n" + tag("html", head, body, lang="en") + "\n")
