"""The verdict: each cell's numbers lead to one name, and nothing is blamed for what was not shown."""

from dataclasses import replace

import numpy as np
import pytest

from shakedown.acceptance.identity import Identity, Parting, chance_of, gap_between, parting_at
from shakedown.acceptance.replay import Comparison, Standing
from shakedown.acceptance.statistics import Interval
from shakedown.acceptance.verdict import Blame, Finding, Outcome, Shown, StatesFinding, judge


def interval(value: float, reach: float = 0.05) -> Interval:
    return Interval(value=value, low=value - reach, high=value + reach)


def comparison(standing: Standing, expected: float = 2.5, difference: float = 0.0) -> Comparison:
    return Comparison(
        standing=standing,
        expected=interval(expected),
        difference=interval(difference),
        margin=0.1,
        requests=16,
        rounds=320,
        alike=0.9,
        needed=40 if standing is Standing.UNDECIDED else None,
        to_the_end=interval(expected),
    )


GOOD = Shown(
    measured=interval(2.5),
    identity=Identity(compared=16, partings=(), own_compared=16),
    reference=comparison(Standing.EQUAL),
    break_even=1.6,
    speed_up=interval(1.5),
    rounds=320,
    steps=320,
)
LOW = replace(GOOD, measured=interval(1.4), reference=comparison(Standing.BELOW, difference=-1.1))
RIGHT = StatesFinding(stage="prefill", fault="same", what="every slot fits", tokens=300)
WRONG = StatesFinding(stage="verification", fault="layer_shift", what="layers are shifted by +1", tokens=300)


EQUAL, BELOW = comparison(Standing.EQUAL), comparison(Standing.BELOW)


def outcome(found: Finding) -> tuple[Outcome, Blame]:
    return found.outcome, found.blame


@pytest.mark.parametrize(
    ("shown", "blame"),
    [
        (GOOD, Blame.NONE),
        (replace(GOOD, states=(RIGHT,)), Blame.NONE),
        (replace(GOOD, elsewhere=interval(2.55)), Blame.NONE),
        (replace(GOOD, speed_up=interval(0.9)), Blame.DRAFTER),
        (replace(GOOD, measured=interval(1.0), speed_up=interval(0.5)), Blame.DRAFTER),
        (replace(GOOD, measured=interval(1.02), break_even=0.97, speed_up=None), Blame.DRAFTER),
        (replace(GOOD, elsewhere=interval(3.4)), Blame.WORKLOAD),
        (replace(GOOD, states=(RIGHT, WRONG)), Blame.CAPTURE),
        (replace(LOW, states=(RIGHT, WRONG)), Blame.CAPTURE),
        (replace(LOW, states=(RIGHT,), engine_states=comparison(Standing.BELOW)), Blame.DRAFTER_PATH),
        (replace(LOW, states=(RIGHT,), engine_states=EQUAL, cost_of_states=BELOW), Blame.CAPTURE),
        (replace(LOW, states=(RIGHT,), engine_states=EQUAL, cost_of_states=EQUAL), Blame.UNDECIDED),
        (replace(LOW, states=(RIGHT,), engine_states=comparison(Standing.EQUAL)), Blame.UNDECIDED),
        # of other answers, which are harder to draft: no proof against the states
        (replace(LOW, states=(RIGHT,), engine_states=comparison(Standing.EQUAL, 1.4)), Blame.UNDECIDED),
        (LOW, Blame.UNDECIDED),
        (replace(LOW, stateless=True), Blame.DRAFTER_PATH),
        (replace(GOOD, reference=comparison(Standing.UNDECIDED)), Blame.UNDECIDED),
        (replace(GOOD, reference=comparison(Standing.ABOVE)), Blame.UNDECIDED),
        (replace(GOOD, reference=comparison(Standing.ABOVE), states=(WRONG,)), Blame.CAPTURE),
        (replace(GOOD, reference=comparison(Standing.UNDECIDED), states=(WRONG,)), Blame.CAPTURE),
        (replace(GOOD, elsewhere=Interval(value=3.4, low=None, high=None)), Blame.NONE),
        (replace(GOOD, measured=interval(1.08), speed_up=interval(1.1)), Blame.NONE),
        (replace(GOOD, speed_up=interval(0.9), drift=0.2), Blame.NONE),
        (replace(GOOD, rounds=160), Blame.DRAFTER_PATH),
        (replace(GOOD, rounds=310), Blame.NONE),
        (replace(GOOD, reference=None, why_unexpected="a tree"), Blame.UNDECIDED),
        (replace(GOOD, reference=None, states=(WRONG,)), Blame.CAPTURE),
        (Shown(measured=None, why_unmeasured="/metrics tells nothing (404)"), Blame.UNDECIDED),
        (Shown(measured=None, idle=True), Blame.DRAFTER_PATH),
        (Shown(measured=None, lint_errors=("d2t: absolute ids",)), Blame.DRAFTER),
    ],
)
def test_the_numbers_name_who_is_to_blame(shown, blame):
    assert judge(shown).blame is blame


def test_an_engine_that_does_not_speculate_is_said_to_be_so():
    found = judge(Shown(measured=None, idle=True))
    assert outcome(found) == (Outcome.NOT_SPECULATING, Blame.DRAFTER_PATH)
    assert "was told to speculate and does not" in found.why[0]


def test_too_few_rounds_say_how_many_more():
    found = judge(replace(GOOD, reference=comparison(Standing.UNDECIDED)))
    assert found.more_rounds == 480  # 40 requests of 20 rounds, 320 are there
    assert "about 480 more rounds would" in found.why[0]


def test_a_gap_that_is_gone_where_the_states_are_seen_is_not_the_captures():
    """A fault that shows only in batches, or only without the plug-in."""
    seen = replace(LOW, states=(RIGHT,), engine_states=comparison(Standing.EQUAL), proposals=1.0)
    found = judge(seen)
    assert outcome(found) == (Outcome.BELOW, Blame.UNDECIDED)
    assert (
        "it accepts what there is to accept; it proposes as the reference in 100% of rounds" in found.why[1]
    )


def test_a_gap_can_be_handed_to_isolate():
    assert judge(replace(LOW, states=(WRONG,))).expect_bound == pytest.approx(1.95)
    assert judge(GOOD).expect_bound is None


TIE, FAR, SILENT = (Parting(token=7, gap_nats=gap) for gap in (0.04, 2.5, None))


def texts(*partings: Parting, own: tuple[Parting, ...] = (), own_compared: int = 16) -> Identity:
    return Identity(compared=16, partings=partings, own=own, own_compared=own_compared)


def test_a_tie_is_no_fault_and_unlikely_tokens_are():
    assert judge(replace(GOOD, identity=texts(TIE, TIE, SILENT, FAR))).blame is Blame.NONE
    found = judge(replace(GOOD, identity=texts(TIE, *[FAR] * 8)))
    assert outcome(found) == (Outcome.ALTERS, Blame.DRAFTER_PATH)
    assert "8 of 16 answers" in found.why[0]
    assert not texts(*[FAR] * 8, own=(FAR,) * 6).altered  # the plain server does the same to itself


def test_texts_that_part_without_a_word_of_how_likely_decide_nothing():
    found = judge(replace(GOOD, identity=texts(*[SILENT] * 16)))
    assert outcome(found) == (Outcome.UNDECIDED, Blame.UNDECIDED)
    assert "16 of 16 answers differ" in found.why[0]
    assert judge(replace(GOOD, identity=texts(*[SILENT] * 16, own=(SILENT,) * 14))).blame is Blame.NONE


@pytest.mark.parametrize("own_compared", [16, 160])
@pytest.mark.parametrize("rate", [0.005, 0.02, 0.1])
def test_of_engines_that_part_as_often_as_the_plain_server_one_in_a_hundred_is_blamed(
    rate: float, own_compared: int
):
    chance = np.random.default_rng(7)

    def parted(of: int) -> tuple[Parting, ...]:
        return (FAR,) * int(chance.binomial(of, rate))

    blamed = [
        Identity(
            compared=160, partings=parted(160), own=parted(own_compared), own_compared=own_compared
        ).altered
        for _ in range(2000)
    ]
    assert sum(blamed) <= 30


def test_the_chance_is_fishers():
    assert chance_of(3, 3, 0, 3) == pytest.approx(1 / 20)
    assert chance_of(0, 5, 2, 5) == pytest.approx(1.0)
    assert chance_of(2, 4, 0, 0) == pytest.approx(1.0)


def test_texts_part_where_they_first_differ():
    assert parting_at([1, 2, 3], [1, 2, 4]) == 2
    assert parting_at([1, 2, 3], [1, 2]) is None
    assert gap_between({5: -0.1, 6: -0.4}, 6) == pytest.approx(0.3)
    assert gap_between({5: -0.1}, 6) is None
