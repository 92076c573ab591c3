"""Launches that cost no more than their answer: ended once past the failure, forecast from the ledger."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
from conftest import Shakedown
from hypothesis import given, settings
from test_isolate_search import HUNG, SERVES, worlds

from shakedown.core import Ended, Experiment, Judgement, Outcome, Phase, Signature, Verdict, Wait
from shakedown.isolate import isolate
from shakedown.isolate.judge import Showing, classify, safely_past
from shakedown.jobs.oracle import BETWEEN

ENGINE_LIKE = Path(__file__).parent / "bad_servers" / "engine_like.py"


def failure(verdict: Verdict, phase: Phase) -> Signature:
    wait = Wait.WAITING if verdict is Verdict.HUNG else None
    return Signature(verdict=verdict, phase=phase, fingerprint="x", wait=wait)


@pytest.mark.parametrize(
    ("verdict", "phase", "past"),
    [
        (Verdict.HUNG, Phase.DIST_INIT, Phase.WEIGHT_LOAD),
        (Verdict.CRASHED, Phase.CONFIG, Phase.DOWNLOAD),
        # Eager and graph mode pass these in another order: the next one may still show it.
        (Verdict.HUNG, Phase.GRAPH_CAPTURE, Phase.BIND),
        (Verdict.CRASHED, Phase.POST_LOAD, Phase.BIND),
        (Verdict.CRASHED, Phase.BIND, None),
        (Verdict.HUNG, Phase.SERVING, None),
        (Verdict.WRONG, Phase.SERVING, None),
    ],
)
def test_where_a_launch_is_safely_past_a_failure(verdict, phase, past):
    assert safely_past(failure(verdict, phase)) is past


def test_a_launch_that_was_ended_early_answers_only_for_failures_before_that():
    ended = Judgement(verdict=Verdict.UNDECIDED, phase=Phase.WEIGHT_LOAD, passed=Phase.WEIGHT_LOAD)
    assert classify(ended, failure(Verdict.HUNG, Phase.DIST_INIT)) is Showing.SERVES
    assert classify(ended, failure(Verdict.CRASHED, Phase.KV_CACHE)) is Showing.UNKNOWN
    assert classify(ended, failure(Verdict.WRONG, Phase.SERVING)) is Showing.UNKNOWN


@settings(deadline=None)
@given(worlds())
def test_a_workaround_has_served_and_was_not_only_ended_past_the_failure(world):
    factors, cause = world
    ended = Judgement(verdict=Verdict.UNDECIDED, phase=Phase.WEIGHT_LOAD, passed=Phase.WEIGHT_LOAD)
    served: list[str] = []

    def oracle(experiment: Experiment) -> Outcome:
        number = f"t{next(count)}"
        judgement = HUNG if cause <= experiment.kept else ended if experiment.purpose in BETWEEN else SERVES
        if judgement is SERVES:
            served.append(number)
        return Outcome(trial_id=number, judgement=judgement, seconds=1.0)

    count = itertools.count(1)
    conclusion = isolate(factors, oracle, seed=1)
    assert conclusion.ended is Ended.PROVEN
    for found in conclusion.causes:
        assert set(dict(found.certificate)["workaround_serves"].trial_ids) & set(served)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_between_the_ends_no_launch_loads_weights_for_a_failure_before_them(
    shakedown: Shakedown, tmp_path: Path, port: int
) -> None:
    fault = {
        "kind": "crash",
        "phase": "dist_init",
        "when": ["--seed", "--stream-interval"],
        "text": "no peer",
    }
    env = {"LIKE_FAULTS": json.dumps([fault]), "LIKE_LOAD_S": "12"}
    flags = ("--seed", "1", "--stream-interval", "4", "--enforce-eager")
    launch = (sys.executable, str(ENGINE_LIKE), "--model", "m", "--port", str(port), *flags)
    said = shakedown("isolate", "--engine", "vllm", launch=launch, env=env)
    found = said.document
    assert said.code == 0, said.stderr
    assert [f["name"] for f in found["cause"]["factors"]] == ["--seed 1", "--stream-interval 4"]
    ended = [trial for trial in found["trials"] if trial["passed"]]
    assert ended
    for trial in ended:
        assert (trial["passed"], trial["verdict"]) == ("weight_load", "undecided")
        assert trial["purpose"] in {"split", "alone", "one_less", "peel"}
        assert trial["seconds"] < 12
    checks = found["certificate"]
    served = {trial["id"] for trial in found["trials"] if trial["verdict"] == "serves"}
    assert served & set(checks["workaround_serves"]["trials"])
    assert "was ended" in checks["one_less_passes"]["note"]
