"""Whose fault a low acceptance is, from four cells, a replay and the states: numbers in, a name out.

It never blames anybody for what the numbers do not show: `undecided` says what would decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from shakedown.acceptance.identity import Identity
from shakedown.acceptance.replay import Comparison, Standing
from shakedown.acceptance.statistics import Interval

OFTEN = 0.9  # of the steps in which it might draft; below, it does so part of the time
NEXT_TO_NOTHING = 0.1  # tokens a round beside the bonus; the lowest break-even seen was 1.6 in all


class Blame(StrEnum):
    NONE = "none"
    DRAFTER = "drafter"
    CAPTURE = "capture"
    DRAFTER_PATH = "drafter_path"
    WORKLOAD = "workload"
    UNDECIDED = "undecided"


class Outcome(StrEnum):
    """The verdict of `accept` on one drafter in one engine."""

    AS_TRAINED = "serves as trained"
    BELOW = "accepts less than it should"
    ALTERS = "alters the text"
    NOT_SPECULATING = "does not speculate"
    MISFIT = "does not fit the engine"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesFinding:
    """What the engine's states are, by how they were computed: prefill, chunked prefill, decode, verify.

    `fault` is the pattern's name, "same" or "undecided".
    """

    stage: str
    fault: str
    what: str
    tokens: int

    @property
    def wrong(self) -> bool:
        return self.fault not in ("same", "undecided")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """All that was shown of one drafter in one engine; None for what was not measured.

    Cells by states and drafter: `measured` is {engine, engine}, `reference` {reference, reference},
    `engine_states` {engine, reference}. The fourth is not served by any engine; `proposals` stands for it:
    the share of rounds in which the engine proposes what the reference drafter proposes on the engine's
    states. `cost_of_states`: the reference drafter on the engine's states, against it on its own, on the same
    answers. `elsewhere`: what the reference gives on text that the drafter was trained for. `stateless`:
    its drafts need no states. `rounds` of `steps` of the target in which it might have drafted; `drift`: how
    much slower the plain server was after than before, as a share.
    """

    measured: Interval | None
    lint_errors: tuple[str, ...] = ()
    idle: bool = False
    why_unmeasured: str = ""
    identity: Identity | None = None
    reference: Comparison | None = None
    engine_states: Comparison | None = None
    cost_of_states: Comparison | None = None
    states: tuple[StatesFinding, ...] = ()
    proposals: float | None = None
    stateless: bool = False
    break_even: float | None = None
    speed_up: Interval | None = None
    drift: float | None = None
    rounds: int = 0
    steps: int = 0
    elsewhere: Interval | None = None
    other_template: str = ""
    why_unexpected: str = ""
    margin: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`why` are sentences, the deciding one first; `more_rounds` would decide an undecided one."""

    outcome: Outcome
    blame: Blame
    why: tuple[str, ...]
    more_rounds: int | None = None
    expect_bound: float | None = field(default=None)  # for `isolate --expect 'accept_length >= …'`


def judge(shown: Shown) -> Finding:
    """In the order in which one thing makes the next meaningless."""
    if shown.lint_errors:
        return Finding(outcome=Outcome.MISFIT, blame=Blame.DRAFTER, why=shown.lint_errors)
    if shown.idle:
        why = shown.why_unmeasured or "it counts no round of speculation"
        return Finding(
            outcome=Outcome.NOT_SPECULATING,
            blame=Blame.DRAFTER_PATH,
            why=(f"the engine was told to speculate and does not: {why}",),
        )
    if shown.identity is not None and shown.identity.altered:
        return altered(shown.identity)
    if shown.measured is None:
        return undecided(f"no acceptance could be read: {shown.why_unmeasured}")
    wrong = [found for found in shown.states if found.wrong]
    if shown.reference is None:
        return without_reference(shown, wrong)
    match shown.reference.standing:
        case Standing.EQUAL:
            return as_expected(shown, wrong)
        case Standing.BELOW:
            return below(shown, shown.reference, wrong)
        case Standing.ABOVE:
            why = (
                f"the engine accepts more than the reference drafter would"
                f" ({difference(shown.reference)}): the reference is not what is served"
            )
            return by_states_alone(wrong, why) or undecided(why)
        case Standing.UNDECIDED:
            few = too_few(shown.reference)
            return by_states_alone(wrong, few.why[0]) or few


def altered(identity: Identity) -> Finding:
    first = identity.faults[0]
    gap = (
        "is not among its likeliest" if first.gap_nats is None else f"is {first.gap_nats:.2f} nat less likely"
    )
    return Finding(
        outcome=Outcome.ALTERS,
        blame=Blame.DRAFTER_PATH,
        why=(
            f"{len(identity.faults)} of {identity.compared} answers differ from the plain server's"
            f" beyond a tie: token {first.token} of one {gap} there; verification lets wrong drafts pass",
        ),
    )


def without_reference(shown: Shown, wrong: Sequence[StatesFinding]) -> Finding:
    why = shown.why_unexpected or "there is no expectation to hold it against"
    return by_states_alone(wrong, why) or undecided(why)


def by_states_alone(wrong: Sequence[StatesFinding], rest: str) -> Finding | None:
    """Wrong states are wrong whatever was accepted."""
    if not wrong:
        return None
    why = (*states_words(wrong), f"acceptance alone would not have shown it: {rest}")
    return Finding(outcome=Outcome.BELOW, blame=Blame.CAPTURE, why=why)


def as_expected(shown: Shown, wrong: Sequence[StatesFinding]) -> Finding:
    """The engine does what training promises; whether that is enough is the drafter's matter."""
    assert shown.reference is not None
    equal = (
        f"as the reference drafter on the same text, within {shown.margin:g} ({difference(shown.reference)})"
    )
    if (found := by_states_alone(wrong, equal)) is not None:  # a drafter too weak to show it
        return found
    if shown.identity is not None and shown.identity.unproven:
        return undecided(unproven_words(shown.identity), equal)
    if shown.rounds < OFTEN * shown.steps:
        why = (
            f"it drafted in {shown.rounds:,} of {shown.steps:,} steps in which it might have,"
            " and a step without a draft gives one token"
        )
        return Finding(outcome=Outcome.BELOW, blame=Blame.DRAFTER_PATH, why=(why, equal))
    if (workload := other_workload(shown)) is not None:
        return Finding(outcome=Outcome.AS_TRAINED, blame=Blame.WORKLOAD, why=(workload, equal))
    if loses(shown):
        return Finding(
            outcome=Outcome.AS_TRAINED,
            blame=Blame.DRAFTER,
            why=(
                f"the engine accepts what there is to accept, but that does not pay{cost_words(shown)}",
                equal,
            ),
        )
    return Finding(outcome=Outcome.AS_TRAINED, blame=Blame.NONE, why=(equal,))


def below(shown: Shown, reference: Comparison, wrong: Sequence[StatesFinding]) -> Finding:
    gap = f"below what the reference drafter gives on the same text ({difference(reference)})"
    bound = bound_between(shown, reference)
    if wrong:
        why = (*states_words(wrong), gap)
        return Finding(outcome=Outcome.BELOW, blame=Blame.CAPTURE, why=why, expect_bound=bound)
    if shown.stateless:
        why = ("its drafts follow from the text alone, and are not what the engine has accepted", gap)
        return Finding(outcome=Outcome.BELOW, blame=Blame.DRAFTER_PATH, why=why, expect_bound=bound)
    cell = shown.engine_states
    if cell is None or cell.standing is Standing.UNDECIDED:
        return Finding(
            outcome=Outcome.BELOW,
            blame=Blame.UNDECIDED,
            why=(gap, "the engine's own states would tell capture from drafter path; they were not seen"),
            expect_bound=bound,
        )
    alike = (
        ""
        if shown.proposals is None
        else f"; it proposes as the reference in {shown.proposals:.0%} of rounds"
    )
    if cell.standing is Standing.BELOW:  # on the engine's own states the reference drafter does better
        why = (f"its states are right, and the reference drafter does better on them{alike}", gap)
        return Finding(outcome=Outcome.BELOW, blame=Blame.DRAFTER_PATH, why=why, expect_bound=bound)
    cost = shown.cost_of_states
    if cost is not None and cost.standing is Standing.BELOW:
        why = (f"the reference drafter does no better on the engine's states{alike}", gap)
        return Finding(outcome=Outcome.BELOW, blame=Blame.CAPTURE, why=why, expect_bound=bound)
    return Finding(
        outcome=Outcome.BELOW,
        blame=Blame.UNDECIDED,
        why=(
            gap,
            f"launched once more to see its states, it accepts what there is to accept{alike}:"
            " what differs there is timing, or which requests met in a batch",
        ),
        expect_bound=bound,
    )


def too_few(reference: Comparison) -> Finding:
    more = max(1, (reference.needed_rounds or 0) - reference.rounds) if reference.needed_rounds else None
    told = f"about {more:,} more rounds would" if more else f"{reference.needed} requests with a round would"
    counted = f"{reference.requests} answers"
    if reference.block > 1 and reference.needed:
        counted = f"{reference.requests} blocks of {reference.block} answers, which are counted together,"
        asked = reference.needed * reference.block
        told = f"{reference.needed} blocks would, {asked:,} requests (--requests, and as many --prompts)"
    return Finding(
        outcome=Outcome.UNDECIDED,
        blame=Blame.UNDECIDED,
        why=(f"{reference.rounds:,} rounds in {counted} do not decide ({difference(reference)}): {told}",),
        more_rounds=more,
    )


def other_workload(shown: Shown) -> str | None:
    """Why the drafter is asked for what it was not trained for; None where that is not seen."""
    here = shown.reference.to_the_end if shown.reference else None
    if shown.elsewhere is None or here is None:
        return None
    if not certainly_apart(shown.elsewhere, here, shown.margin):
        return None
    gives = f"{shown.elsewhere.value:.2f} tokens a round on what it was trained on, {here.value:.2f} here"
    return f"{shown.other_template}: {gives}" if shown.other_template else f"the drafter gives {gives}"


def certainly_apart(more: Interval, less: Interval, margin: float) -> bool:
    """Never of a value without an interval: one document proves nothing."""
    return more.low is not None and less.high is not None and more.low - less.high > margin


def loses(shown: Shown) -> bool:
    """By its speed or by its rounds: next to nothing does not pay unless the clock shows it.

    A machine that drifted by so much between two launches may have done so in between, too.
    """
    gain = shown.speed_up
    pays = gain is not None and gain.low is not None and gain.low > 1
    if shown.measured is not None and shown.measured.value < 1 + NEXT_TO_NOTHING:
        return not pays
    if gain is not None and gain.high is not None:
        return gain.high * (1 + abs(shown.drift or 0.0)) < 1
    value = shown.measured.value if shown.measured else 0.0
    return shown.break_even is not None and value < shown.break_even


def undecided(*why: str) -> Finding:
    return Finding(outcome=Outcome.UNDECIDED, blame=Blame.UNDECIDED, why=why)


def unproven_words(identity: Identity) -> str:
    parted = sum(not each.tied for each in identity.partings)
    return (
        f"{parted} of {identity.compared} answers differ from the plain server's, of its own"
        f" {len(identity.own)} of {identity.own_compared} once it was started anew, and it does not say how"
        " likely the tokens were: wrong drafts may pass into the text"
    )


def states_words(wrong: Sequence[StatesFinding]) -> tuple[str, ...]:
    return tuple(f"states of {found.stage}: {found.what}" for found in wrong)


def cost_words(shown: Shown) -> str:
    if shown.break_even is None or shown.measured is None:
        return ""
    return (
        f": {shown.measured.value:.2f} tokens a round, and a round costs {shown.break_even:.2f} plain steps"
    )


def difference(found: Comparison) -> str:
    value, low, high = found.difference.value, found.difference.low, found.difference.high
    if low is None or high is None:
        return f"{value:+.2f} tokens a round"
    return f"{value:+.2f} tokens a round, 90 % between {low:+.2f} and {high:+.2f}"


def bound_between(shown: Shown, reference: Comparison) -> float:
    """Half-way between what is measured and what is expected: what `isolate --expect` can hold trials to."""
    assert shown.measured is not None
    return round((shown.measured.value + reference.expected.value) / 2, 2)
