"""The end of `accept` on a terminal: at most one screen, the verdict first, what to do next last.

It never prints, and shows nothing that the document does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shakedown.report.escape import clean
from shakedown.report.text import labelled

BLAMED = {
    "none": "nobody is to blame",
    "drafter": "the drafter is to blame",
    "capture": "the engine is to blame: the states it captures",
    "drafter_path": "the engine is to blame: what it does with the drafter",
    "workload": "the workload is to blame",
    "undecided": "whose fault it is, is undecided",
}


def accept_lines(document: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for entry in document["drafters"]:
        lines += [*entry_lines(document, entry), ""]
    return [*lines[:-1], *cut_lines(document)]


def cut_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Why it did not come to its end, and what else was measured until then."""
    if "error" not in document:
        return
    yield from labelled("cut", document["why"][0])
    for number, each in enumerate(document["plain"]):
        found = each["after"] or each["before"]
        told = f"{found['tokens_per_s']:.1f} tokens/s at {each['concurrency']} at once"
        yield from labelled("" if number else "plain", f"{told}, in {found['requests']} answers")


def entry_lines(document: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[str]:
    yield f"{clean(entry['drafter'], 60)} {entry['verdict']}: {BLAMED[entry['blame']]}"
    for number, why in enumerate(entry["why"]):
        yield from labelled("" if number else "why", why)
    if "source" not in entry:
        return
    yield from measured_lines(entry)
    yield from pace_lines(document, entry)
    if entry["text"]:
        yield from labelled("text", text_words(entry["text"]))
    for number, states in enumerate(entry["states"]):
        said = f"{states['stage']} ({states['tokens']} tokens): {states['what']}"
        yield from labelled("" if number else "states", said)
    for step in entry["next"]:
        yield from labelled("next", step, limit=2000)


def measured_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    if entry["tokens_per_round"] is None:
        yield from labelled("measured", f"no round; source: {entry['source']}")
        return
    yield from labelled(
        "measured",
        f"{interval(entry['tokens_per_round'])} tokens a round, bonus included, at {entry['drafts']} drafts;"
        f" {entry['rounds']:,} rounds in {entry['requests']} answers, from {entry['source']}{dropped(entry)}",
    )
    if entry["expected"] is not None:
        yield from labelled(
            "expected", f"{interval(entry['expected'])} by walking the same text{alike(entry)}"
        )
    elif entry["why_no_expectation"]:
        yield from labelled("expected", f"not known: {entry['why_no_expectation']}")
    rates = " · ".join(
        f"{each['position']}: {each['conditional']['value']:.2f}" for each in entry["per_position"]
    )
    yield from labelled("by position", f"accepted once tried  {rates}")


def pace_lines(document: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[str]:
    if entry["round_cost"] is not None:
        best = entry["best_drafts"]
        told = (
            f"{best['drafts']} drafts would be best ({best['speed_up']:.2f}x)"
            if best["drafts"]
            else "none pays"
        )
        yield from labelled(
            "break-even",
            f"a round costs {interval(entry['round_cost'])} plain steps: below as many tokens a round"
            f" speculation loses; up to {entry['drafts']} drafts, {told}",
        )
    for number, at in enumerate(entry["at"]):
        drift = "" if at["drift"] is None else f"; the plain server drifted by {at['drift']:+.0%}"
        gain = f"{interval(at['speed_up'])}x" if at["speed_up"] else "no pace"
        yield from labelled(
            "" if number else "speed",
            f"{gain} at {at['concurrency']} at once: {at['tokens_per_s']:.1f} tokens/s against"
            f" {at['plain_tokens_per_s']:.1f}, first token after {seconds(at['first_token_s'])} against"
            f" {seconds(at['plain_first_token_s'])}{drift}",
        )


def text_words(text: Mapping[str, int]) -> str:
    parts = [f"{text['same']} of {text['compared']} answers are the plain server's own"]
    for name, words in (
        ("tied", "part at tokens that are tied"),
        ("altered", "part beyond a tie"),
        ("unknown", "part, how likely is not told"),
    ):
        if text[name]:
            parts.append(f"{text[name]} {words}")
    return ", ".join(parts)


def alike(entry: Mapping[str, Any]) -> str:
    found = entry["comparison"]
    if not found or found["rounds_alike"] is None:
        return ""
    return f"; {found['rounds_alike']:.0%} of {found['rounds']:,} rounds came out alike"


def dropped(entry: Mapping[str, Any]) -> str:
    """What the source could not leave out."""
    past = f"; {entry['past_the_end']:.0%} of it past the model's own end" if entry["past_the_end"] else ""
    if entry["source"].startswith("every round"):
        return f", those left out that the end of an answer may cut{past}"
    return f"; those are in it, too, that the end of an answer may cut{past}"


def interval(found: Mapping[str, float | None]) -> str:
    if found["low"] is None or found["high"] is None:
        return f"{found['value']:.2f}"
    return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def seconds(found: float | None) -> str:
    return "?" if found is None else f"{found:.2f} s" if found >= 1 else f"{found * 1000:.0f} ms"
