"""Rounds, prompt lookup, replay and break-even: pure arithmetic, against texts and costs that are known."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.acceptance.expect import walk
from shakedown.acceptance.lookup import Lookup, place_lookups, walk_lookup
from shakedown.acceptance.pace import Effort, best_drafts, pace_of
from shakedown.acceptance.replay import FEWEST_REQUESTS, Pair, Standing, compare, pair_rounds
from shakedown.acceptance.rounds import Tally, acceptance_of, place_rounds, rounds_of_pieces, whole_rounds
from shakedown.acceptance.statistics import Interval

ANY = Interval(value=2.0, low=None, high=None)


def greedy_rounds(accept: np.ndarray, generated: int) -> list[int]:
    """What an engine reports that drafts as `accept` says: starts past its rows accept nothing."""
    rounds, start = [], 0
    while start < generated - 1:
        row = accept[start] if start < len(accept) else np.zeros(accept.shape[1])
        rounds.append(int(np.cumprod(row).sum()))
        start += rounds[-1] + 1
    return rounds


@given(st.integers(0, 2**32), st.integers(6, 40), st.integers(1, 4))
def test_a_faithful_engine_has_the_rounds_of_the_walk(seed, generated, drafts):
    chance = np.random.default_rng(seed)
    accept = (chance.random((max(0, generated - drafts - 1), drafts)) < 0.6).astype(float)
    reported = greedy_rounds(accept, generated)
    placed = place_rounds(reported, generated)
    assert placed is not None
    kept = whole_rounds(placed, generated, drafts)
    pair = pair_rounds(placed, accept)
    assert pair.engine == pair.reference == Tally.of_rounds([each.accepted for each in kept], drafts)
    assert pair.alike == pair.engine.rounds
    assert walk(accept).rounds == pytest.approx(pair.engine.rounds)
    assert walk(accept).tokens == pytest.approx(pair.engine.tokens)


def test_rounds_that_do_not_fill_the_text_are_not_placed():
    assert place_rounds([1, 1], 5) is not None
    assert place_rounds([3, 3], 6) is not None  # the limit of tokens cut the last round
    assert place_rounds([1, 1], 12) is None  # steps without a round lie between
    assert place_rounds([5, 5, 5], 6) is None
    assert place_rounds([], 6) is None


def test_a_histogram_and_the_rounds_it_counts_are_one_tally():
    rounds = [0, 2, 3, 1, 0, 3]
    counts = [rounds.count(a) for a in range(4)]
    assert Tally.of_histogram(counts, 3) == Tally.of_rounds(rounds, 3)
    assert Tally.of_rounds(rounds, 3).tokens == sum(rounds) + len(rounds)


def test_pieces_of_a_stream_are_rounds_where_the_histogram_agrees():
    """[2, 0, 3]: the last one is cut by the limit of tokens, and the histogram says what it was."""
    assert rounds_of_pieces([1, 3, 1, 4], [1, 0, 1, 1]) == (2, 0, 3)
    assert rounds_of_pieces([1, 3, 1, 2], [1, 0, 1, 1]) == (2, 0, 3)
    assert rounds_of_pieces([1, 3, 5], [1, 0, 1, 1]) is None  # two came together
    assert rounds_of_pieces([4, 1, 4], [1, 0, 1, 1]) is None  # the prefill's with the first
    assert rounds_of_pieces([1, 3, 3, 1], [1, 0, 1, 1]) is None
    assert rounds_of_pieces([1, 3, 1, 4], [1, 1, 1, 0]) is None  # more came than was accepted
    assert rounds_of_pieces([1], []) is None
    assert rounds_of_pieces([], []) is None


def test_acceptance_is_conditional_and_unconditional_by_position():
    found = acceptance_of([Tally(rounds=10, accepted=(6, 3)), Tally(rounds=10, accepted=(4, 2))])
    assert found is not None
    assert found.tokens_per_round.value == pytest.approx(1.75)
    assert [each.value for each in found.unconditional] == [0.5, 0.25]
    assert [each.value for each in found.conditional] == [0.5, 0.5]
    never = acceptance_of([Tally(rounds=5, accepted=(0, 0)), Tally(rounds=7, accepted=(0, 0))])
    assert never is not None
    assert never.tokens_per_round.value == 1.0
    assert never.conditional[1].low is None
    assert acceptance_of([Tally(rounds=0, accepted=(0,))]) is None


def test_lookup_proposes_what_followed_the_longest_and_earliest_match():
    lookup = Lookup(shortest=2, longest=3, drafts=3)
    assert lookup.propose([1, 2, 3, 9, 9, 1, 2, 3]) == (9, 9, 1)
    assert lookup.propose([1, 2, 7, 4, 1, 2, 8, 1, 2]) == (7, 4, 1)  # the earliest of two
    assert lookup.propose([5, 1, 2, 6, 8, 1, 2, 7, 5, 1, 2]) == (6, 8, 1)  # the longer of two
    assert lookup.propose([1, 2, 3, 4]) == ()
    assert lookup.propose([4, 4, 4]) == (4,)  # matches overlap
    assert lookup.propose([]) == ()


@given(st.lists(st.integers(0, 3), min_size=12, max_size=60), st.integers(1, 8))
def test_an_engine_that_looks_up_is_placed_where_it_proposed(text, prompt):
    lookup = Lookup(shortest=1, longest=3, drafts=2)
    generated = text[prompt:]
    walked = walk_lookup(lookup, text[:prompt], generated)
    reported = [each.accepted for each in walked]
    placed = place_lookups(lookup, text[:prompt], generated, reported)
    assert placed == walked


def test_a_place_where_an_engine_did_not_look_up_is_not_another_rounds():
    lookup = Lookup(shortest=1, longest=3, drafts=1)
    prompt, generated = [1, 2, 3], [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]
    walked = walk_lookup(lookup, prompt, generated)
    reported = [each.accepted for each in walked]
    assert place_lookups(lookup, prompt, generated, reported) == walked
    assert place_lookups(lookup, prompt, generated, reported[:2]) is None


def pairs(count: int, low_by: float, seed: int = 0) -> list[Pair]:
    """Requests of 20 rounds in which the engine accepts `low_by` fewer a round than the reference."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        ours = [chance.choice((0, 1, 2, 3)) for _ in range(20)]
        theirs = [max(0, each - (chance.random() < low_by)) for each in ours]
        same = sum(a == b for a, b in zip(ours, theirs, strict=True))
        made.append(Pair(engine=Tally.of_rounds(theirs, 3), reference=Tally.of_rounds(ours, 3), alike=same))
    return made


def test_equal_below_and_undecided_are_told_apart_and_the_missing_number_is_named():
    assert compare(pairs(12, 0.0), ANY, 0.1).standing is Standing.EQUAL
    gap = compare(pairs(30, 0.8), ANY, 0.1)
    assert gap.standing is Standing.BELOW
    assert gap.difference.value < -0.4
    few = compare(pairs(FEWEST_REQUESTS - 1, 0.0), ANY, 0.1)
    assert few.standing is Standing.UNDECIDED
    assert few.needed == FEWEST_REQUESTS
    narrow = compare(pairs(8, 0.12), ANY, 0.1)
    assert narrow.standing is Standing.UNDECIDED
    assert narrow.needed is not None
    assert narrow.needed > 8
    assert narrow.needed_rounds is not None
    assert narrow.needed_rounds > narrow.rounds
    assert compare([], ANY, 0.1).standing is Standing.UNDECIDED


def test_a_higher_engine_is_not_taken_for_a_good_one():
    swapped = [Pair(engine=p.reference, reference=p.engine, alike=p.alike) for p in pairs(30, 0.8)]
    assert compare(swapped, ANY, 0.1).standing is Standing.ABOVE


def test_a_round_costs_what_it_costs_and_pays_above_it():
    plain = [Effort(seconds=1.0 + n / 50, tokens=50, steps=50) for n in range(10)]
    drafted = [Effort(seconds=1.5 * p.seconds * 20 / 50, tokens=50, steps=20) for p in plain]
    found = pace_of(plain, drafted, [0.7, 0.5, 0.3])
    assert found is not None
    assert found.round_cost.value == pytest.approx(1.5)
    assert found.speed_up.value == pytest.approx(2.5 / 1.5)
    assert found.round_cost.low is not None
    assert found.round_cost.low <= 1.5 <= (found.round_cost.high or 0)
    assert (found.best_drafts, found.best_speed_up) == (3, pytest.approx(found.speed_up.value))
    assert pace_of([], [], []) is None


def test_where_few_steps_are_rounds_a_rounds_own_cost_is_told():
    plain = [Effort(seconds=1.0, tokens=100, steps=100) for _ in range(8)]
    # of 80 steps 20 are rounds of two tokens and a bonus; each costs 2.5 plain steps
    drafted = [Effort(seconds=0.6 + 20 * 0.025, tokens=100, steps=80, rounds=20) for _ in range(8)]
    found = pace_of(plain, drafted, [0.5, 0.5])
    assert found is not None
    assert found.round_cost.value == pytest.approx(2.5)
    assert found.speed_up.value == pytest.approx(1 / 1.1)


def test_the_best_number_of_drafts_is_where_the_next_one_costs_more_than_it_brings():
    assert best_drafts(1.03, [0.7, 0.5, 0.3])[0] == 3
    assert best_drafts(2.2, [0.7, 0.1, 0.01])[0] == 1
    assert best_drafts(4.0, [0.2, 0.1, 0.0]) == (0, 1.0)
