"""The isolation benchmarks, without a launch: cases are sound, and what is counted as right is right."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
FOLDERS = [str(HERE.parent / "benchmarks"), str(HERE / "bad_servers")]


@pytest.fixture(scope="module")
def benchmarks():
    """The benchmarks' own modules; their folders are on the path only for these tests."""
    before = set(sys.modules)
    sys.path[:0] = FOLDERS
    import engine_causes
    import incident_cases
    import isolate_measures
    import isolate_processes
    import isolate_schedule
    import isolate_simulation

    yield {
        module.__name__: module
        for module in (
            engine_causes,
            incident_cases,
            isolate_measures,
            isolate_processes,
            isolate_schedule,
            isolate_simulation,
        )
    }
    for folder in FOLDERS:
        sys.path.remove(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(tuple(FOLDERS)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def incidents(benchmarks: dict[str, ModuleType]):
    return benchmarks["incident_cases"].make_cases(1)


def test_there_are_over_two_hundred_cases_of_every_kind_and_size(incidents):
    assert len(incidents) >= 200
    assert len({case.id for case in incidents}) == len(incidents)
    kinds = Counter(case.kind for case in incidents)
    assert set(kinds) == {"as it was", "among others", "seven of ten", "two at once", "symptom moves"}
    sizes = Counter(len(case.truth[0]) for case in incidents if len(case.truth) == 1)
    assert set(sizes) == {0, 1, 2, 3}


def test_the_same_seed_makes_the_same_cases(benchmarks, incidents):
    assert benchmarks["incident_cases"].make_cases(1) == incidents


def test_an_interaction_blames_all_its_members_and_a_default_where_it_is_on(incidents):
    known = {case.id: case.truth for case in incidents}
    (graphs,) = known["vllm-13552-crossnode-tp16, as it was"]
    assert graphs == {"compilation and CUDA graphs"}
    (three,) = known["sglang-27938-eagle-overlap, as it was"]
    assert len(three) == 3
    assert "overlap scheduling" in three
    assert known["vllm-1801-driver545, as it was"] == (frozenset(),)


def test_only_exactly_the_culprits_proven_are_right(benchmarks, incidents):
    judged = benchmarks["isolate_processes"].judged
    case = next(case for case in incidents if len(case.truth) == 1 and len(case.truth[0]) == 2)
    culprits = sorted(case.truth[0])

    def said(*causes: list[str], ended: str = "proven") -> dict:
        named = [{"kind": "factors", "factors": [{"name": name} for name in cause]} for cause in causes]
        return judged(case, {"causes": named, "ended": ended, "launches": 7}, 1.0)

    assert said(culprits)["right"]
    assert not said(culprits, ended="not_proven")["right"]
    less = said(culprits[:1])
    assert (less["right"], less["contains"], less["innocent"]) == (False, False, [])
    more = said([*culprits, "--seed 1"])
    assert (more["right"], more["contains"], more["innocent_proven"]) == (False, True, ["--seed 1"])


def test_of_a_base_failure_only_the_base_may_be_blamed(benchmarks, incidents):
    judged = benchmarks["isolate_processes"].judged
    case = next(case for case in incidents if case.truth == (frozenset(),))
    base = {"causes": [{"kind": "base", "factors": []}], "ended": "not_proven", "launches": 3}
    assert judged(case, base, 1.0)["right"]
    blamed = {"causes": [{"kind": "factors", "factors": [{"name": "--x"}]}], "ended": "proven", "launches": 3}
    row = judged(case, blamed, 1.0)
    assert (row["right"], row["innocent_proven"]) == (False, ["--x"])


def test_planted_causes_of_real_engines_stand_on_their_commands(benchmarks):
    causes = benchmarks["engine_causes"]
    assert len({row.id for row in causes.ROWS}) == len(causes.ROWS) >= 12
    assert {row.engine for row in causes.ROWS} == {"vllm", "sglang"}
    number = next(row for row in causes.ROWS if row.id == "vllm-number")
    assert causes.command_of(number).count("--max-model-len") == 1
    assert causes.matches(("--a 1", "--b"), ("--a", "--b")) == (True, True, ())
    assert causes.matches(("--a 1", "--c"), ("--a", "--b")) == (False, False, ("--c",))
    assert causes.matches(("--a 1", "--b", "--c"), ("--a", "--b")) == (False, True, ("--c",))


def test_a_cut_simulation_has_seen_every_setting_and_kind(benchmarks):
    planned, worlds = benchmarks["isolate_schedule"], sys.modules["isolate_worlds"]
    settings = [
        planned.Setting(who=planned.OURS, size=size, q=q, failure="crash", clue=clue)
        for size in (12, 24, 40)
        for q in (1.0, 0.4)
        for clue in worlds.Clue
    ]
    tasks = planned.schedule(settings, list(worlds.Kind), 300)
    assert len(set(tasks)) == len(tasks)
    half = Counter((task.setting, task.kind) for task in tasks[: len(tasks) // 2])
    assert len(half) == len(settings) * len(worlds.Kind)
    of_the_mix = sum(task.count for task in tasks if task.setting == settings[0] and task.kind in worlds.MIX)
    assert of_the_mix >= 300


def test_the_mix_keeps_its_shares_whatever_was_run_of_each_kind(benchmarks):
    measures, worlds = benchmarks["isolate_measures"], sys.modules["isolate_worlds"]
    found = {kind: [f"{kind} {at}" for at in range(60)] for kind in worlds.Kind}
    found[worlds.Kind.ONE] = [f"one {at}" for at in range(110)]
    mix = Counter(case.split()[0] for case in measures.mixed(found))
    assert mix == {"base": 40, "one": 110, "two": 40, "three": 10}


def test_rows_of_a_simulation_give_the_same_table_again(benchmarks, tmp_path):
    simulation, planned = benchmarks["isolate_simulation"], benchmarks["isolate_schedule"]
    worlds = sys.modules["isolate_worlds"]
    setting = planned.Setting(who=planned.OURS, size=6, q=1.0, failure="crash", clue=worlds.Clue.TOLD)
    tasks = planned.schedule([setting], list(worlds.Kind), 20)
    rows = [row for task in tasks for row in simulation.run((task, 1, float("inf")))]
    assert simulation.run((tasks[0], 1, 0.0)) == []  # past the deadline no case is begun
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    kinds = simulation.read(path)[setting]
    table = simulation.table(setting, kinds, 1)
    assert table["mixed"]["cases"] == 20
    assert table["one"]["right"] == 1.0
    assert table["one"]["misses"] == []


def test_the_kinds_of_the_stand_ins_cases_take_turns(benchmarks, incidents):
    first = benchmarks["isolate_processes"].mingled(incidents)[: len(incidents) // 4]
    assert set(Counter(case.kind for case in first)) == {case.kind for case in incidents}
