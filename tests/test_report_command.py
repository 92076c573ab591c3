"""`shakedown report` in every format, from a ledger on disk to a file or standard output."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from report_samples import CONCLUSION, RUN, SEARCH, TRIALS

from shakedown.cli.main import cli
from shakedown.cli.output import PlainTalk
from shakedown.host.segments import BoundedLog
from shakedown.jobs.isolate import result_of
from shakedown.jobs.report import MOST_BYTES, ReportFormat, read_log
from shakedown.ledger import Ledger


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """A command ends by ignoring interrupts; run inside this process, it would leave them ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def ledger_path(tmp_path):
    """A ledger that holds one search and one run, each trial with a log."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.open_search(SEARCH)
        for each in (*TRIALS, RUN):
            folder = ledger.run_folder(each.id)
            (folder / "launch.log").write_text(f"INFO this is the log of {each.id}\n")
            ledger.open_trial(replace(each, folder=folder))
            ledger.close_trial(each.id, each.judgement, seconds=each.seconds)
        ledger.close_search(SEARCH.id, CONCLUSION, seconds=208.0)
    return path


@pytest.fixture
def report(ledger_path):
    """`report(*words)` on that ledger."""

    def run(*words):
        return CliRunner().invoke(cli, ["report", *words, "--ledger", str(ledger_path)])

    return run


BEGINS = {
    "md": "# hung (waiting) in dist_init",
    "json": "{",
    "html": "<!doctype html>",
    "junit": "<?xml",
    "vllm-issue": "Title: [Bug]: vllm",
}


@pytest.mark.parametrize(("kind", "begins"), BEGINS.items())
@pytest.mark.parametrize("entry", [SEARCH.id, RUN.id])
def test_every_format_goes_to_standard_output_and_the_same_to_a_file(report, tmp_path, kind, begins, entry):
    shown = report(entry, "--format", kind)
    assert shown.exit_code == 0
    assert shown.stdout.startswith(begins)
    wrote = report(entry, "--format", kind, "--output", str(tmp_path / "out"))
    assert wrote.stdout == f"wrote {tmp_path / 'out'}\n"
    assert (tmp_path / "out").read_text() == shown.stdout


def test_a_search_that_ended_is_told_although_its_report_cannot_be_written(ledger_path, capsys):
    with Ledger.open(ledger_path) as ledger:
        (ledger.run_folder(SEARCH.id) / "report.md").mkdir()
        said = result_of(ledger, SEARCH.id, CONCLUSION, PlainTalk())
    assert (said.exit_code, said.document["verdict"]) == (0, "hung")
    assert f"report.md cannot be written: Is a directory; later: shakedown report {SEARCH.id}" in (
        capsys.readouterr().err
    )


def test_logs_come_from_the_folders_of_the_trials(report):
    page = report(SEARCH.id, "--format", "html").stdout
    for each in TRIALS:
        assert f"this is the log of {each.id}" in page
    issue = report(SEARCH.id, "--format", "vllm-issue").stdout
    assert f"this is the log of {TRIALS[2].id}" in issue


def test_the_formats_hold_what_they_promise(report):
    document = json.loads(report(SEARCH.id, "--format", "json").stdout)
    assert (document["command"], document["verdict"]) == ("report", "hung")
    suite = ET.fromstring(report(SEARCH.id, "--format", "junit").stdout.encode()).find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("4", "2")


def test_two_ids_are_set_side_by_side(report):
    assert report(TRIALS[0].id, TRIALS[1].id).stdout.startswith("Findings\n")
    assert report(TRIALS[0].id, TRIALS[1].id, "--format", "md").stdout.startswith("# hung (waiting)")
    document = json.loads(report(SEARCH.id, RUN.id, "--format", "json").stdout)
    assert [side["id"] for side in document["sides"]] == [SEARCH.id, RUN.id]


def refused(done) -> str:
    assert done.exit_code == 2
    assert done.stdout == ""
    return done.stderr


def test_what_does_not_fit_together_is_refused(report, tmp_path):
    assert "md or json, not as html" in refused(report(RUN.id, SEARCH.id, "--format", "html"))
    assert "one, or sets two side by side" in refused(report(RUN.id, RUN.id, RUN.id))
    said = refused(report(RUN.id, "--format", "sglang-issue"))
    assert "a launch of vllm, not of sglang" in said
    assert "hint: --format vllm-issue" in said
    assert "no run 'nothing'" in refused(report("nothing"))
    assert "cannot be written" in refused(report(RUN.id, "--output", str(tmp_path / "no" / "where")))
    assert {kind.value for kind in ReportFormat} == {*BEGINS, "sglang-issue"}


def test_a_log_of_any_size_is_read_at_its_ends_and_a_missing_one_is_none(tmp_path):
    run = replace(RUN, folder=tmp_path)
    assert read_log(run) is None
    with (tmp_path / "launch.log").open("wb") as file:
        file.write(b"first\n")
        os.truncate(file.fileno(), 3 << 30)  # a hole: takes no room
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    assert (tmp_path / "launch.log").stat().st_blocks * 512 < 4 * MOST_BYTES
    log = read_log(run)
    assert (log.head[0], log.tail[-1]) == ("first", "last")
    assert "3221.2 MB" not in log.head
    assert log.left_out == "the middle of 3221.2 MB left out"


def test_a_log_whose_middle_was_dropped_is_shown_with_its_last_words(tmp_path):
    log = BoundedLog(tmp_path, limit_bytes=8 * MOST_BYTES)
    for thousand in range(MOST_BYTES // 1000):
        log.write(b"".join(b"line %07d\n" % (1000 * thousand + at) for at in range(1000)))
    log.close()
    lines = MOST_BYTES // 1000 * 1000
    excerpt = read_log(replace(RUN, folder=tmp_path))
    assert excerpt.head[0] == "line 0000000"
    assert excerpt.tail[-1] == f"line {lines - 1:07}"
    assert len(excerpt.tail) > 10
    assert excerpt.left_out == f"the middle of {13 * lines / 1e6:.1f} MB left out"
