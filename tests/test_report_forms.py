"""Bug reports, JUnit and two runs side by side: what others read has what they ask for, and no secret."""

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from report_samples import CRASHED, HUNG, LAYOUT, RUN, SEARCH, SERVES, TRIALS, search, span, trial

from shakedown.core import Evidence, Phase, RecordState, Verdict
from shakedown.report.compare import Side, compare, compare_document, compare_markdown, compare_text
from shakedown.report.excerpt import LogExcerpt
from shakedown.report.forms import Form, failing_trial, issue_body
from shakedown.report.junit import junit_xml, signature_type

SERVED = trial("t251129-170000-ssss", judgement=SERVES, seconds=35.0)
LOG_BYTES = b"INFO non-default args: {'nnodes': 2, 'api_key': ['abcdefgh12345']}\nlast ```words```\n"
LOG = LogExcerpt.of(LOG_BYTES, b"", len(LOG_BYTES))


def test_the_vllm_form_has_its_three_sections_and_what_we_add():
    body = issue_body(Form.VLLM, SEARCH, TRIALS, LOG)
    title, *lines = body.splitlines()
    assert title == "Title: [Bug]: vllm 0.32.0 hung (waiting) in dist_init with nodes"
    assert [line[4:] for line in lines if line.startswith("### ")] == [
        "Your current environment",
        "🐛 Describe the bug",
        "Before submitting a new issue...",
    ]
    for said in (
        "vllm.collect_env",
        "engine_version: 0.32.0",
        "| dist_init | 47 s, not finished |",
        "nnodes=2",
    ):
        assert said in body
    assert "Proven cause" in body
    assert "- [ ]" in body
    assert "- [x]" not in body.lower()


def test_the_sglang_form_asks_for_command_and_model():
    record = replace(RUN, engine="sglang", facts=(("model_key", "./model"), ("host", "secret-box")))
    body = issue_body(Form.SGLANG, record, (), LOG)
    assert body.startswith("Title: [Bug] sglang hung (waiting) in dist_init: waits in init_process_group")
    headings = [line[4:] for line in body.splitlines() if line.startswith("### ")]
    assert headings == ["Checklist", "Describe the bug", "Reproduction", "Environment"]
    assert "Model: `./model`" in body
    assert "sglang.check_env" in body
    assert "secret-box" not in body


def test_a_form_shows_the_shortest_launch_that_fails_and_the_one_that_serves():
    short = replace(TRIALS[2], argv=("vllm", "serve", "short", *LAYOUT))
    trials = (TRIALS[0], TRIALS[1], short, TRIALS[3])
    assert failing_trial(SEARCH, trials) is short
    body = issue_body(Form.VLLM, SEARCH, trials)
    assert body.index("vllm serve short --nnodes 2") < body.index("This serves, on the same machine")
    assert failing_trial(RUN, ()) is RUN
    assert failing_trial(replace(SEARCH, conclusion=None), ()) is None


def test_no_form_shows_a_secret_the_host_or_breaks_out_of_its_blocks():
    leaky = Evidence(kind="process", text="python --api-key abcdefgh12345: state S", at_s=1.0, pid=1)
    record = trial("t1", judgement=replace(HUNG, evidence=(leaky,), cause="`x` </details> @all"))
    for form in Form:
        body = issue_body(form, record, (), LOG)
        assert "abcdefgh12345" not in body
        assert '"${API_KEY:?}"' in body
        assert " on box" not in body
        parts = MarkdownIt("commonmark").parse(body)
        html = [part.content for part in parts if part.type == "html_block"]
        assert all(part.startswith(("<details>", "</details>")) for part in html)
        assert len([part for part in html if part.startswith("<details>")]) == body.count("\n<details>\n")


@pytest.mark.parametrize("form", list(Form))
def test_what_has_no_verdict_still_has_a_form(form):
    unfinished = replace(RUN, judgement=None, seconds=None, state=RecordState.INTERRUPTED)
    assert "No launch was judged" in issue_body(form, unfinished)
    issue_body(form, replace(SEARCH, conclusion=None, seconds=None), TRIALS)
    issue_body(form, search(causes=()), ())


def cases(xml: str) -> list[ET.Element]:
    return ET.fromstring(xml.encode()).findall("testsuite/testcase")


def test_a_search_is_a_suite_and_each_trial_a_case():
    xml = junit_xml(SEARCH, TRIALS)
    suite = ET.fromstring(xml.encode()).find("testsuite")
    assert {k: suite.get(k) for k in ("name", "tests", "failures", "errors", "skipped", "time")} == {
        "name": "shakedown isolate vllm",
        "tests": "4",
        "failures": "2",
        "errors": "0",
        "skipped": "0",
        "time": "208.000",
    }
    assert [case.get("name") for case in cases(xml)] == [
        "1 reproduce, all kept",
        "2 safe mode, nothing kept",
        "3 alone, kept: nodes",
        "4 workaround, 4 of 5 kept",
    ]
    failure = cases(xml)[0].find("failure")
    assert failure.get("type") == "hung.waiting.dist_init: waits in init_process_group"
    assert failure.get("message") == HUNG.cause


@pytest.mark.parametrize(
    ("judgement", "child", "type_"),
    [
        (SERVES, None, None),
        (HUNG, "failure", "hung.waiting.dist_init: waits in init_process_group"),
        (CRASHED, "failure", "crashed.config"),
        (replace(CRASHED, verdict=Verdict.WRONG), "failure", "wrong.config"),
        (replace(CRASHED, verdict=Verdict.SLOW), "failure", "slow.config"),
        (replace(CRASHED, verdict=Verdict.UNDECIDED), "skipped", None),
        (replace(HUNG, environment=True), "skipped", None),
        (None, "skipped", None),
    ],
)
def test_verdicts_in_junit(judgement, child, type_):
    (case,) = cases(junit_xml(trial("t1", judgement=judgement)))
    found = [each for each in case if each.tag in ("failure", "error", "skipped")]
    assert [each.tag for each in found] == ([child] if child else [])
    assert not found or found[0].get("type") == type_


def test_junit_names_and_types_hold_nothing_that_changes_from_run_to_run():
    again = replace(RUN, id="t9", started_at="2026-01-01T00:00:00Z")
    names = [(case.get("name"), case.get("classname")) for case in cases(junit_xml(again))]
    assert names == [("launch", "shakedown.vllm")]
    assert "4711" not in signature_type(HUNG)


def test_junit_takes_any_text():
    hostile = replace(CRASHED, cause="]]> \x00\x1b[31m\ud800\ufffe <x>&", fingerprint="\x0b")
    xml = junit_xml(trial("t\x01", judgement=hostile, argv=("a\x07", "\udc80")))
    assert cases(xml)[0].find("failure").get("message") == "]]> <x>&"


def test_two_runs_side_by_side():
    right = replace(SERVED, argv=(*(word for word in RUN.argv if word not in LAYOUT), "--max-model-len=99"))
    found = compare(Side.of(RUN), Side.of(replace(right, env=(("OMP_NUM_THREADS", "4"),))))
    rows = {row.phase: row for row in found.phases}
    assert rows[Phase.IMPORT].ratio == pytest.approx(14.0 / 9.1)
    assert (rows[Phase.DIST_INIT].right_s, rows[Phase.DIST_INIT].ratio) == (None, None)
    assert rows[Phase.DIST_INIT].words[0] == "48 s, not finished"
    assert ("--nnodes", "2", None) in found.arguments
    assert ("--max-model-len", "2048", "2048 99") in found.arguments
    assert set(found.env) == {("VLLM_LOGGING_LEVEL", "INFO", None), ("OMP_NUM_THREADS", "2", "4")}
    assert found.facts == ()
    text = compare_text(found)
    assert max(map(len, text)) <= 118
    assert "hung (waiting) in dist_init" in "\n".join(text)
    MarkdownIt("commonmark").parse(compare_markdown(found))
    assert "| import | `9.1 s` | `14 s` | `1.54x` |" in compare_markdown(found)


def test_the_comparison_as_a_document_keeps_the_contract():
    left, right = Side.of(SEARCH, TRIALS, LOG.resolved), Side.of(RUN, (), (("nnodes", "1"),))
    document = json.loads(json.dumps(compare_document(compare(left, right)), allow_nan=False))
    assert (document["schema"], document["command"], document["verdict"]) == ("shakedown/1", "report", None)
    assert [(s["id"], s["command"], s["verdict"]) for s in document["sides"]] == [
        (SEARCH.id, "isolate", "hung"),
        (RUN.id, "run", "hung"),
    ]
    assert {"name": "nnodes", "left": "2", "right": "1"} in document["differences"]["resolved"]
    odd = replace(HUNG, phases=(span(Phase.IMPORT, 0.0, 0.0), span(Phase.CONFIG, float("nan"), None)))
    document = compare_document(compare(Side.of(trial("t1", judgement=odd)), Side.of(RUN)))
    json.dumps(document, allow_nan=False)
