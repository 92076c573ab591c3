"""Why each trial was chosen and what it changed in the ranking of suspects."""

from dataclasses import replace

from report_samples import RUN, SEARCH, TRIALS
from test_isolate_search import Server, factors_of, planted, search

from shakedown.core import INTERMITTENT_FACT, Expectation, Measured, Purpose
from shakedown.report import run_report, run_summary
from shakedown.report.again import next_steps, rerun
from shakedown.report.chain import show
from shakedown.report.search_document import isolate_document
from shakedown.report.words import ranking_words


def test_a_search_notes_after_each_step_how_suspected_the_factors_are():
    conclusion = search(factors_of(8), Server(planted({"f05"})))
    ranked = [step for step in conclusion.steps if step.ranking]
    assert ranked[0].experiment.purpose is Purpose.REPRODUCE
    shares = [dict(step.ranking).get("f05", 0.0) for step in ranked]
    assert shares[0] < 0.5 < shares[-1]
    for step in ranked:
        assert list(step.ranking) == sorted(step.ranking, key=lambda item: (-item[1], item[0]))
    chosen = [step for step in conclusion.steps if step.experiment.purpose is Purpose.SPLIT]
    assert all("bits" in step.experiment.reason for step in chosen)


def with_rankings(*rankings: dict[str, float]):
    steps = SEARCH.conclusion.steps
    told = [tuple(it.items()) for it in rankings] + [()] * (len(steps) - len(rankings))
    steps = tuple(replace(step, ranking=ranking) for step, ranking in zip(steps, told, strict=True))
    return replace(SEARCH, conclusion=replace(SEARCH.conclusion, steps=steps))


def test_show_tells_what_each_trial_changed_in_the_ranking():
    told = with_rankings({"nodes": 0.4, "--seed": 0.3}, {"nodes": 0.9, "--seed": 0.05, "cuda graphs": 0.004})
    lines = "\n".join(show(told, TRIALS))
    assert "nodes 40%, --seed 30%" in lines
    assert "nodes 40% to 90%, --seed 30% to 5%" in lines
    assert "cuda graphs 0%" not in lines
    assert "the plan's safe_mode" in lines
    trials = isolate_document(told, TRIALS)["trials"]
    assert trials[1]["ranking"][0] == {"name": "nodes", "probability": 0.9}
    assert trials[3]["ranking"] == []


def test_a_trial_outside_the_conclusion_changed_nothing_in_it():
    assert ranking_words(SEARCH.conclusion.steps, "t-unknown") == ""
    assert ranking_words(SEARCH.conclusion.steps, TRIALS[0].id) == ""


def test_stated_marks_are_told_wherever_a_launch_is_told():
    marks = (
        Measured(
            expectation=Expectation.read("tokens_per_s >= 400"), value=212, low=205, high=220, samples=4
        ),
        Measured(expectation=Expectation.read("ttft_ms <= 200"), value=90, low=80, high=95, samples=4),
        Measured(expectation=Expectation.read("accept_length >= 2"), note="it counts no rounds"),
    )
    record = replace(RUN, judgement=replace(RUN.judgement, measured=marks))
    for told in ("\n".join(run_summary(record)), run_report(record), "\n".join(show(record))):
        words = " ".join(told.split())
        assert "tokens_per_s 212 (205 to 220, 4 requests): misses >= 400" in words
        assert "ttft_ms 90 (80 to 95, 4 requests): meets <= 200" in words
        assert "it counts no rounds" in words


def test_what_is_run_again_states_the_same_marks():
    mark = Measured(expectation=Expectation.read("tokens_per_s >= 400"), value=212, low=205, high=220)
    record = replace(RUN, judgement=replace(RUN.judgement, measured=(mark,)))
    assert "--expect 'tokens_per_s >= 400' -- vllm" in " ".join(rerun(record)).replace("\\   ", "")
    assert next_steps(record) == (
        "shakedown isolate --expect 'tokens_per_s >= 400' -- CMD, with the same CMD",
    )
    search = replace(SEARCH, facts=(("expect", "ttft_ms <= 200; ready_s <= 60"),))
    again = " ".join(rerun(search)).replace("\\   ", "")
    assert "isolate --expect 'ttft_ms <= 200' --expect 'ready_s <= 60' -- vllm" in again
    search = replace(SEARCH, facts=((INTERMITTENT_FACT, "yes"),))
    assert "isolate --intermittent -- vllm" in " ".join(rerun(search)).replace("\\   ", "")
