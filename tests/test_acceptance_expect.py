"""Walking a text: equal to stepping through it round by round, and unlike what trainers multiply."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shakedown.acceptance.expect import expect, full_starts, walk


def step_by_step(matches):
    """The literal loop: from start to start, counting leading matches."""
    starts, drafts = matches.shape
    rounds = tokens = start = 0
    accepted = np.zeros(drafts)
    while start < starts:
        count = 0
        while count < drafts and matches[start, count]:
            count += 1
        accepted[:count] += 1
        rounds, tokens, start = rounds + 1, tokens + count + 1, start + count + 1
    return rounds, tokens, accepted


@given(st.integers(0, 40), st.integers(1, 7), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_a_walk_is_the_literal_loop(starts, drafts, rate, seed):
    matches = np.random.default_rng(seed).random((starts, drafts)) < rate
    found = walk(matches.astype(float))
    rounds, tokens, accepted = step_by_step(matches)
    assert (found.rounds, found.tokens) == (rounds, tokens)
    assert found.accepted == pytest.approx(accepted)
    assert found.reached[0] == rounds if starts else True


@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1))
def test_a_walk_by_probabilities_is_the_mean_of_walks_by_chance(seed):
    chance = np.random.default_rng(seed)
    accept = chance.random((25, 3))
    found = walk(accept)
    drawn = [step_by_step(chance.random((25, 3)) < accept)[:2] for _ in range(2000)]
    rounds, tokens = np.mean(drawn, axis=0)
    assert found.rounds == pytest.approx(rounds, rel=0.04)
    assert found.tokens == pytest.approx(tokens, rel=0.04)


def test_rounds_that_the_end_could_cut_short_are_left_out():
    # 10 tokens, 3 drafts: a round after token 5 drafts 6 to 8 and has its bonus at 9; one after 6 lacks it
    assert full_starts(10, 3) == 6
    assert full_starts(3, 3) == 0


def test_independent_difficulty_makes_all_three_estimates_agree():
    chance = np.random.default_rng(7)
    texts = [[(chance.random((200, 3)) < 0.6).astype(float)] for _ in range(60)]
    found = expect(texts)
    truth = 1 + 0.6 + 0.6**2 + 0.6**3
    assert found.tokens_per_round.low < truth < found.tokens_per_round.high
    assert found.uniform_joint == pytest.approx(truth, rel=0.03)
    assert found.product_of_marginals == pytest.approx(truth, rel=0.03)
    assert [c.value for c in found.conditional] == pytest.approx([0.6] * 3, abs=0.03)
    assert [u.value for u in found.unconditional] == pytest.approx([0.6, 0.36, 0.216], abs=0.03)


def test_easy_and_hard_stretches_make_the_walk_less_than_what_trainers_print():
    chance = np.random.default_rng(8)

    def text():
        easy, regimes = True, []
        for _ in range(400):
            easy = easy if chance.random() < 0.95 else not easy
            regimes.append(0.9 if easy else 0.15)
        rates = np.array(regimes + [0.15] * 3)
        per_draft = np.stack([rates[j : j + 400] for j in range(3)], axis=1)
        return (chance.random((400, 3)) < per_draft).astype(float)

    found = expect([[text()] for _ in range(40)])
    walked = found.tokens_per_round
    assert walked.high < found.product_of_marginals < found.uniform_joint
    assert found.documents == 40


def test_a_document_of_several_turns_is_one_observation():
    chance = np.random.default_rng(9)
    turns = [(chance.random((30, 2)) < 0.5).astype(float) for _ in range(6)]
    together = expect([turns[:3], turns[3:], [np.zeros((0, 2))]])
    apart = expect([[turn] for turn in turns])
    assert together.documents == 2
    assert together.tokens_per_round.value == pytest.approx(apart.tokens_per_round.value)


def test_a_text_too_short_for_a_round_is_refused():
    with pytest.raises(ValueError, match="long enough"):
        expect([[np.zeros((0, 3))]])
