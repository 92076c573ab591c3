"""Launches that cost no more than their answer: ended once past the failure, forecast from the ledger."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Shakedown
from hypothesis import given
from test_isolate_search import HUNG, SERVES, worlds

from shakedown.core import (
    Ended,
    Experiment,
    Judgement,
    Outcome,
    Phase,
    PhaseSpan,
    RecordState,
    Signature,
    TrialRecord,
    Verdict,
    Wait,
)
from shakedown.isolate import isolate
from shakedown.isolate.judge import Showing, classify, safely_past
from shakedown.jobs.costs import costs_of
from shakedown.jobs.oracle import BETWEEN
from shakedown.ledger import Ledger

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


# --- what it may cost


def spans(**ends: float) -> tuple[PhaseSpan, ...]:
    """Phases one after the other, each given by when it ended."""
    starts = [0.0, *ends.values()]
    return tuple(
        PhaseSpan(phase=Phase(name), rank="", started_s=start, ended_s=end)
        for start, (name, end) in zip(starts, ends.items(), strict=False)
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db") as opened:
        yield opened


def launched(ledger: Ledger, number: int, model: str, load_s: float, weights: int) -> None:
    served = Judgement(
        verdict=Verdict.SERVES,
        phase=Phase.SERVING,
        phases=spans(config=5.0, dist_init=10.0, weight_load=10.0 + load_s, kv_cache=20.0 + load_s),
    )
    record = TrialRecord(
        id=f"t{number}",
        search_id=None,
        experiment=None,
        engine="vllm",
        argv=(),
        env=(),
        cwd="/",
        folder=Path("/"),
        started_at="2026-01-01T00:00:00Z",
        state=RecordState.OPEN,
        facts=(("model_key", model), ("weight_bytes", str(weights))),
    )
    ledger.open_trial(record)
    ledger.close_trial(record.id, served, seconds=40.0 + load_s)


def test_an_engine_never_launched_is_reckoned_by_a_guess_and_says_so(ledger: Ledger):
    costs = costs_of(ledger, "vllm", {"model_key": "m"})
    assert costs.serves.median_s == 60
    assert "a guess" in costs.words(24, 40)


def test_a_model_launched_before_is_reckoned_phase_by_phase(ledger: Ledger):
    for number, load_s in enumerate((30.0, 36.0, 42.0)):
        launched(ledger, number, "m", load_s, 10**9)
    costs = costs_of(ledger, "vllm", {"model_key": "m"})
    assert costs.serves.mean_s == pytest.approx(56 + 10, rel=0.1)
    assert "from earlier launches" in costs.words(24, 40)


def test_a_model_never_launched_is_reckoned_by_its_bytes_and_the_rate_of_others(ledger: Ledger):
    launched(ledger, 1, "small", 10.0, 10**10)
    costs = costs_of(ledger, "vllm", {"model_key": "big", "weight_bytes": str(10**12)})
    assert costs.phases[Phase.WEIGHT_LOAD].median_s == pytest.approx(1000)
    assert "1000.0 GB at 1.00 GB/s" in costs.words(24, 40)


def test_a_failure_before_the_weights_makes_the_further_launches_cheap(ledger: Ledger):
    launched(ledger, 1, "m", 1500.0, 10**12)
    costs = costs_of(ledger, "vllm", {"model_key": "m"})
    hung = Judgement(verdict=Verdict.HUNG, phase=Phase.DIST_INIT, wait=Wait.WAITING, fingerprint="x")
    after = costs.after(Outcome(trial_id="t", judgement=hung, seconds=50.0))
    assert costs.serves.mean_s > 1500
    assert after.serves.mean_s == pytest.approx(10 + 5, rel=0.1)
    assert "past dist_init" in after.words(24, 40)


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
    env = {"LIKE_FAULTS": json.dumps([fault]), "LIKE_LOAD_S": "8"}
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
    checks = found["certificate"]
    served = {trial["id"] for trial in found["trials"] if trial["verdict"] == "serves"}
    assert served & set(checks["workaround_serves"]["trials"])
    assert "was ended" in checks["one_less_passes"]["note"]
