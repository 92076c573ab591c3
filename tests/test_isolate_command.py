"""The whole `isolate` on a server with planted faults: what it proves, prints, keeps and exits with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Said, Shakedown
from stand_ins import running, stand_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KEYS = {
    "schema": str, "command": str, "verdict": str, "causes": list, "cause": dict, "certificate": dict,
    "workaround": dict, "launches": int, "seconds": float, "cleared": list, "not_cleared": list,
    "other_failures": list, "probability": float, "hypotheses": list, "trials": list,
}  # fmt: skip
FACTOR_CHECKS = ["alone_fails", "one_less_passes", "workaround_serves"]
BASE_CHECKS = ["safe_mode_fails", "rung_fails", "next_simpler_passes", "workaround_serves"]


@pytest.fixture
def isolate(shakedown: Shakedown, port: int, tmp_path: Path, request: pytest.FixtureRequest):
    """`isolate(fault, *flags, options=, env=)` on a stand-in named as the test; nothing is left after."""
    name = f"{request.node.name}-{port}"

    def run(
        fault: str, *flags: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> Said:
        faults = {"STAND_IN_FAULT": fault, "STAND_IN_STARTS": str(tmp_path / "starts")}
        launch = stand_in(name, port, *flags)
        said = shakedown("isolate", *options, launch=launch, env={**faults, **(env or {})})
        assert not running(name)
        return said

    return run


def starts(folder: Path) -> int:
    try:
        return len((folder / "starts").read_text().splitlines())
    except FileNotFoundError:
        return 0


def blamed(document: dict[str, Any]) -> list[list[str]]:
    return [[factor["name"] for factor in cause["factors"]] for cause in document["causes"]]


def judged(document: dict[str, Any]) -> dict[str, bool | None]:
    return {name: check["value"] for name, check in document["certificate"].items()}


def test_one_flag_is_proven_and_the_document_keeps_its_contract(isolate, shakedown, tmp_path: Path) -> None:
    said = isolate("crash:--alpha", "--alpha", "--beta", "3", "--gamma")
    found = said.document
    assert said.code == 0
    for key, kind in KEYS.items():
        assert isinstance(found[key], kind), key
    assert (found["schema"], found["command"], found["verdict"]) == ("shakedown/1", "isolate", "crashed")
    assert found["cause"] == found["causes"][0]
    assert found["cause"]["kind"] == "factors"
    assert found["cause"]["rung"] is None
    assert found["cause"]["factors"] == [
        {"name": "--alpha", "kind": "flag", "was": "--alpha", "now": "removed"}
    ]
    assert judged(found) == dict.fromkeys(FACTOR_CHECKS, True)
    trials = [trial["id"] for trial in found["trials"]]
    for check in found["certificate"].values():
        assert check["trials"]
        assert set(check["trials"]) <= set(trials)
    assert found["workaround"]["argv"][-3:] == ["--beta", "3", "--gamma"]
    assert "--alpha" not in found["workaround"]["argv"]
    assert isinstance(found["workaround"]["env"], dict)
    assert {factor["name"] for factor in found["cleared"]} == {"--beta 3", "--gamma"}
    assert found["not_cleared"] == []
    assert found["launches"] == len(trials) == starts(tmp_path)
    assert "RuntimeError: capture failed: --alpha" in found["failing"]["cause"]

    listed = shakedown("runs").document["runs"]
    assert [(entry["id"], entry["command"], entry["ended"]) for entry in listed] == [
        (found["search"], "isolate", "proven")
    ]
    shown = shakedown("show", found["search"])
    assert (shown.code, shown.document["command"]) == (0, "show")
    assert shown.document["certificate"] == found["certificate"]
    assert shakedown("show", trials[0]).document["verdict"] == "crashed"
    report = (tmp_path / "runs" / found["search"] / "report.md").read_text()
    assert "--alpha" in report
    assert "stand_in.py" in report


def test_a_variable_is_proven(isolate) -> None:
    said = isolate("crash:VLLM_X", "--alpha", env={"VLLM_X": "1", "VLLM_Y": "2"})
    assert said.code == 0
    assert blamed(said.document) == [["VLLM_X=1"]]
    assert said.document["workaround"]["unset"] == ["VLLM_X"]
    assert {"--alpha", "VLLM_Y=2"} <= {factor["name"] for factor in said.document["cleared"]}


def test_of_an_interaction_one_member_goes(isolate) -> None:
    said = isolate("crash:--alpha+--beta", "--alpha", "--beta", "3", "--gamma")
    assert said.code == 0
    assert blamed(said.document) == [["--alpha", "--beta 3"]]
    kept = said.document["workaround"]["argv"]
    assert ("--alpha" in kept) != ("--beta" in kept)
    assert "--gamma" in kept


def test_two_independent_causes_are_both_found(isolate) -> None:
    said = isolate("crash:--alpha;die:--beta", "--alpha", "--beta", "3", "--gamma")
    assert said.code == 0
    assert sorted(blamed(said.document)) == [["--alpha"], ["--beta 3"]]
    assert said.document["workaround"]["argv"][-1:] == ["--gamma"]


def test_a_base_that_fails_is_told_from_the_flags(isolate) -> None:
    said = isolate("crash:", "--alpha", "--beta", "3")
    found = said.document
    assert said.code == 1  # not proven: no rung was tried
    assert (found["verdict"], found["cause"]["kind"], found["cause"]["factors"]) == ("crashed", "base", [])
    assert list(found["certificate"]) == BASE_CHECKS
    assert judged(found)["safe_mode_fails"] is True
    assert found["workaround"] is None
    assert {factor["name"] for factor in found["cleared"]} == {"--alpha", "--beta 3"}


def test_what_serves_leaves_nothing_to_isolate(isolate, tmp_path: Path) -> None:
    said = isolate("", "--alpha")
    assert said.code == 3
    found = said.document
    assert (found["verdict"], found["cause"]["kind"], found["launches"]) == ("serves", "none", 1)
    assert (found["causes"], found["cause"]["factors"], found["cause"]["rung"]) == ([], [], None)
    assert [check["value"] for check in found["certificate"].values()] == [None, None, None]
    assert starts(tmp_path) == 1


def test_a_number_too_large_is_proven(isolate) -> None:
    said = isolate("refuse:--graph-bs>8", "--alpha", "--graph-bs", "16")
    assert said.code == 0
    assert blamed(said.document) == [["--graph-bs 16"]]
    assert said.document["cause"]["value_note"].startswith("8 works")
    assert said.document["workaround"]["argv"][-3:] == ["--alpha", "--graph-bs", "8"]


def test_wrong_answers_are_a_failure_like_any_other(isolate) -> None:
    said = isolate("wrong:--kv-dtype", "--alpha", "--kv-dtype", "fp8")
    assert said.code == 0
    assert (said.document["verdict"], blamed(said.document)) == ("wrong", [["--kv-dtype fp8"]])


def test_a_cause_that_strikes_now_and_then_is_still_found(isolate) -> None:
    said = isolate("crash/0.7:--alpha", "--alpha", "--beta", "3")
    assert said.code == 0, said.stderr
    assert blamed(said.document) == [["--alpha"]]


def test_a_hang_is_proven_from_a_process_tree(isolate) -> None:
    said = isolate("hang:--alpha", "--alpha", "--beta", "3")
    found = said.document
    assert said.code == 0, said.stderr
    assert (found["verdict"], found["failing"]["wait"]) == ("hung", "waiting")
    assert "capture_graphs" in found["failing"]["suspect"]["frame"]
    assert blamed(found) == [["--alpha"]]


def test_too_few_launches_rank_suspects(isolate, tmp_path: Path) -> None:
    said = isolate("crash:--alpha", "--alpha", "--beta", "3", "--gamma", options=("--max-launches", "2"))
    found = said.document
    assert (said.code, found["ended"], found["launches"]) == (1, "budget", 2)
    assert found["cause"]["kind"] == "none"
    assert {each["name"] for each in found["suspects"]} == {"--alpha", "--beta 3", "--gamma"}
    assert all(0 < each["probability"] <= 1 for each in found["suspects"])
    assert starts(tmp_path) == 2


def test_more_launches_later_go_on_from_the_first(isolate, shakedown: Shakedown, tmp_path: Path) -> None:
    said = isolate("crash:--alpha", "--alpha", "--beta", "3", options=("--max-launches", "2"))
    before = [trial["id"] for trial in said.document["trials"]]
    env = {"STAND_IN_FAULT": "crash:--alpha", "STAND_IN_STARTS": str(tmp_path / "starts")}
    again = shakedown("isolate", "--resume", said.document["search"], env=env)
    assert again.code == 0, again.stderr
    assert blamed(again.document) == [["--alpha"]]
    assert [trial["id"] for trial in again.document["trials"]][:2] == before
    assert again.document["launches"] == starts(tmp_path)


def test_a_deadline_ends_the_search_and_a_launch_it_cut_is_no_evidence(
    isolate, shakedown: Shakedown, tmp_path: Path
) -> None:
    said = isolate("crash:--alpha", "--alpha", options=("--deadline", "5s"), env={"STAND_IN_LOAD_S": "2"})
    assert said.code == 1, said.stderr
    assert said.document["ended"] == "budget"
    cut = said.document["trials"][-1]
    assert (cut["verdict"], "cut by the deadline" in cut["cause"]) == ("slow", True)
    again = shakedown("isolate", "--resume", said.document["search"], env={"STAND_IN_FAULT": "crash:--alpha"})
    assert again.code == 0, again.stderr
    assert blamed(again.document) == [["--alpha"]]


def test_a_deadline_before_the_first_verdict_is_no_answer(isolate, shakedown: Shakedown) -> None:
    said = isolate("crash:--alpha", "--alpha", options=("--deadline", "1s"), env={"STAND_IN_LOAD_S": "5"})
    assert said.code == 125
    assert "deadline" in said.document["error"]


@pytest.mark.parametrize("command", ["run", "isolate"])
def test_a_mark_that_a_flag_keeps_from_being_measured_is_refused(shakedown: Shakedown, command: str) -> None:
    launch = ["vllm", "serve", "M", "--speculative-config", "{}", "--disable-log-stats"]
    said = shakedown(command, "--dry-run", "--expect", "accept_length >= 2", launch=launch)
    assert said.code == 2
    assert "accept_length cannot be measured: with --disable-log-stats" in said.stderr
    assert "leave out --disable-log-stats" in said.stderr
    assert shakedown(command, "--dry-run", "--expect", "ttft_ms <= 200", launch=launch).code == 0


def test_that_it_comes_and_goes_is_kept_with_the_search(isolate) -> None:
    said = isolate("crash:--alpha", "--alpha", options=("--intermittent",))
    assert said.code == 0, said.stderr
    assert said.document["facts"]["intermittent"] == "yes"


def test_a_dry_run_starts_nothing(isolate, shakedown: Shakedown, tmp_path: Path) -> None:
    said = isolate("crash:--alpha", "--alpha", "--beta", "3", options=("--dry-run",))
    assert said.code == 0
    assert starts(tmp_path) == 0
    plan = "\n".join(said.document["dry_run"])
    assert "--alpha" in plan
    assert "would signal" in plan
    assert shakedown("runs").document["runs"] == []


def test_a_held_port_is_no_answer_and_its_holder_lives(isolate, tmp_path: Path, port: int) -> None:
    import socket

    with socket.create_server(("127.0.0.1", port)):
        said = isolate("crash:--alpha", "--alpha")
        assert said.code == 125
        assert "already held" in json.dumps(said.document)
    assert starts(tmp_path) == 0


def test_a_launch_below_a_stated_mark_is_isolated_like_any_failure(isolate) -> None:
    mark = "tokens_per_s >= 100"
    said = isolate("slow:--alpha", "--alpha", "--beta", "3", options=("--expect", mark))
    found = said.document
    assert said.code == 0, said.stderr
    assert (found["verdict"], blamed(found)) == ("slow", [["--alpha"]])
    assert judged(found) == dict.fromkeys(FACTOR_CHECKS, True)
    (measured,) = found["failing"]["expectations"]
    assert (measured["mark"], measured["stated"], measured["met"]) == ("tokens_per_s", mark, False)
    assert measured["low"] <= measured["value"] <= measured["high"] < 100


def test_a_launch_that_is_ready_too_late_is_cut_and_isolated(isolate) -> None:
    options = ("--expect", "ready_s <= 8")
    said = isolate("late:--alpha", "--alpha", "--beta", "3", options=options)
    found = said.document
    assert said.code == 0, said.stderr
    assert (found["verdict"], found["failing"]["phase"], blamed(found)) == ("slow", "ready", [["--alpha"]])
    assert "not ready" in found["failing"]["cause"]


def test_marks_that_are_met_leave_nothing_to_isolate(isolate) -> None:
    said = isolate("", "--alpha", options=("--expect", "ttft_ms <= 5000", "--expect", "ready_s <= 60"))
    assert said.code == 3
    assert {each["met"] for each in said.document["failing"]["expectations"]} == {True}


def test_a_launch_that_is_ready_in_time_is_said_to_be(isolate) -> None:
    said = isolate("", "--alpha", options=("--expect", "ready_s <= 60"), env={"STAND_IN_LOAD_S": "1"})
    (measured,) = said.document["failing"]["expectations"]
    assert (said.code, measured["met"]) == (3, True)
    assert 0.9 <= measured["low"] <= measured["value"] <= measured["high"]
