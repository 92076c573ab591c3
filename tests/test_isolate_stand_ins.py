"""A search on a cheap stand-in first: where it pays, what it guesses, and that it never is the answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Shakedown
from test_isolate_search import HUNG, SERVES, factors_of

from shakedown.core import (
    Experiment,
    HypothesisState,
    Judgement,
    LogNormal,
    Outcome,
    Phase,
    PhaseSpan,
    Verdict,
    Wait,
)
from shakedown.isolate import Clues, isolate
from shakedown.jobs.costs import Costs
from shakedown.jobs.stand_ins import CONFIRMING, Price, joined, price_of, search_stand_in, with_guess

ENGINE_LIKE = Path(__file__).parent / "bad_servers" / "engine_like.py"


def failing(phase: Phase, verdict: Verdict = Verdict.HUNG, load_s: float = 1400.0) -> Outcome:
    spans = (
        PhaseSpan(phase=Phase.WEIGHT_LOAD, rank="0", started_s=20.0, ended_s=20.0 + load_s),
        PhaseSpan(phase=Phase.WEIGHT_LOAD, rank="1", started_s=20.0, ended_s=10.0 + load_s),
        PhaseSpan(phase=phase, rank="0", started_s=20.0 + load_s, ended_s=None),
    )
    judgement = Judgement(verdict=verdict, phase=phase, wait=Wait.WAITING, fingerprint="x", phases=spans)
    return Outcome(trial_id="t1", judgement=judgement, seconds=load_s + 100)


UNSEEN = Costs(
    fails=LogNormal(median_s=60, spread=0.5), serves=LogNormal(median_s=60, spread=0.5), phases={}, basis=""
)


def test_the_break_even_is_low_where_loading_takes_nearly_all_the_time():
    assert Price(real_s=1500, stand_in_s=90, launches=7).break_even < 0.05
    assert Price(real_s=40, stand_in_s=30, launches=7).break_even == float("inf")


def test_a_stand_in_pays_for_a_hang_after_half_an_hour_of_loading():
    price = price_of(failing(Phase.GRAPH_CAPTURE), UNSEEN, 24)
    assert price is not None
    assert price.stand_in_s == pytest.approx(100, abs=5)
    assert price.pays


@pytest.mark.parametrize(
    "outcome",
    [
        failing(Phase.DIST_INIT),  # before the weights: launches end there anyway
        failing(Phase.WEIGHT_LOAD, Verdict.CRASHED),  # it may be the weights
        failing(Phase.SERVING, Verdict.WRONG),
        failing(Phase.SERVING, Verdict.SLOW),
    ],
)
def test_what_a_stand_in_could_not_show_is_not_tried_on_one(outcome: Outcome):
    assert price_of(outcome, UNSEEN, 24) is None


def test_a_small_model_is_launched_as_it_is():
    price = price_of(failing(Phase.GRAPH_CAPTURE, load_s=2.0), UNSEEN, 24)
    assert price is not None
    assert not price.pays


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cause_found_on_a_stand_in_is_proven_on_the_launch_itself(shakedown: Shakedown, port: int) -> None:
    fault = {"kind": "crash", "phase": "graph_capture", "when": ["--stream-interval"], "text": "no room"}
    env = {"LIKE_FAULTS": json.dumps([fault]), "LIKE_LOAD_S": "6"}
    flags = ("--seed", "1", "--stream-interval", "4", "--enforce-eager")
    launch = (sys.executable, str(ENGINE_LIKE), "--model", "m", "--port", str(port), *flags)
    said = shakedown("isolate", "--engine", "vllm", launch=launch, env=env)
    found = said.document
    assert said.code == 0, said.stderr
    assert [f["name"] for f in found["cause"]["factors"]] == ["--stream-interval 4"]
    stand_ins = {trial["id"] for trial in found["trials"] if trial["stand_in"]}
    assert len(stand_ins) > 2
    for check in found["certificate"].values():
        assert check["trials"]
        assert not set(check["trials"]) & stand_ins
    assert all("dummy" in trial["argv"] for trial in found["trials"] if trial["stand_in"])
    assert [it["state"] for it in found["hypotheses"] if "stand-in" in it["statement"]] == ["supported"]


class Launches:
    """Answers as an oracle does, by a rule on what is kept and whether it is the stand-in."""

    def __init__(self, rule: Callable[[frozenset[str], bool], Judgement]) -> None:
        self._rule = rule
        self.asked: list[Experiment] = []

    def __call__(self, experiment: Experiment) -> Outcome:
        self.asked.append(experiment)
        judgement = self._rule(experiment.kept, experiment.stand_in)
        return Outcome(trial_id=f"t{len(self.asked)}", judgement=judgement, seconds=10.0)

    look_ahead = __call__


def test_a_stand_in_that_does_not_fail_alike_is_left_after_one_launch():
    oracle = Launches(lambda kept, stand_in: SERVES if stand_in else HUNG)
    seen = Outcome(trial_id="t0", judgement=HUNG, seconds=10.0)
    assert search_stand_in(oracle, tuple(factors_of(6)), seen, seed=1) is None
    assert len(oracle.asked) == 1
    assert with_guess(Clues(), None) == Clues()


def test_a_stand_in_that_misleads_is_overruled_by_the_launch():
    factors = tuple(factors_of(12))
    oracle = Launches(lambda kept, stand_in: HUNG if ("f03" if stand_in else "f07") in kept else SERVES)
    seen = Outcome(trial_id="t0", judgement=HUNG, seconds=10.0)
    guess = search_stand_in(oracle, factors, seen, seed=1)
    real = isolate(factors, oracle, seed=1, clues=with_guess(Clues(), guess))
    whole = joined(guess, real)
    assert [set(cause.factors) for cause in guess.causes] == [{"f03"}]
    assert [set(cause.factors) for cause in whole.causes] == [{"f07"}]
    assert whole.hypotheses[-1].state is HypothesisState.REFUTED
    assert len(whole.steps) == len(guess.steps) + len(real.steps)


def test_a_guess_that_is_right_is_proven_in_few_launches():
    factors = tuple(factors_of(24))
    oracle = Launches(lambda kept, stand_in: HUNG if "f17" in kept else SERVES)
    seen = Outcome(trial_id="t0", judgement=HUNG, seconds=10.0)
    guess = search_stand_in(oracle, factors, seen, seed=1)
    real = isolate(factors, oracle, seed=1, clues=with_guess(Clues(), guess))
    assert [set(cause.factors) for cause in real.causes] == [{"f17"}]
    assert len(real.steps) <= 1 + CONFIRMING + 1  # the reproduction, the proof, and one to spare
