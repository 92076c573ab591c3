"""One page for an `accept`: verdict, numbers with their intervals, plots; it needs no script.

It shows nothing that the document does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shakedown import __version__
from shakedown.report import blocks
from shakedown.report.acceptance import BLAMED, interval, text_words
from shakedown.report.blocks import badge, copyable, facts, row, section, table
from shakedown.report.escape import clean
from shakedown.report.markup import Child, Html, tag
from shakedown.report.plots import Dot, curves, dots

GOOD = {"serves as trained": "yes", "undecided": "none"}
Entry = Mapping[str, Any]


def accept_page(document: Mapping[str, Any]) -> str:
    header = [
        tag("p", "Shakedown report of an acceptance", class_="kicker"),
        tag("h1", _badge(document), " ", BLAMED[document["blame"]]),
        facts(
            [
                ("Engine", clean(f"{document.get('engine', '')} {document.get('version', '')}".strip())),
                ("Margin", f"{document['margin']:g} tokens a round" if "margin" in document else None),
            ]
        ),
    ]
    main = [part for entry in document["drafters"] for part in _drafter(entry)]
    footer = tag("p", f"Shakedown {__version__}. Intervals are of 95 %, by request.")
    return blocks.page(f"{document['verdict']}: acceptance", header, main, footer)


def _badge(entry: Entry) -> Html:
    return badge(entry["verdict"], GOOD.get(entry["verdict"], "no"))


def _drafter(entry: Entry) -> Iterator[Child]:
    why = [tag("li", clean(each, 800)) for each in entry["why"]]
    if "source" not in entry:
        yield section(clean(entry["drafter"], 60), _badge(entry), tag("ul", why))
        return
    yield section(clean(entry["drafter"], 60), _badge(entry), tag("ul", why), _numbers(entry), _next(entry))
    yield section("Acceptance by position", _positions(entry))
    yield section("Tokens a round by kind of prompt", _kinds(entry))
    yield section("Tokens a round by place in the answer", _places(entry))
    yield section("Speed against concurrency", _speeds(entry))
    yield section(
        "The engine's states", _states(entry), [_scan(stage, found) for stage, found in entry["scan"].items()]
    )


def _numbers(entry: Entry) -> Html:
    best = entry["best_drafts"]
    found = [
        ("Measured", entry["tokens_per_round"]),
        ("Expected", entry["expected"]),
        ("Where it was trained", entry["elsewhere"]),
        ("Cost of a round, plain steps", entry["round_cost"]),
        ("Speed-up", entry["speed_up"]),
    ]
    pairs: list[tuple[str, Child]] = [(name, interval(value) if value else None) for name, value in found]
    pairs += [
        ("Rounds", f"{entry['rounds']:,} in {entry['requests']} answers, from {entry['source']}"),
        ("Best number of drafts", f"{best['drafts']} of up to {entry['drafts']}" if best else None),
        ("Text", text_words(entry["text"]) if entry["text"] else None),
        ("No expectation", clean(entry["why_no_expectation"] or "", 400)),
    ]
    return facts(pairs)


def _next(entry: Entry) -> Child:
    return copyable(entry["next"], "what to run next") if entry["next"] else None


def _positions(entry: Entry) -> Child:
    rows = [
        Dot(
            name=f"draft {each['position']}",
            value=each["conditional"]["value"],
            low=each["conditional"]["low"],
            high=each["conditional"]["high"],
            mark=expected["value"] if expected else None,
        )
        for each, expected in zip(
            entry["per_position"],
            entry["expected_per_position"] or [None] * len(entry["per_position"]),
            strict=True,
        )
    ]
    said = "Accepted once tried; the dashed line is what the walk of the same text expects."
    return dots(rows, said, most=1.0)


def _kinds(entry: Entry) -> Child:
    rows = [
        Dot(
            name=each["kind"],
            value=each["tokens_per_round"],
            words=f"{each['tokens_per_round']:.2f} in {each['requests']}",
        )
        for each in entry["by_kind"]
    ]
    return dots(rows, "Bonus included; the number of answers beside it.")


def _places(entry: Entry) -> Child:
    rows = [
        Dot(
            name=f"tokens {each['from']} to {each['to']}",
            value=each["tokens_per_round"],
            words=f"{each['tokens_per_round']:.2f} in {each['rounds']} rounds",
        )
        for each in entry["by_place"]
    ]
    return dots(rows, "By the token after which the round began.")


def _speeds(entry: Entry) -> list[Child]:
    rows = [
        Dot(
            name=f"{each['concurrency']} at once",
            value=each["speed_up"]["value"],
            low=each["speed_up"]["low"],
            high=each["speed_up"]["high"],
            mark=1.0,
        )
        for each in entry["at"]
        if each["speed_up"]
    ]
    cells = [
        row(
            str(each["concurrency"]),
            f"{each['tokens_per_s']:.1f}",
            f"{each['plain_tokens_per_s']:.1f}",
            _milliseconds(each["first_token_s"]),
            _milliseconds(each["plain_first_token_s"]),
            _milliseconds(each["token_s"]),
            _milliseconds(each["plain_token_s"]),
            "" if each["drift"] is None else f"{each['drift']:+.1%}",
            numbers=tuple(range(8)),
        )
        for each in entry["at"]
    ]
    heads = ("at once", "tokens/s", "plain", "first token ms", "plain ", "token ms", "plain  ", "drift")
    return [
        dots(rows, "Speed-up; the dashed line is the plain server."),
        table("Drift: the plain server after against before.", heads, cells, numbers=heads),
    ]


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f}"


def _states(entry: Entry) -> Child:
    rows = [
        row(
            clean(each["stage"]),
            clean(each["fault"]),
            clean(each["what"], 400),
            str(each["tokens"]),
            numbers=(3,),
        )
        for each in entry["states"]
    ]
    heads = ("stage", "found", "what", "tokens")
    return table("Against the reference, token by token.", heads, rows, numbers=("tokens",)) if rows else None


def _scan(stage: str, found: Mapping[str, Any]) -> Child:
    lines = [(f"slot {slot}", errors) for slot, errors in enumerate(found["errors"])]
    said = f"{stage}: distance of each slot from the reference before each layer; dashed, what it should be"
    return curves(lines, said, marks=found["expected"])
