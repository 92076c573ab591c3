"""What `accept` found of one drafter and of the plain server, as its JSON document has them.

It computes nothing that was not measured or walked.
"""

from __future__ import annotations

from typing import Any

from shakedown.acceptance.pace import Pace
from shakedown.acceptance.replay import Comparison
from shakedown.acceptance.rounds import Acceptance, place_rounds, whole_rounds
from shakedown.acceptance.statistics import Interval
from shakedown.acceptance.verdict import Finding, Shown
from shakedown.core import Launch
from shakedown.engines import display
from shakedown.jobs.accept_launches import unobserved
from shakedown.jobs.accept_measure import Measurement
from shakedown.jobs.accept_race import Race, Raced
from shakedown.redact import Redactor

PLACES = 6  # parts into which an answer is cut


def finding_entry(name: str, finding: Finding) -> dict[str, Any]:
    return {
        "drafter": name,
        "verdict": finding.outcome.value,
        "blame": finding.blame.value,
        "why": list(finding.why),
        "more_rounds": finding.more_rounds,
    }


def entry_of(race: Race, raced: Raced) -> dict[str, Any]:
    first, shown, pace = raced.measured[0], raced.shown, raced.paces[0]
    acceptance = first.acceptance
    reference = shown.reference
    return finding_entry(raced.contender.name, raced.finding) | {
        "drafts": raced.contender.drafts,
        "method": raced.contender.speculation.method if raced.contender.speculation else None,
        "source": first.source.value,
        "tokens_per_round": interval_of(acceptance.tokens_per_round) if acceptance else None,
        "rounds": acceptance.rounds if acceptance else 0,
        "requests": len(first.answers),
        "past_the_end": first.past_end,
        "expected": interval_of(reference.expected) if reference else None,
        "comparison": comparison_of(reference),
        "engine_states": comparison_of(shown.engine_states),
        "elsewhere": interval_of(shown.elsewhere) if shown.elsewhere else None,
        "per_position": positions_of(acceptance),
        "break_even": pace.round_cost.value if pace and acceptance else None,
        "round_cost": interval_of(pace.round_cost) if pace and acceptance else None,
        "speed_up": interval_of(pace.speed_up) if pace else None,
        "best_drafts": best_of(pace, acceptance),
        "text": text_of(shown),
        "states": [
            {"stage": f.stage, "fault": f.fault, "what": f.what, "tokens": f.tokens} for f in shown.states
        ],
        "scan": raced.seen.scan if raced.seen else {},
        "parity": {stage: found.to_dict() for stage, found in raced.seen.parity.items()}
        if raced.seen
        else {},
        "why_no_expectation": shown.why_unexpected or None,
        "expected_per_position": [interval_of(each) for each in reference.conditional]
        if reference and reference.conditional
        else None,
        "by_kind": by_kind(first),
        "by_place": by_place(first, raced.contender.drafts),
        "at": [
            at_concurrency(measured, plain, pace, drift)
            for measured, plain, pace, drift in zip(
                raced.measured, race.beside, raced.paces, raced.drift, strict=race.cut is None
            )
        ],
        "next": next_of(race, raced),
    }


def interval_of(interval: Interval) -> dict[str, float | None]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def comparison_of(found: Comparison | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "standing": found.standing.value,
        "expected": interval_of(found.expected),
        "difference": interval_of(found.difference),
        "margin": found.margin,
        "requests": found.requests,
        "answers_each": found.block,
        "rounds": found.rounds,
        "rounds_alike": found.alike,
        "requests_needed": found.needed,
    }


def positions_of(acceptance: Acceptance | None) -> list[dict[str, Any]]:
    if acceptance is None:
        return []
    pairs = zip(acceptance.conditional, acceptance.unconditional, strict=True)
    return [
        {"position": at, "conditional": interval_of(c), "unconditional": interval_of(u)}
        for at, (c, u) in enumerate(pairs, 1)
    ]


def best_of(pace: Pace | None, acceptance: Acceptance | None) -> dict[str, float] | None:
    if pace is None or acceptance is None:
        return None
    return {"drafts": pace.best_drafts, "speed_up": pace.best_speed_up}


def text_of(shown: Shown) -> dict[str, int] | None:
    found = shown.identity
    if found is None:
        return None
    return {
        "compared": found.compared,
        "same": found.compared - len(found.partings),
        "tied": sum(each.tied for each in found.partings),
        "altered": len(found.faults),
        "unknown": sum(not each.tied and not each.fault for each in found.partings),
        "plain_with_itself": len(found.own),
    }


def by_kind(measured: Measurement) -> list[dict[str, Any]]:
    kinds: dict[str, list[tuple[int, int]]] = {}
    for each in measured.answers:
        if each.tally is not None and each.tally.rounds:
            kinds.setdefault(each.question.kind, []).append((each.tally.tokens, each.tally.rounds))
    return [
        {"kind": kind, "tokens_per_round": sum(t for t, _ in of) / sum(r for _, r in of), "requests": len(of)}
        for kind, of in kinds.items()
        if kind
    ]


def by_place(measured: Measurement, drafts: int) -> list[dict[str, Any]]:
    """By where in the answer a round began, where the rounds are known one by one.

    None that the end of the text may cut: of the rounds that began there the short ones alone would be left.
    """
    kept: list[tuple[int, int]] = []
    longest = 0
    for each in measured.answers:
        generated = each.generated
        placed = place_rounds(generated.rounds or (), len(generated.tokens)) or ()
        whole = whole_rounds(placed, len(generated.tokens), drafts)
        kept += [(at.start, at.accepted + 1) for at in whole]
        longest = max(longest, len(generated.tokens))
    size = max(1, -(-longest // PLACES))
    found = []
    for begin in range(0, longest, size):
        tokens = [number for start, number in kept if begin <= start < begin + size]
        if tokens:
            mean = sum(tokens) / len(tokens)
            found.append(
                {"from": begin, "to": begin + size - 1, "tokens_per_round": mean, "rounds": len(tokens)}
            )
    return found


def at_concurrency(
    measured: Measurement, plain: Measurement, pace: Pace | None, drift: float | None
) -> dict[str, Any]:
    return {
        "concurrency": measured.concurrency,
        "tokens_per_round": interval_of(measured.acceptance.tokens_per_round)
        if measured.acceptance
        else None,
        "speed_up": interval_of(pace.speed_up) if pace else None,
        "round_cost": interval_of(pace.round_cost) if pace and measured.acceptance else None,
        "tokens_per_s": measured.tokens_per_s,
        "plain_tokens_per_s": plain.tokens_per_s,
        "first_token_s": measured.first_token_s,
        "plain_first_token_s": plain.first_token_s,
        "token_s": measured.token_s,
        "plain_token_s": plain.token_s,
        "failed": len(measured.failed),
        "drift": drift,
    }


def plain_entry(before: Measurement, after: Measurement | None) -> dict[str, Any]:
    """`after` None: it was cut before that."""
    return {
        "concurrency": before.concurrency,
        "before": {"requests": len(before.answers), "tokens_per_s": before.tokens_per_s},
        "after": {"requests": len(after.answers), "tokens_per_s": after.tokens_per_s} if after else None,
    }


def next_of(race: Race, raced: Raced) -> list[str]:
    """What to run next, where flags may decide it."""
    bound = raced.finding.expect_bound
    if bound is None:
        return []
    launch = unobserved(raced.contender.launch, race.launch)
    return [f"shakedown isolate --expect 'accept_length >= {bound:g}' -- {shown_launch(launch)}"]


def shown_launch(launch: Launch) -> str:
    return display(Redactor.of(launch.env, launch.argv, cwd=launch.cwd).redact_argv(launch.argv))
