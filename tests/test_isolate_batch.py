"""Several launches at once: chosen together, in fewer rounds, and never one beside a proof."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import Shakedown
from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import Conclusion, Ended, Experiment, Launch, Outcome, Phase, Purpose
from shakedown.isolate import Clues, SearchLimits, isolate
from shakedown.jobs.apart import on_port, patient
from shakedown.ledger.events import experiment_key
from shakedown.watch import Limits

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from isolate_worlds import SERVES, Clue, Kind, World, make_world

PROOFS = {Purpose.ALONE, Purpose.ONE_LESS, Purpose.WORKAROUND, Purpose.VALUE}


class Crew:
    """Answers like a world, and counts the rounds. `upset`: what runs beside another fails."""

    def __init__(self, world: World, *, upset: bool = False) -> None:
        self.world, self.upset = world, upset
        self.begun: dict[str, bool] = {}
        self.rounds = 0
        self.widest = 0

    def start(self, experiments: Sequence[Experiment]) -> None:
        assert not self.begun, "a batch was begun before the last one was asked for"
        self.rounds += 1
        self.widest = max(self.widest, len(experiments))
        self.begun = {experiment_key(each): len(experiments) == 1 for each in experiments}
        assert len(self.begun) == len(experiments)

    def __call__(self, experiment: Experiment) -> Outcome:
        alone = self.begun.pop(experiment_key(experiment), None)
        if alone is None:
            self.rounds += 1
            return self.world.oracle(experiment)
        outcome = replace(self.world.oracle(experiment), alone=alone)
        return outcome if alone or not self.upset else replace(outcome, judgement=self.world.failure)

    def search(self, workers: int) -> Conclusion:
        limits = SearchLimits(max_launches=150, workers=workers)
        clues = Clues(weights=self.world.weights)
        return isolate(self.world.factors, self, seed=1, clues=clues, limits=limits, start=self.start)


def worlds(count: int) -> list[World]:
    kinds = random.Random(3).choices([Kind.BASE, Kind.ONE, Kind.TWO], [1, 3, 2], k=count)
    return [make_world(kind, 16, 1.0, f"batch {at}", Clue.TOLD, "crash") for at, kind in enumerate(kinds)]


def named(conclusion: Conclusion) -> set[frozenset[str]]:
    return {frozenset(cause.factors) for cause in conclusion.causes}


def test_two_workers_find_the_same_in_fewer_rounds() -> None:
    alone, beside = [Crew(world) for world in worlds(12)], [Crew(world) for world in worlds(12)]
    for one, two in zip(alone, beside, strict=True):
        assert named(one.search(1)) == named(two.search(2)) == set(one.world.causes)
    assert sum(crew.rounds for crew in beside) < 0.85 * sum(crew.rounds for crew in alone)
    assert {crew.widest for crew in alone} == {0}
    assert {crew.widest for crew in beside} == {2}


@pytest.mark.parametrize("workers", [2, 5])
def test_nothing_runs_beside_a_proof(workers: int) -> None:
    for world in worlds(8):
        found = Crew(world).search(workers)
        by_id = {step.outcome.trial_id: step for step in found.steps}
        assert all(step.outcome.alone for step in found.steps if step.experiment.purpose in PROOFS)
        for cause in found.causes:
            for name, check in cause.certificate:
                if check.value is not None and name != "rung_fails":
                    assert any(by_id[trial].outcome.alone for trial in check.trial_ids), name


def test_what_fails_only_beside_others_is_not_believed() -> None:
    """Company makes every launch fail: safe mode is looked at again by itself, and no cause is made up."""
    for world in worlds(6):
        found = Crew(world, upset=True).search(2)
        assert found.ended is not Ended.PROVEN or named(found) == set(world.causes)
        floor = [step for step in found.steps if not step.experiment.kept and not step.experiment.debug]
        assert [step.outcome.alone for step in floor[:2]] == [False, True]


def test_the_budget_cuts_a_batch() -> None:
    crew = Crew(worlds(3)[1])
    limits = SearchLimits(max_launches=5, workers=4)
    found = isolate(crew.world.factors, crew, seed=1, limits=limits, start=crew.start)
    assert found.ended is Ended.BUDGET
    assert len(found.steps) == crew.world.launches == 5


def test_equal_outcomes_make_equal_batches() -> None:
    first, second = (Crew(worlds(2)[1]).search(3) for _ in range(2))
    assert [step.experiment for step in first.steps] == [step.experiment for step in second.steps]


def test_what_serves_as_given_is_not_searched() -> None:
    world = replace(worlds(2)[1], causes=())
    world.failure = SERVES
    assert Crew(world).search(2).ended is Ended.SERVES


# --- set apart ---------------------------------------------------------------------------------------------

TOKENS = st.lists(
    st.sampled_from(["--port", "--port=80", "7", "--tp", "serve", "-p"]), min_size=1, max_size=8
)


@given(TOKENS)
def test_the_last_word_is_the_ports(tokens: list[str]) -> None:
    launch = Launch(argv=("server", *tokens, "x"), env={}, cwd=Path("/"))
    moved = on_port(launch, ("--port",), 4321).argv
    assert moved[0] == "server"
    given_ = [value for name, value in pairwise(moved) if name == "--port"]
    given_ += [token.partition("=")[2] for token in moved if token.startswith("--port=")]
    assert given_
    assert "--port=80" not in moved


def test_patience_grows_with_the_company() -> None:
    limits = patient(Limits(learnt={Phase.WEIGHT_LOAD: 40.0}), 2.0)
    assert (limits.suspect_s, limits.learnt[Phase.WEIGHT_LOAD]) == (60.0, 80.0)


# --- options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workers", "2"), "belong to --executor ray"),
        (("--gpus-per-launch", "1"), "belong to --executor ray"),
        (("--executor", "ray", "--expect", "ready_s <= 60"), "nothing beside it"),
        (("--executor", "ray", "--host", "me@box"), "give no --host"),
    ],
)
def test_what_does_not_go_together_is_refused(
    shakedown: Shakedown, options: tuple[str, ...], said: str
) -> None:
    done = shakedown("isolate", *options, launch=("sleep", "1"))
    assert done.code == 2
    assert said in done.document["error"]


def test_without_ray_it_says_what_to_install(shakedown: Shakedown, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['ray'] = None\n")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    launch = ("python3", "server.py", "--port", "1234")
    done = shakedown("isolate", "--executor", "ray", launch=launch, env={"PYTHONPATH": paths})
    assert done.code == 2
    assert "needs the package ray" in done.document["error"]
    assert done.document["hints"] == ["pip install 'llm-shakedown[ray]'"]
