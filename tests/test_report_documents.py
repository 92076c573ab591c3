"""The JSON documents are the contract; every record, however odd, can be told in every form."""

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from report_samples import (
    ARGV,
    CAUSE,
    CONCLUSION,
    CRASHED,
    HUNG,
    LAYOUT,
    RUN,
    SEARCH,
    SERVES,
    TRIALS,
    search,
    trial,
)

from shakedown.core import Cause, CauseKind, Check, Ended, RecordState, SearchRecord, TrialRecord
from shakedown.report import (
    Recipe,
    isolate_document,
    isolate_report,
    isolate_summary,
    run_document,
    run_report,
    run_summary,
    runs_document,
    runs_table,
    show,
)
from shakedown.report.again import next_steps
from shakedown.report.words import seconds_words, verdict_words


def test_isolate_prints_what_the_contract_names():
    document = isolate_document(SEARCH, TRIALS)
    assert document["schema"] == "shakedown/1"
    assert (document["command"], document["verdict"]) == ("isolate", "hung")
    layout = {"name": "nodes", "kind": "group", "was": " ".join(LAYOUT), "now": ""}
    cause = document["cause"]
    assert (cause["kind"], cause["factors"], cause["rung"]) == ("factors", [layout], None)
    assert document["causes"] == [cause]
    assert {name: check["value"] for name, check in document["certificate"].items()} == {
        "alone_fails": True,
        "one_less_passes": True,
        "workaround_serves": True,
    }
    assert document["certificate"]["workaround_serves"]["trials"] == ["t251129-161650-2c33"]
    assert "--nnodes" not in document["workaround"]["argv"]
    assert (document["launches"], document["seconds"], document["probability"]) == (4, 208.0, 0.99)
    assert [factor["name"] for factor in document["cleared"]] == list(CONCLUSION.cleared)
    assert document["not_cleared"] == []
    assert document["other_failures"][0]["trial"] == "t251129-161700-3d44"
    assert document["hypotheses"][0]["state"] == "supported"
    assert [each["verdict"] for each in document["trials"]] == ["hung", "serves", "hung", "serves"]


def test_a_base_cause_has_its_own_certificate_and_may_lack_a_workaround():
    certificate = (
        ("safe_mode_fails", Check(value=True, trial_ids=("t1",))),
        ("rung_fails", Check(value=None)),
        ("next_simpler_passes", Check(value=False, trial_ids=("t2",))),
        ("workaround_serves", Check(value=None)),
    )
    base = Cause(kind=CauseKind.BASE, factors=(), rung="all-reduce", certificate=certificate, workaround=None)
    document = isolate_document(search(causes=(base,), ended=Ended.NOT_PROVEN), TRIALS)
    assert [check["value"] for check in document["certificate"].values()] == [True, None, False, None]
    assert (document["cause"]["kind"], document["cause"]["rung"]) == ("base", "all-reduce")
    assert document["workaround"] is None


def test_a_workaround_says_which_variables_change_and_its_argv_takes_away_the_others():
    recipe = Recipe.between(SEARCH, ("serve",), (("OMP_NUM_THREADS", "1"), ("NEW", "2")))
    workaround = isolate_document(SEARCH, TRIALS, recipe=recipe)["workaround"]
    assert workaround["argv"] == ["env", "-u", "VLLM_LOGGING_LEVEL", "serve"]
    assert workaround["env"] == {"OMP_NUM_THREADS": "1", "NEW": "2"}
    assert workaround["unset"] == ["VLLM_LOGGING_LEVEL"]
    assert workaround["command"] == "env -u VLLM_LOGGING_LEVEL OMP_NUM_THREADS=1 NEW=2 serve"


def test_run_prints_the_verdict_with_everything_behind_it():
    document = run_document(RUN)
    assert (document["command"], document["verdict"], document["wait"]) == ("run", "hung", "waiting")
    assert document["suspect"]["pid"] == 4711
    assert document["phases"][0] == {
        "phase": "import",
        "rank": "0",
        "started_s": 0.0,
        "ended_s": 9.1,
        "seconds": 9.1,
    }
    assert document["trial"] == RUN.id
    assert document["argv"] == list(ARGV)


def test_what_is_not_finished_has_no_verdict():
    interrupted = replace(RUN, judgement=None, seconds=None, state=RecordState.INTERRUPTED)
    document = run_document(interrupted)
    assert (document["verdict"], document["state"]) == (None, "interrupted")
    open_search = replace(SEARCH, conclusion=None, seconds=None, state=RecordState.INTERRUPTED)
    document = isolate_document(open_search, TRIALS)
    assert (document["verdict"], document["cause"], document["seconds"]) == (None, None, 206.0)
    assert document["next"] == [f"shakedown isolate --resume {SEARCH.id}"]


def test_runs_lists_both_kinds():
    listed = runs_document([SEARCH, RUN])["runs"]
    assert [(each["id"], each["command"], each["verdict"]) for each in listed] == [
        (SEARCH.id, "isolate", "hung"),
        (RUN.id, "run", "hung"),
    ]


@pytest.mark.parametrize(
    ("judgement", "words"),
    [
        (SERVES, "serves"),
        (HUNG, "hung (waiting) in dist_init"),
        (CRASHED, "crashed (did not exit) in config"),
        (replace(HUNG, environment=True), "hung (waiting) in dist_init, the surroundings' fault"),
    ],
)
def test_verdicts_in_words(judgement, words):
    assert verdict_words(judgement) == words


def test_seconds_in_words():
    said = [seconds_words(seconds) for seconds in (0.04, 9.94, 61.2, 208, 7300, float("nan"))]
    assert said == ["0.0 s", "9.9 s", "61 s", "3 min 28 s", "2 h 1 min", "an unknown time"]


@pytest.mark.parametrize("ended", list(Ended))
def test_every_end_of_a_search_fits_a_screen(ended):
    found = search(ended=ended, causes=(CAUSE,) if ended is Ended.PROVEN else ())
    assert len(isolate_summary(found, TRIALS)) <= 30
    assert len(isolate_report(found, TRIALS).splitlines()) <= 60
    assert max(map(len, isolate_summary(found, TRIALS) + show(found, TRIALS))) <= 80


def test_an_unproven_search_ranks_its_suspects_and_says_what_is_not_known():
    unproven = search(
        ended=Ended.BUDGET, causes=(), suspects=(("nodes", 0.7), ("--seed", 0.2)), note="no time left"
    )
    summary = "\n".join(isolate_summary(unproven, TRIALS))
    assert summary.startswith("hung (waiting) in dist_init: stopped at its limit")
    assert "70% nodes (--nnodes 2" in summary
    assert "no time left" in summary
    assert f"--resume {SEARCH.id}" in summary


def test_a_run_says_what_to_do_next():
    assert next_steps(trial("t1")) == ("shakedown isolate -- CMD, with the same CMD",)
    assert next_steps(trial("t1", judgement=SERVES)) == ()
    assert next_steps(trial("t1", judgement=SERVES, kept_running=True)) == ("shakedown stop t1",)
    assert "once more" in next_steps(trial("t1", judgement=replace(HUNG, environment=True)))[0]


def test_phases_over_ranks_name_the_slowest():
    shown = "\n".join(run_summary(trial("t1", judgement=SERVES, seconds=35.0)))
    assert "weight_load 17 s (rank 1 8.0 s, the fastest 2.0 s)" in shown
    assert "serving" not in shown


st.register_type_strategy(str, st.text(st.characters(exclude_categories=()), max_size=6))
st.register_type_strategy(Path, st.builds(Path, st.text("ab/ \udc80", max_size=6)))


# Shrinking such large records takes minutes; the line that failed says enough.
@settings(
    max_examples=30,
    suppress_health_check=list(HealthCheck),
    phases=[Stage.explicit, Stage.reuse, Stage.generate],
    report_multiple_bugs=False,
)
@given(st.from_type(SearchRecord), st.lists(st.from_type(TrialRecord), max_size=2))
def test_every_record_can_be_told_in_every_form_and_no_form_carries_control_characters(found, trials):
    documents = [isolate_document(found, trials), runs_document([found, *trials])]
    lines = [*isolate_summary(found, trials), *show(found, trials), *runs_table([found, *trials])]
    texts = [isolate_report(found, trials)]
    for each in trials:
        documents.append(run_document(each))
        lines += [*run_summary(each), *show(each)]
        texts.append(run_report(each))
    for document in documents:
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8")
    for line in lines + [line for text in texts for line in text.split("\n")]:
        assert not any(unicodedata.category(char).startswith("C") for char in line)
