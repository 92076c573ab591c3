"""A ledger forgets nothing that was finished, and says plainly why it cannot be used."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shakedown.core import (
    Conclusion,
    Ended,
    Ending,
    Experiment,
    Judgement,
    Phase,
    PhaseSpan,
    Purpose,
    RecordState,
    SearchRecord,
    TrialRecord,
    Verdict,
)
from shakedown.errors import LedgerProblem, UsageError
from shakedown.ledger import Kind, Ledger, place, problems, query, store, writers
from shakedown.ledger.ids import make_id
from shakedown.ledger.migrations import STEPS, migrate

HUNG = Judgement(
    verdict=Verdict.HUNG, phase=Phase.DIST_INIT, cause="nobody joins", fingerprint="nobody joins"
)
SERVES = Judgement(
    verdict=Verdict.SERVES,
    phase=Phase.SERVING,
    phases=(
        PhaseSpan(phase=Phase.WEIGHT_LOAD, rank="0", started_s=2.0, ended_s=6.0),
        PhaseSpan(phase=Phase.WEIGHT_LOAD, rank="1", started_s=2.0, ended_s=10.0),
        PhaseSpan(phase=Phase.SERVING, rank="0", started_s=12.0, ended_s=None),
    ),
)
ALONE = Experiment(kept=frozenset({"--nnodes"}), purpose=Purpose.ALONE, reason="the only one left")


def trial(name, search_id=None, experiment=None, **fields):
    return TrialRecord(
        id=name,
        search_id=search_id,
        experiment=experiment,
        engine="vllm",
        argv=("vllm", "serve", "m"),
        env=(("VLLM_X", "1"),),
        cwd="/",
        folder=Path("/runs") / name,
        started_at="2025-11-29T16:14:02Z",
        state=RecordState.OPEN,
        **({"facts": (("model_key", "m"),)} | fields),
    )


def search(name):
    return SearchRecord(
        id=name,
        engine="vllm",
        argv=("vllm",),
        env=(),
        secrets=(("HF_TOKEN", "ab12"),),
        cwd="/",
        started_at="2025-11-29T16:14:02Z",
        state=RecordState.OPEN,
        seed=1,
    )


CONCLUSION = Conclusion(
    ended=Ended.BUDGET,
    failing=HUNG,
    causes=(),
    suspects=(("--nnodes", 0.7),),
    cleared=(),
    not_cleared=(),
    other_failures=(),
    probability=None,
    hypotheses=(),
    steps=(),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def ledger(path):
    with Ledger.open(path) as opened:
        yield opened


def test_a_trial_is_open_until_it_is_closed_and_then_says_what_became_of_it(ledger):
    name = ledger.new_id(Kind.TRIAL)
    ledger.open_trial(trial(name))
    assert ledger.trial(name) == trial(name)
    ending = Ending(seconds=0.1, left=(), swept_shm=("/dev/shm/x",), forced=True)
    ledger.close_trial(name, HUNG, seconds=61.5, ending=ending, facts={"port": "8000"})
    closed = ledger.trial(name)
    assert (closed.state, closed.judgement, closed.seconds) == (RecordState.FINISHED, HUNG, 61.5)
    assert closed.facts == (("model_key", "m"), ("port", "8000"))


def test_a_correction_is_a_new_row_and_the_latest_counts(ledger, path):
    ledger.open_trial(trial("t1"))
    ledger.close_trial("t1", HUNG, seconds=1)
    ledger.close_trial("t1", SERVES, seconds=2)
    assert ledger.trial("t1").judgement == SERVES
    assert len(ledger.events("t1")) == 2
    assert ledger.average_seconds("vllm", "m") == 2
    with sqlite3.connect(path) as connection:
        for change in ("DELETE FROM event", "UPDATE entry SET engine = 'x'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(change)
    connection.close()


def test_a_search_has_its_trials_in_order_and_its_conclusion(ledger):
    ledger.open_search(search("s1"))
    for name in ("t3", "t1", "t2"):
        ledger.open_trial(trial(name, "s1"))
    assert [t.id for t in ledger.trials_of("s1")] == ["t3", "t1", "t2"]
    ledger.close_search("s1", CONCLUSION, seconds=90)
    found = ledger.search("s1")
    assert (found.state, found.conclusion, found.seconds) == (RecordState.FINISHED, CONCLUSION, 90)
    assert ledger.adopt("s1")  # gone on with, with more launches allowed
    assert ledger.search("s1").state is RecordState.OPEN


def test_runs_are_searches_and_single_trials_newest_first(ledger):
    ledger.open_trial(trial("t1"))
    ledger.open_search(search("s1"))
    ledger.open_trial(trial("t2", "s1"))
    ledger.open_trial(trial("t3"))
    assert [run.id for run in ledger.runs()] == ["t3", "s1", "t1"]
    assert [run.id for run in ledger.runs(1)] == ["t3"]


def test_an_id_may_be_shortened_to_its_beginning_or_its_last_block(ledger):
    for name in ("t251129-161402-8k3f", "t251129-161402-8k3g", "t251130-090000-a000"):
        ledger.open_trial(trial(name))
    ledger.open_search(search("s251129-161402-zzzz"))
    assert ledger.find("t251130").id == "t251130-090000-a000"
    assert ledger.find(" 8K3G ").id == "t251129-161402-8k3g"
    assert isinstance(ledger.find("s25"), SearchRecord)
    with pytest.raises(UsageError, match="more than one ID: t251129-161402-8k3g, t251129-161402-8k3f"):
        ledger.find("t251129")
    for nothing in ("t24", "", "%", "_251129"):
        with pytest.raises(UsageError, match="no run"):
            ledger.find(nothing)
    with pytest.raises(UsageError, match="no search 't251130'"):
        ledger.search("t251130")


def test_ids_sort_by_time_to_the_millisecond():
    start = datetime(2025, 11, 29, 23, 59, 59, 990_000, UTC)
    names = [make_id(Kind.TRIAL, start + timedelta(milliseconds=step)) for step in range(25)]
    assert names == sorted(names)
    assert names[0].startswith("t251129-235959-yy")


def test_recall_gives_the_finished_trial_of_an_equal_experiment(ledger):
    ledger.open_search(search("s1"))
    ledger.open_trial(trial("t1", "s1", ALONE))
    assert ledger.recall("s1", ALONE) is None
    ledger.close_trial("t1", HUNG, seconds=9, facts={"driver": "570"})
    same = Experiment(kept=ALONE.kept, purpose=Purpose.SPLIT, reason="")
    found = ledger.recall("s1", same, facts={"driver": "570"})
    assert found is not None
    assert (found.trial_id, found.judgement, found.seconds) == ("t1", HUNG, 9)
    assert ledger.recall("s2", ALONE) is None
    again = Experiment(kept=ALONE.kept, purpose=Purpose.ALONE, reason="", repeat=1)
    assert ledger.recall("s1", again) is None


def test_recall_asks_again_after_a_reboot_a_new_driver_or_trouble_around(ledger, monkeypatch):
    surroundings = Judgement(verdict=Verdict.CRASHED, phase=Phase.BIND, environment=True)
    ledger.open_trial(trial("t1", "s1", ALONE))
    ledger.close_trial("t1", HUNG, seconds=9, facts={"driver": "570"})
    ledger.open_trial(trial("t2", "s1", ALONE))
    ledger.close_trial("t2", surroundings, seconds=1)
    assert ledger.recall("s1", ALONE).trial_id == "t1"
    assert ledger.recall("s1", ALONE, facts={"driver": "580"}) is None
    monkeypatch.setattr("shakedown.ledger.query.boot_id", lambda: "another boot")
    assert ledger.recall("s1", ALONE) is None


def test_silences_and_times_are_learnt_from_starts_that_serve(ledger):
    def closed(name, judgement, silences, **fields):
        ledger.open_trial(trial(name, **fields))
        ledger.close_trial(name, judgement, seconds=10, silences=silences)

    closed("t1", SERVES, {Phase.IMPORT: 2.0, Phase.WEIGHT_LOAD: 20.0})
    closed("t2", SERVES, {Phase.WEIGHT_LOAD: 12.0})
    closed("t3", HUNG, {Phase.IMPORT: 500.0})
    closed("t4", SERVES, {Phase.COMPILE: 9.0}, facts=(("model_key", "other"),))
    assert ledger.learnt_silences("vllm", "m") == {Phase.IMPORT: 15.0, Phase.WEIGHT_LOAD: 60.0}
    times = ledger.phase_times("vllm", "m")
    assert set(times) == {Phase.WEIGHT_LOAD}
    assert times[Phase.WEIGHT_LOAD].median_s == pytest.approx(8.0)
    assert ledger.phase_times("vllm", None).keys() == times.keys()
    assert ledger.load_rate("vllm") is None
    assert ledger.average_seconds("vllm", "m", Verdict.HUNG) == 10
    assert ledger.average_seconds("sglang", "m") is None


def test_a_kept_launch_is_listed_until_it_is_stopped(ledger):
    for name, kept in (("t1", True), ("t2", False)):
        ledger.open_trial(trial(name))
        ledger.close_trial(name, SERVES, seconds=1, kept_running=kept)
    assert [t.id for t in ledger.kept()] == ["t1"]
    ledger.mark_stopped("t1")
    assert ledger.kept() == ()
    assert ledger.trial("t1").state is RecordState.FINISHED


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_ledger_store import HUNG, SERVES, trial
from shakedown.ledger import Kind, Ledger
with Ledger.open(Path(sys.argv[1])) as ledger:
    for turn in range(int(sys.argv[2])):
        name = ledger.new_id(Kind.TRIAL)
        ledger.open_trial(trial(name))
        print("opened", name, flush=True)
        ledger.close_trial(name, SERVES, seconds=turn, silences={})
        print("closed", name, flush=True)
"""


def start_writer(path, turns):
    command = [sys.executable, "-c", WRITER, str(path), str(turns), str(Path(__file__).parent)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said(lines, word):
    return [line.split()[1] for line in lines if line.startswith(word) and line.endswith("\n")]


def test_a_kill_loses_no_finished_trial_and_leaves_the_open_one_interrupted(path):
    opened, closed = [], []
    for lines_until_kill in (1, 2, 5, 8):
        with start_writer(path, 10_000) as writer:
            lines = [writer.stdout.readline() for _ in range(lines_until_kill)]
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.readlines()
        opened += said(lines, "opened")
        closed += said(lines, "closed")
    with Ledger.open(path) as ledger:
        records = {record.id: record for record in ledger.runs(1_000_000)}
        assert all(records[name].state is RecordState.FINISHED for name in closed)
        left = {name for name, record in records.items() if record.state is not RecordState.FINISHED}
        assert left == {record.id for record in ledger.interrupted()}
        assert {records[name].state for name in left} <= {RecordState.INTERRUPTED}
        assert set(opened) <= set(records)
        for name in left:
            ledger.mark_stopped(name)
            assert ledger.trial(name).state is RecordState.INTERRUPTED
        assert ledger.interrupted() == ()


def test_several_processes_may_begin_and_fill_one_ledger_at_once(path):
    running = [start_writer(path, 15) for _ in range(3)]
    closed = []
    for writer in running:
        with writer:
            closed += said(writer.stdout.readlines(), "closed")
        assert writer.returncode == 0
    with Ledger.open(path) as ledger:
        assert sorted(closed) == sorted(record.id for record in ledger.runs(1000))
    assert len(set(closed)) == 45


def test_a_process_is_gone_when_its_pid_was_handed_to_another():
    here = writers.this_writer()
    assert not writers.is_gone(here, here, Path("/"))

    reused = replace(here, process=replace(here.process, started_ticks=1))
    assert writers.is_gone(reused, here, Path("/"))
    assert writers.is_gone(replace(here, boot_id="an earlier boot"), here, Path("/"))
    elsewhere = replace(here, boot_id="another boot", hostname="another host")
    assert not writers.is_gone(elsewhere, here, Path("/"))  # it cannot be told
    with subprocess.Popen(["true"]) as child:
        time.sleep(0.2)  # a zombie until it is waited for
        assert writers.started_ticks(child.pid) is None


def test_of_two_that_go_on_with_a_search_at_once_one_gets_it(ledger, path):
    ledger.open_search(search("s1"))
    ledger.close_search("s1", CONCLUSION, seconds=1.0)
    with Ledger.open(path) as another:
        assert another.search("s1").state is RecordState.FINISHED  # as both saw it before
        assert [ledger.adopt("s1"), another.adopt("s1")] == [True, False]
    assert [event.kind for event in ledger.events("s1")] == ["concluded", "adopted"]


def test_a_writer_in_another_container_lives_as_long_as_it_holds_its_entry(ledger, path, monkeypatch):
    ledger.open_search(search("s1"))
    ledger.open_trial(trial("t1", "s1"))
    container = replace(writers.this_writer(), namespace="pid:[1]")  # the same machine, name and home
    monkeypatch.setattr(query, "this_writer", lambda: container)
    with Ledger.open(path) as seen:
        assert (seen.search("s1").state, seen.trial("t1").state) == (RecordState.OPEN, RecordState.OPEN)
        ledger.close_trial("t1", SERVES, seconds=1.0)
        ledger.close()
        assert seen.search("s1").state is RecordState.INTERRUPTED
        assert seen.adopt("s1")


def test_the_ledger_and_its_folders_are_for_the_user_alone(path, ledger):
    mask = os.umask(0)
    try:
        folder = ledger.run_folder("t1")
        ledger.open_trial(trial("t1"))
    finally:
        os.umask(mask)
    assert folder == path.parent / "runs" / "t1"
    assert [p.stat().st_mode & 0o777 for p in (path.parent, folder.parent, folder)] == [0o700] * 3
    assert {p.stat().st_mode & 0o777 for p in path.parent.glob("ledger.db*")} == {0o600}


def test_the_default_lies_in_the_state_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Ledger.open() as ledger:
        assert ledger.path == tmp_path / "state" / "shakedown" / "ledger.db"
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert place.default_path() == tmp_path / ".local" / "state" / "shakedown" / "ledger.db"


def refused(path):
    with pytest.raises(LedgerProblem) as problem:
        Ledger.open(path).close()
    assert problem.value.hints
    assert str(path.parent) in problem.value.message
    return problem.value.message


def test_what_others_could_change_is_refused(path):
    Ledger.open(path).close()
    path.chmod(0o646)
    assert "anyone can write" in refused(path)
    path.chmod(0o600)
    path.parent.chmod(0o1777)
    assert "anyone can write" in refused(path)
    path.parent.chmod(0o755)
    Ledger.open(path).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_another_user_is_refused(path):
    Ledger.open(path).close()
    os.chown(path, 12345, -1)
    assert "belongs to user 12345" in refused(path)


def test_a_folder_a_file_of_another_kind_and_a_place_that_cannot_be_are_told_apart(tmp_path):
    with Ledger.open(tmp_path) as ledger:
        assert ledger.path == tmp_path / "ledger.db"
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to have a header of one\n" * 20)
    assert "not an SQLite file" in refused(text)
    assert "cannot be opened" in refused(text / "below" / "ledger.db")
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    assert "of another program" in refused(foreign)
    assert foreign.stat().st_size == 4096 * 2  # untouched


def test_a_newer_ledger_is_refused_and_an_older_one_carried_forward(path):
    Ledger.open(path).close()
    newer = (*STEPS, ("ALTER TABLE entry ADD COLUMN later TEXT",))
    with Ledger.open(path) as ledger:
        ledger.open_trial(trial("t1"))
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, newer)
    assert connection.execute("SELECT id, later FROM entry").fetchall() == [("t1", None)]
    connection.close()
    message = refused(path)
    assert "newer Shakedown" in message
    assert f"schema {len(newer)}" in message


def test_a_step_that_fails_leaves_the_ledger_as_it_was(path):
    Ledger.open(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, (*STEPS, ("ALTER TABLE entry ADD COLUMN later TEXT", "NONSENSE")))
    connection.close()
    Ledger.open(path).close()


def test_damage_is_said_with_path_and_way_out(path):
    with Ledger.open(path) as ledger:
        for turn in range(200):
            ledger.open_trial(trial(f"t{turn}"))
    content = bytearray(path.read_bytes())
    content[8192:] = os.urandom(len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(LedgerProblem, match="is damaged") as problem, Ledger.open(path) as ledger:
        ledger.runs(1000)
    assert any("recover" in hint for hint in problem.value.hints)


def test_an_unreadable_row_is_named(ledger, path):
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO entry (id, kind, engine, model_key, writer, record)"
            " VALUES ('t1', 'trial', '', '', ?, '{}')",
            (store.to_text(writers.this_writer()),),
        )
    connection.close()
    with pytest.raises(LedgerProblem, match="TrialRecord: id is missing"):
        ledger.find("t1")


def test_a_locked_ledger_and_a_full_disk_are_said_and_leave_it_usable(path, monkeypatch):
    monkeypatch.setattr(store, "BUSY_S", 0.1)
    with Ledger.open(path) as ledger:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerProblem, match="another process has locked it"):
            ledger.open_trial(trial("t1"))
        holder.execute("ROLLBACK")
        holder.close()
        ledger._connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(LedgerProblem, match="the disk is full"):
            ledger.open_trial(trial("t1", facts=(("much", "x" * 100_000),)))
        ledger._connection.execute("PRAGMA max_page_count = 100000")
        ledger.open_trial(trial("t1"))
        assert ledger.trial("t1").id == "t1"


def test_an_id_is_given_once_and_events_need_their_trial(ledger):
    ledger.open_trial(trial("t1"))
    with pytest.raises(LedgerProblem, match="UNIQUE"):
        ledger.open_trial(trial("t1"))
    with pytest.raises(LedgerProblem, match="FOREIGN KEY"):
        ledger.close_trial("t2", SERVES, seconds=1)


def test_every_known_problem_has_a_way_out():
    assert all(hints for _, _, hints in problems.KNOWN)


def test_network_folders_are_told_from_the_mounts(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:1 / /home rw - nfs4 server:/home rw\n"
        "3 2 8:2 / /home/local\\040disk rw - xfs /dev/sdb rw\n"
    )
    assert place.on_network(Path("/home/me/ledger.db"), mounts)
    assert not place.on_network(Path("/home/local disk/ledger.db"), mounts)
    assert not place.on_network(Path("/homes/ledger.db"), mounts)
