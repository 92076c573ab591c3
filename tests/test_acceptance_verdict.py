"""The verdict: each cell's numbers lead to one name, and nothing is blamed for what was not shown."""

from dataclasses import replace

import pytest

from shakedown.acceptance.identity import Identity, Parting, gap_between, parting_at
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
    identity=Identity(compared=16, partings=()),
    reference=comparison(Standing.EQUAL),
    break_even=1.6,
    speed_up=interval(1.5),
)
LOW = replace(GOOD, measured=interval(1.4), reference=comparison(Standing.BELOW, difference=-1.1))
RIGHT = StatesFinding(stage="prefill", fault="same", what="every slot fits", tokens=300)
WRONG = StatesFinding(stage="verification", fault="layer_shift", what="layers are shifted by +1", tokens=300)


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
        (replace(LOW, states=(RIGHT,), engine_states=comparison(Standing.EQUAL, 1.4)), Blame.CAPTURE),
        (replace(LOW, states=(RIGHT,), engine_states=comparison(Standing.EQUAL)), Blame.UNDECIDED),
        (replace(LOW, states=(RIGHT,), engine_states=comparison(Standing.EQUAL, 2.35)), Blame.UNDECIDED),
        (LOW, Blame.UNDECIDED),
        (replace(LOW, stateless=True), Blame.DRAFTER_PATH),
        (replace(GOOD, reference=comparison(Standing.UNDECIDED)), Blame.UNDECIDED),
        (replace(GOOD, reference=comparison(Standing.ABOVE)), Blame.UNDECIDED),
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


def test_a_tie_is_no_fault_and_an_unlikely_token_is():
    tie = Parting(token=7, gap_nats=0.04)
    far = Parting(token=9, gap_nats=2.5)
    silent = Parting(token=9, gap_nats=None)
    assert (
        judge(replace(GOOD, identity=Identity(compared=16, partings=(tie, tie, silent)))).blame is Blame.NONE
    )
    found = judge(replace(GOOD, identity=Identity(compared=16, partings=(tie, far))))
    assert outcome(found) == (Outcome.ALTERS, Blame.DRAFTER_PATH)
    assert "1 of 16 answers" in found.why[0]
    own = Identity(compared=16, partings=(far,), own=(far,))
    assert not own.altered  # the plain server does the same to itself


def test_texts_part_where_they_first_differ():
    assert parting_at([1, 2, 3], [1, 2, 4]) == 2
    assert parting_at([1, 2, 3], [1, 2]) is None
    assert gap_between({5: -0.1, 6: -0.4}, 6) == pytest.approx(0.3)
    assert gap_between({5: -0.1}, 6) is None
