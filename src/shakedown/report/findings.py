"""What a search found, as sections of its page: causes and their proof, the command, hypotheses, the unknown.

It never draws a launch; `links` lead from a trial's ID to its row in the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from shakedown.core import Cause, CauseKind, Check, Conclusion, Factor, SearchRecord
from shakedown.report import blocks
from shakedown.report.blocks import badge, code, copyable, row, table
from shakedown.report.escape import clean
from shakedown.report.markup import Child, Html, tag
from shakedown.report.recipe import Recipe
from shakedown.report.shell import quoted
from shakedown.report.words import ANSWERS, CHECKS, cause_words, factor_words, not_known, proof_words

MARKS = {True: "yes", False: "no", None: "none"}
WIDTH = 110


def brief_cause(cause: Cause) -> Child:
    if cause.kind is not CauseKind.FACTORS:
        return clean(cause_words(cause, ()))
    shown: list[Child] = []
    for name in cause.factors:
        shown += [" together with " if shown else None, code(name)]
    return shown


def cause_section(cause: Cause, factors: Sequence[Factor], links: Mapping[str, str]) -> list[Child]:
    known = {factor.name: factor for factor in factors}
    rows = []
    for name in cause.factors:
        was, now = (known[name].was, known[name].now) if name in known else (name, "")
        rows.append(row(clean(name), code(was), clean(now) or "left out"))
    heads = ("factor", "fails as", "passes as")
    said = table(proof_words(cause).capitalize(), heads, rows) if rows else None
    base = tag("p", clean(cause_words(cause, factors))) if cause.kind is not CauseKind.FACTORS else None
    by_value = tag("p", "By value: ", clean(cause.value_note)) if cause.value_note else None
    checks = [tag("li", _check(name, check, links)) for name, check in cause.certificate]
    title = tag("h3", "Certificate") if checks else None
    return [base, said, by_value, title, tag("ul", checks, class_="plain") if checks else None]


def _check(name: str, check: Check, links: Mapping[str, str]) -> list[Child]:
    shown: list[Child] = [badge(ANSWERS[check.value], MARKS[check.value]), " ", CHECKS.get(name, clean(name))]
    shown.append(_linked(check.trial_ids, links))
    return [*shown, f": {clean(check.note, 400)}"] if check.note else shown


def _linked(trial_ids: Sequence[str], links: Mapping[str, str]) -> list[Child]:
    shown: list[Child] = []
    for trial in trial_ids:
        number = links.get(trial, "").removeprefix("#trial-")
        known = tag("a", f"trial {number}", href=links[trial]) if number else None
        shown += [", ", [known, " ", identifier(trial)] if known else identifier(trial)]
    return [" (", shown[1:], ")"] if shown else []


def identifier(name: str) -> Html:
    return tag("code", clean(name, 60), class_="id")


def working_section(recipe: Recipe | None, search: SearchRecord) -> list[Child]:
    if recipe is None:
        return [tag("p", "None was shown to serve.")]
    return [
        _changes(recipe, search),
        copyable(recipe.lines(width=WIDTH), "the command that serves", good=True),
        tag("p", "Your own command, changed least; one click selects it.", class_="note"),
    ]


def _changes(recipe: Recipe, search: SearchRecord) -> Html | None:
    """What the user's command loses and gains, token by token."""
    gone = [f"{name}={value}" for name, value in search.env if name in recipe.unset]
    pieces = [tag("del", code(" ".join(gone)))] if gone else []
    for name, value in recipe.changed:
        pieces.append(tag("ins", code(f"{name}={value}")))
    matcher = SequenceMatcher(None, search.argv, recipe.argv, autojunk=False)
    for what, i, j, k, m in matcher.get_opcodes():
        if what != "equal" and i < j:
            pieces.append(tag("del", code(" ".join(quoted(search.argv[i:j])))))
        if what != "equal" and k < m:
            pieces.append(tag("ins", code(" ".join(quoted(recipe.argv[k:m])))))
    shown = [tag("li", "− " if piece.startswith("<del") else "+ ", piece) for piece in pieces]
    return tag("ul", shown, class_="plain") if shown else None


def suspects_table(found: Conclusion, factors: Sequence[Factor]) -> Child:
    rows = [
        row(f"{chance:.0%}", code(factor_words(name, factors)), numbers=(0,))
        for name, chance in found.suspects
    ]
    heads = ("probability", "factor")
    return (
        table("By what was seen so far", heads, rows, numbers=("probability",), small=True) if rows else None
    )


def hypotheses_table(found: Conclusion, links: Mapping[str, str]) -> Child:
    rows = [
        row(
            badge(each.state.value, each.state.value),
            clean(each.statement, 400),
            clean(each.predicts, 400),
            [
                [tag("a", links.get(t, t)[1:].replace("-", " "), href=links.get(t)), " "]
                for t in each.trial_ids
            ],
        )
        for each in found.hypotheses
    ]
    return (
        table("What was thought, and what spoke for it.", ("", "statement", "predicts", "seen in"), rows)
        if rows
        else None
    )


def known_section(search: SearchRecord, links: Mapping[str, str]) -> list[Child]:
    found = search.conclusion
    parts: list[Child] = []
    if found:
        for title, listed in (("Cleared", found.cleared), ("Not cleared", found.not_cleared)):
            if listed:
                parts += [tag("h3", title), blocks.names(listed)]
        if found.other_failures:
            others = [
                tag("li", "another failure, filed apart", _linked([trial], links), ": ", code(showed))
                for trial, showed in found.other_failures
            ]
            parts += [tag("h3", "Other failures"), tag("ul", others)]
    unknown = [tag("li", clean(sentence, 600)) for sentence in not_known(search)]
    return [*parts, [tag("h3", "Not known"), tag("ul", unknown)] if unknown else None]
