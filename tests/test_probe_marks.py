"""Stated marks, measured on servers whose pace, wait and acceptance are known."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_servers import serving

from shakedown.core import Expectation, Mark, Measured
from shakedown.probe import measure
from shakedown.probe.samples import LEAST, interval


def stated(*texts: str) -> tuple[Expectation, ...]:
    return tuple(map(Expectation.read, texts))


def measured(*texts: str, arguments: tuple[str, ...] = (), **options: float) -> tuple[Measured, ...]:
    with serving("http_model.py", *arguments) as target:
        return measure(target, stated(*texts), deadline_s=20.0, **options)


def test_a_mark_is_read_and_shown_as_it_was_stated():
    (mark,) = stated(" tokens_per_s>=400 ")
    assert (mark.mark, mark.bound, str(mark)) == (Mark.TOKENS_PER_S, 400.0, "tokens_per_s >= 400")


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("tokens_per_s", "tokens_per_s >= N"),
        ("speed >= 4", "ttft_ms <= N"),
        ("tokens_per_s <= 400", "write tokens_per_s >= 400"),
        ("ready_s >= 60", "write ready_s <= 60"),
        ("ttft_ms <= -1", "ttft_ms <= N"),
        ("accept_length >= 0", "says nothing"),
    ],
)
def test_what_states_no_mark_is_refused_with_a_way_out(text: str, way_out: str):
    with pytest.raises(ValueError, match=way_out):
        Expectation.read(text)


@given(st.sampled_from(list(Mark)), st.floats(0.1, 1e6), st.floats(0.1, 1e6), st.floats(0.1, 1e6))
def test_a_mark_is_decided_only_where_the_whole_interval_is_on_one_side(mark, bound, a, b):
    low, high = sorted((a, b))
    met = Expectation(mark=mark, bound=bound).met_within(low, high)
    good = [value >= bound if mark.more_is_better else value <= bound for value in (low, high)]
    assert met is (None if good[0] != good[1] and low != bound != high else met)
    assert met is not True or all(good)
    assert met is not False or not any(good)


def test_few_samples_have_no_bounds_and_more_narrow_them():
    chance = random.Random(3)
    samples = [math.exp(chance.gauss(3, 0.1)) for _ in range(12)]
    assert interval(samples[: LEAST - 1])[1:] == (0.0, math.inf)
    widths = [math.log(high / low) for _, low, high in (interval(samples[:n]) for n in (3, 6, 12))]
    assert widths == sorted(widths, reverse=True)


def test_launches_that_differ_by_a_share_cannot_be_told_apart_within_it():
    _, low, high = interval([100.0] * 6, spread=0.05)
    assert low == pytest.approx(100 / 1.05)
    assert high == pytest.approx(105)


def test_pace_and_wait_are_measured_by_few_requests_where_they_are_clear():
    slow, late = measured(
        "tokens_per_s >= 1000", "ttft_ms <= 20", arguments=("--pace", "200", "--wait", "0.1")
    )
    assert (slow.met, late.met) == (False, False)
    assert 50 < slow.value < 210
    assert 95 < late.value < 500
    assert min(slow.samples, late.samples) >= LEAST
    assert max(slow.samples, late.samples) <= 2 * LEAST  # one that met a busy machine is outvoted


def test_the_server_is_asked_under_the_name_it_serves():
    with serving("http_model.py", "--name", "served", model="folder/of/it") as target:
        (measured,) = measure(target, stated("tokens_per_s >= 1"), deadline_s=20.0)
    assert measured.met is True


def test_marks_that_are_met_are_said_to_be():
    fast, soon = measured("tokens_per_s >= 20", "ttft_ms <= 5000", arguments=("--pace", "400"))
    assert (fast.met, soon.met) == (True, True)


def test_noise_around_the_mark_decides_nothing():
    (noisy,) = measured("accept_length >= 2", arguments=("--accept", "2"), spread=0.01)
    assert noisy.met is None
    assert noisy.samples == 12


def test_acceptance_is_read_from_vllms_counters_and_from_sglangs_answers():
    (counted,) = measured("accept_length >= 2", arguments=("--accept", "2.5"))
    assert counted.value == pytest.approx(2.5)
    assert counted.met is True
    (told,) = measured("accept_length >= 3", arguments=("--accept", "2.5", "--fault", "no_metrics"))
    assert told.value == pytest.approx(2.5)
    assert told.met is False


def test_a_server_that_counts_no_rounds_is_not_measured_by_guessing():
    (unknown,) = measured("accept_length >= 2")
    assert (unknown.value, unknown.met) == (None, None)
    assert "counts no rounds" in str(unknown)


def test_a_server_that_no_longer_answers_is_no_measurement():
    (dead,) = measured("tokens_per_s >= 2", arguments=("--fault", "die"))
    assert dead.value is None
    assert "connection" in dead.note


def test_ready_is_for_the_watch_to_measure():
    assert measured("ready_s <= 60") == ()
