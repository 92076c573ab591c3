"""The canary against tiny servers, healthy and not."""

from dataclasses import replace

import pytest
from probe_servers import serving

from shakedown.core import LogprobStyle, Verdict
from shakedown.probe import CanaryReport, Heartbeat, LayerState, check, pulse


def judge(fault: str, *arguments: str, deadline_s: float = 20.0, **fields: object) -> CanaryReport:
    with serving("http_model.py", "--fault", fault, *arguments, **fields) as target:
        return check(target, deadline_s=deadline_s, first_logprobs_s=min(deadline_s, 20.0))


def states(report: CanaryReport) -> dict[str, LayerState]:
    return {layer.name: layer.state for layer in report.layers}


@pytest.mark.parametrize("style", [LogprobStyle.PROMPT_LOGPROBS, LogprobStyle.ECHO])
def test_a_healthy_server_serves_and_every_layer_is_measured(style: LogprobStyle):
    report = judge("none", logprobs=style)
    assert report.verdict is Verdict.SERVES, report
    assert report.cause == report.fingerprint == ""
    assert set(states(report).values()) == {LayerState.PASSED}
    assert {"plain", "logits", "nll", "copy", "code_word", "two_at_once"} < set(states(report))
    assert "repetition" in states(report)
    assert "decode_vs_prefill" in states(report)
    assert report.text == "The capital of France is Paris."
    assert report.first_token_s is not None


@pytest.mark.parametrize(
    ("fault", "verdict", "cause"),
    [
        ("random", Verdict.WRONG, "plain text reads like noise to it"),
        ("nan", Verdict.WRONG, "NaN"),
        ("nan_500", Verdict.WRONG, "NaN"),
        ("constant", Verdict.WRONG, "constant logits"),
        ("loop", Verdict.WRONG, "endless repetition"),
        ("decode", Verdict.WRONG, "decode and prefill disagree"),
        ("pair", Verdict.WRONG, "two requests run at once"),
        ("logprobs_500", Verdict.CRASHED, "logprobs path broken: 500: Internal Server Error"),
        ("logprobs_die", Verdict.CRASHED, "logprobs path broken"),
        ("die", Verdict.CRASHED, "the connection broke"),
        ("breaks_off", Verdict.CRASHED, "the connection broke"),
        ("stream_error", Verdict.CRASHED, "EngineCore died"),
        ("engine_dead", Verdict.CRASHED, "500: EngineDeadError: 0x7f12 is"),
        ("no_api", Verdict.UNDECIDED, "404"),
    ],
)
def test_a_faulty_server_is_named(fault: str, verdict: Verdict, cause: str):
    report = judge(fault)
    assert (report.verdict, cause in report.cause) == (verdict, True), report
    assert report.fingerprint.startswith("canary: ")
    assert report.evidence
    assert "\n" not in report.cause
    assert "\x1b" not in str(report)


@pytest.mark.parametrize(
    ("fault", "layer"),
    [
        ("reasoning", "plain"),  # a thinking model leaves `content` empty
        ("no_chat", "plain"),
        ("forgets", "decode_vs_prefill"),  # one failed task, and layer 2 decides
        ("short_context", "code_word"),
        ("remarks", "plain"),  # a gateway's message beside each piece of the answer
        ("retry_first", "plain"),
    ],
)
def test_an_odd_but_right_server_serves(fault: str, layer: str):
    report = judge(fault)
    assert report.verdict is Verdict.SERVES, report
    assert states(report)[layer] is LayerState.PASSED


@pytest.mark.parametrize("fault", ["logprobs_400", "no_echo", "logits"])
def test_numbers_that_cannot_be_had_are_not_a_fault(fault: str):
    report = judge(fault)
    assert report.verdict is Verdict.SERVES, report
    assert LayerState.NOT_AVAILABLE in states(report).values()


def test_an_unknown_server_owes_no_logprobs_as_long_as_it_goes_on_answering():
    report = judge("logprobs_500", logprobs=LogprobStyle.ECHO, engine="generic")
    assert report.verdict is Verdict.SERVES, report
    assert states(report)["numeric"] is LayerState.NOT_AVAILABLE
    for fault in ("logprobs_end", "logprobs_die"):
        ended = judge(fault, logprobs=LogprobStyle.ECHO, engine="generic", deadline_s=2.0)
        assert (ended.verdict, "logprobs path broken" in ended.cause) == (Verdict.CRASHED, True), ended


@pytest.mark.parametrize("fault", ["strict", "chat_only"])
def test_a_server_without_logprobs_is_judged_by_its_tasks(fault: str):
    report = judge(fault, logprobs=LogprobStyle.NONE, model="tiny", engine="transformers")
    assert report.verdict is Verdict.SERVES, report
    assert states(report)["numeric"] is LayerState.NOT_AVAILABLE
    assert states(report)["copy"] is states(report)["code_word"] is LayerState.PASSED


def test_one_failed_task_without_numbers_is_undecided():
    report = judge("forgets", logprobs=LogprobStyle.NONE)
    assert report.verdict is Verdict.UNDECIDED, report
    assert "code_word" in report.cause


def test_random_weights_on_purpose_are_asked_for_a_token_only():
    report = judge("random", token_only=True)
    assert report.verdict is Verdict.SERVES
    assert list(states(report)) == ["plain"]


def test_a_green_health_page_without_a_token_is_no_service():
    with serving("http_model.py", "--fault", "silent") as target:
        report = check(target, deadline_s=0.7)
        beat = pulse(target, deadline_s=0.5)
    assert report.verdict is Verdict.HUNG
    assert report.cause == "no token within 0.7 s"
    assert beat.heartbeat is Heartbeat.SILENT


def test_a_server_stuck_since_logprobs_is_hung_and_one_that_only_owes_them_serves():
    with serving("http_model.py", "--fault", "logprobs_stick") as target:
        report = check(target, deadline_s=1.0, first_logprobs_s=0.7)
    assert report.verdict is Verdict.HUNG, report
    assert "since a request for log-probabilities" in report.cause
    with serving("http_model.py", "--fault", "logprobs_late") as target:
        report = check(target, deadline_s=5.0, first_logprobs_s=0.7)
    assert report.verdict is Verdict.SERVES, report
    assert states(report)["numeric"] is LayerState.NOT_AVAILABLE


@pytest.mark.parametrize(
    ("fault", "arguments", "verdict", "cause"),
    [
        ("left_open", (), Verdict.SERVES, ""),
        ("one_token", ("--wait", "1.2"), Verdict.SERVES, ""),
        ("stops", (), Verdict.SLOW, "an answer that stops: 1 of 8 tokens"),
        ("endless", (), Verdict.UNDECIDED, "an answer without end"),
    ],
)
def test_pace_is_judged_from_the_first_token_to_the_last(fault, arguments, verdict, cause):
    report = judge(fault, *arguments, deadline_s=2.0, token_only=True)
    assert (report.verdict, cause in report.cause) == (verdict, True), report
    assert report.tokens_per_s is None or report.tokens_per_s > 1


def test_a_stream_of_more_than_is_kept_has_no_end_either(monkeypatch):
    monkeypatch.setattr("shakedown.probe.client.MOST_BYTES", 20_000)
    report = judge("endless", token_only=True)
    assert (report.verdict, "an answer without end" in report.cause) == (Verdict.UNDECIDED, True), report


@pytest.mark.slow
def test_under_a_token_a_second_twice_is_slow():
    report = judge("slow", deadline_s=3.0)
    assert report.verdict is Verdict.SLOW, report
    assert report.tokens_per_s is not None
    assert report.tokens_per_s < 1


def test_key_name_and_root_path_are_the_launchs_own():
    arguments = ("--key", "s3cret-key", "--root", "/llm", "--name", "served-as")
    with serving("http_model.py", *arguments, model="/models/other", api_key="s3cret-key") as target:
        report = check(replace(target, base_url=target.base_url + "/llm"))
        assert report.verdict is Verdict.SERVES, report
        denied = check(replace(target, base_url=target.base_url + "/llm", api_key="wr0ng-key"))
        elsewhere = check(target)
    assert denied.verdict is Verdict.UNDECIDED
    assert "API key" in denied.cause
    assert "wr0ng-key" not in repr((denied, target))
    assert elsewhere.verdict is Verdict.UNDECIDED


def test_an_abandoned_check_sends_nothing_more():
    said: list[str] = []
    with serving("http_model.py") as target:
        report = check(target, progress=said.append, abandoned=lambda: len(said) >= 2)
    assert report.verdict is Verdict.UNDECIDED
    assert len(said) == 2


def test_evidence_is_dated_by_the_clock_it_is_given():
    with serving("http_model.py", token_only=True) as target:
        report = check(target, clock=lambda: 17.0)
    assert {evidence.at_s for evidence in report.evidence} == {17.0}


DEAD, SILENT, FAILS = Heartbeat.DEAD, Heartbeat.SILENT, Heartbeat.FAILS


@pytest.mark.parametrize(
    ("mode", "verdict", "heartbeat"),
    [
        ("close_at_once", Verdict.CRASHED, DEAD),
        ("half", Verdict.CRASHED, DEAD),
        ("garbage", Verdict.CRASHED, DEAD),
        ("hold", Verdict.HUNG, SILENT),
        ("drip_head", Verdict.HUNG, SILENT),
        ("drip_body", Verdict.HUNG, SILENT),
        ("huge", Verdict.UNDECIDED, FAILS),
        ("html", Verdict.UNDECIDED, FAILS),
        ("redirect", Verdict.UNDECIDED, FAILS),
        ("deep", Verdict.UNDECIDED, FAILS),
        ("null", Verdict.UNDECIDED, FAILS),
        ("types", Verdict.UNDECIDED, FAILS),
        ("numbers", Verdict.UNDECIDED, FAILS),
        ("empty", Verdict.UNDECIDED, FAILS),
        ("gzip", Verdict.UNDECIDED, FAILS),
        ("not_utf8", Verdict.UNDECIDED, FAILS),
    ],
)
def test_a_bad_answer_is_evidence_and_ends_in_time(mode: str, verdict: Verdict, heartbeat: Heartbeat):
    deadline_s = 0.3 if heartbeat is SILENT else 10.0
    with serving("http_raw.py", mode, api_key="s3cret-key") as target:
        report, beat = check(target, deadline_s=deadline_s), pulse(target, deadline_s=deadline_s)
    assert (report.verdict, beat.heartbeat) == (verdict, heartbeat), (report, beat)
    assert "\x1b" not in repr(report)
    assert report.evidence[-1].at_s < 30


def test_a_pulse_of_a_healthy_and_of_a_dead_server():
    with serving("http_model.py") as target:
        assert pulse(target).heartbeat is Heartbeat.BEATS
    assert pulse(target).heartbeat is Heartbeat.DEAD
    assert check(target).verdict is Verdict.CRASHED
