"""The hang benchmark, without an engine: its starts, its sums, and recordings that play back."""

import importlib
import io
import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from shakedown.core import Launch, Missing, Verdict, Wait
from shakedown.engines.generic import GENERIC
from shakedown.host.replay import ReplayHost, Trace
from shakedown.trial import Subject, run_trial
from shakedown.watch import Limits, Watcher

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
HANGING = Path(__file__).parent / "bad_servers" / "hanging.py"
MODULES = ("hang_starts", "hang_recording", "hang_tables")


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in MODULES:
            sys.modules.pop(name, None)


def test_a_hundred_healthy_starts_of_real_engines_and_no_name_twice(bench):
    starts = bench["hang_starts"].all_starts()
    healthy = Counter(start.engine for start in starts if not start.hung)
    assert healthy == {"transformers": 70, "vllm": 20, "compiled": 5, "sglang": 5}
    assert len({start.id for start in starts}) == len(starts)
    plain = [start.id for start in starts if start.population == "plain"]
    assert plain == [start.id for start in starts if start.id in plain and not start.learnt]


def test_what_has_a_row_is_not_run_again_unless_asked(bench):
    chosen = bench["hang_starts"].chosen
    known = {"transformers-plain-00"}
    assert len(chosen("transformers-plain", known, None, again=False)) == 9
    assert len(chosen("transformers-plain", known, None, again=True)) == 10
    assert [len(batch) for batch in chosen("transformers-three", set(), 2, again=False)] == [3, 3]
    with pytest.raises(SystemExit, match="no such start"):
        chosen("nosuch", set(), None, again=False)


def healthy(**changed):
    row = {"engine": "vllm", "population": "plain", "hung": False, "verdict": "serves", "suspect_s": None}
    return row | {"load_average": 1.0, "ready_s": 30.0, "log_silence_s": 61.0} | changed


def hung(**changed):
    row = {"engine": "vllm", "population": "lock", "hung": True, "verdict": "hung", "wait": "waiting"}
    said = {"60": 60.0, "120": 120.0, "300": None}
    row |= {"moved_s": 20.0, "moved_by": "its own stamp", "latency_s": 41.0, "called_slow_s": None}
    return row | {"log_silence_latency_s": said} | changed


def test_false_alarms_are_counted_with_the_rule_of_three(bench):
    tables = bench["hang_tables"]
    assert tables.interval(0, 100) == (0.0, 0.03)
    low, high = tables.interval(5, 100)
    assert 0.02 < low < 0.05 < high < 0.12
    text = tables.tables({"a": healthy(), "b": healthy(ready_s=301.0), "c": healthy(verdict="hung")})
    lines = {line.split("  ")[1].strip(): line.split() for line in text.splitlines() if line.startswith("  ")}
    assert lines["hung, said by Shakedown"][4] == "1"
    assert lines["clock of 60 s"][4] == "1"
    assert lines["clock of 600 s"][4] == "0"
    assert lines["log silent for 60 s"][5] == "3"


def test_a_hang_that_was_not_called_counts_as_never(bench):
    tables = bench["hang_tables"]
    missed = hung(verdict="undecided", wait=None, latency_s=None)
    assert tables.latencies([hung(), missed]) == [41.0, tables.NEVER]
    assert "never" in tables.hung_table([hung(), missed])
    assert "MISSED" in tables.marks([missed, missed])
    assert "kept" in tables.marks([hung()])
    assert "log silent for 300 s           0 of 1     never" in tables.rivals([hung()])


def test_the_silence_of_a_log_that_goes_on_talking_never_strikes(bench):
    story = bench["hang_recording"].Story(io.StringIO())
    story.now_s = 80.0
    story.line_s = [1.0, 30.0, 31.0]
    assert story.longest_silence_s() == 49.0
    assert story.silence_says_s(60, 35.0) == 91.0
    story.line_s += [40.0, 50.0, 60.0, 70.0]
    assert story.silence_says_s(60, 35.0) is None


KINDS = ("lock", "spin", "stopped", "peer", "blocked_socket", "fifo", "retry", "heartbeat", "fork_server")


@pytest.mark.parametrize("kind", KINDS)
def test_a_hanging_program_leaves_its_moment_and_stays(kind, tmp_path):
    stamp = tmp_path / "stamp"
    program = subprocess.Popen(
        [sys.executable, "-c", f"import hanging; hanging.hang({kind!r})"],
        cwd=HANGING.parent,
        env={"HANG_STAMP": str(stamp), "PATH": ""},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.5)
        assert float(stamp.read_text()) > 0
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait(10)


@pytest.mark.slow
def test_a_recorded_hang_plays_back_to_the_same_verdict(bench, tmp_path):
    host = bench["hang_recording"].RecordingHost(tmp_path / "it")
    launch = Launch(argv=(sys.executable, str(HANGING), "stopped"), env={"PATH": ""}, cwd=tmp_path)
    with (tmp_path / "it.times").open("w") as log:
        story = bench["hang_recording"].Story(log)
        subject = Subject(title="it", launch=launch, engine=GENERIC, port=None, target=None, deadline_s=60)
        judgement = run_trial(host, subject, tmp_path / "run", story.hear).judgement
    host.close()
    assert (judgement.verdict, judgement.wait) == (Verdict.HUNG, Wait.STOPPED)
    moved_s, told_by = bench["hang_recording"].last_true_progress(story, host, tmp_path / "none")
    assert told_by == "state T"
    assert 0 < moved_s < story.now_s

    replay = ReplayHost(Trace.read(tmp_path / "it"))
    watcher = Watcher(replay, replay.run, GENERIC, limits=Limits())
    for _ in itertools.repeat(None, 120):
        replay.advance(0.5)
        again = watcher.step().judgement
        if again is not None:
            break
    assert not isinstance(replay.processes(replay.run), Missing)
    assert (again.verdict, again.wait, again.fingerprint) == (
        judgement.verdict,
        judgement.wait,
        judgement.fingerprint,
    )
