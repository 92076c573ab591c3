"""Intervals, equivalence and sample sizes: against brute force, known tables and their own promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.acceptance.statistics import (
    Estimate,
    bootstrap_ratio,
    clusters_needed,
    equivalence,
    paired_difference,
    student_quantile,
)


def documents(chance, clusters):
    """Rounds of unequal documents, easy and hard ones: tokens and rounds of each."""
    ease = chance.beta(4, 3, clusters)
    rounds = chance.integers(5, 80, clusters)
    accepted = np.array([chance.binomial(3 * n, p) for n, p in zip(rounds, ease, strict=True)])
    return rounds + accepted, rounds


def test_the_interval_covers_what_it_promises():
    chance = np.random.default_rng(1)
    everything = documents(chance, 200_000)
    truth = everything[0].sum() / everything[1].sum()
    hits = 0
    for seed in range(400):
        found = bootstrap_ratio(*documents(chance, 25), resamples=400, seed=seed)
        hits += found.low <= truth <= found.high
    assert 0.92 <= hits / 400 <= 0.98  # 95 % and three standard errors of 400 tries


def test_documents_not_rounds_are_observations():
    tokens, rounds = [40.0, 20.0] * 20, [10.0] * 40
    by_document = bootstrap_ratio(tokens, rounds)
    by_round = bootstrap_ratio([t / 10 for t in tokens for _ in range(10)], [1.0] * 400)
    assert by_document.value == by_round.value == 3.0
    width = by_document.high - by_document.low
    assert width == pytest.approx(math.sqrt(10) * (by_round.high - by_round.low), rel=0.15)


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30)), min_size=2, max_size=6), st.integers(0, 99)
)
def test_an_interval_never_leaves_what_the_documents_span(pairs, seed):
    found = bootstrap_ratio([a for a, _ in pairs], [b for _, b in pairs], resamples=200, seed=seed)
    ratios = [a / b for a, b in pairs]
    assert min(ratios) - 1e-9 <= found.low <= found.high <= max(ratios) + 1e-9


def test_one_document_has_no_interval_and_equal_ones_no_width():
    assert bootstrap_ratio([30], [10]).low is None
    same = bootstrap_ratio([30, 15, 60], [10, 5, 20])
    assert (same.low, same.value, same.high) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize("columns", [([], []), ([1.0], [0.0]), ([1.0, 2.0], [1.0])])
def test_a_ratio_of_nothing_is_refused(columns):
    with pytest.raises(ValueError):
        bootstrap_ratio(*columns)


def test_the_standard_error_is_what_resampling_finds():
    chance = np.random.default_rng(2)
    tokens, rounds = documents(chance, 200)
    other = tokens - chance.integers(0, rounds)
    picks = chance.integers(0, 200, (4000, 200))
    below = rounds[picks].sum(1)
    spread = (tokens[picks].sum(1) / below - other[picks].sum(1) / below).std()
    found = paired_difference((tokens, rounds), (other, rounds))
    assert found.value == pytest.approx((tokens - other).sum() / rounds.sum())
    assert found.standard_error == pytest.approx(spread, rel=0.06)


def test_a_paired_difference_forgets_what_both_share():
    chance = np.random.default_rng(3)
    tokens, rounds = documents(chance, 60)
    other = tokens - chance.integers(0, 2, 60)
    paired = paired_difference((tokens, rounds), (other, rounds))
    alone = paired_difference((tokens, rounds), (rounds, rounds))  # the second one is 1, surely
    assert paired.value == pytest.approx((tokens - other).sum() / rounds.sum())
    assert paired.standard_error < alone.standard_error / 5


def test_equivalence_needs_both_a_small_difference_and_certainty():
    def judged(value, error, margin=0.1):
        return equivalence(Estimate(value=value, standard_error=error, clusters=50), margin).equivalent

    assert judged(0.02, 0.02)
    assert not judged(0.02, 0.08)  # uncertain
    assert not judged(0.09, 0.02)  # too far
    assert not judged(-0.2, 0.001)
    one = paired_difference(([30], [10]), ([30], [10]))
    assert not equivalence(one, 0.1).equivalent  # one document tells nothing


def test_equivalence_is_claimed_falsely_in_one_of_twenty_at_most():
    chance = np.random.default_rng(4)
    claims = 0
    for _ in range(600):
        sample = chance.normal(0.1, 0.5, 30)  # truly at the margin
        found = Estimate(value=sample.mean(), standard_error=sample.std(ddof=1) / 30**0.5, clusters=30)
        claims += equivalence(found, 0.1).equivalent
    assert claims / 600 <= 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5


def test_the_sample_size_gives_the_power_it_promises():
    clusters = clusters_needed(0.5, 0.1)
    chance = np.random.default_rng(5)
    claims = 0
    for _ in range(300):
        sample = chance.normal(0, 0.5, clusters)
        found = Estimate(
            value=sample.mean(), standard_error=sample.std(ddof=1) / clusters**0.5, clusters=clusters
        )
        claims += equivalence(found, 0.1).equivalent
    assert claims / 300 == pytest.approx(0.9, abs=0.055)


@pytest.mark.parametrize(
    ("probability", "freedom", "table"),
    [(0.95, 1, 6.314), (0.95, 2, 2.920), (0.95, 4, 2.132), (0.975, 10, 2.228), (0.95, 30, 1.697)],
)
def test_students_quantiles_are_the_tables(probability, freedom, table):
    assert student_quantile(probability, freedom) == pytest.approx(table, rel=0.01)
