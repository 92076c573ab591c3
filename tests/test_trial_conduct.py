"""What a trial has found is written down, whatever becomes of the machine afterwards."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from host_runs import is_alive
from probe_servers import serving

from shakedown.core import Ending, Evidence, Listener, RecordState, Run, TrialRecord, Verdict
from shakedown.core.launches import Launch
from shakedown.engines import engine_named
from shakedown.errors import HostProblem
from shakedown.host.local import LocalHost
from shakedown.ledger import Ledger
from shakedown.trial import Failed, Occasion, Subject, run_recorded
from shakedown.watch import Assessment

CRASHES = "raise RuntimeError('no kernel image is available')"
PASSES = "import time; print('passed', flush=True); time.sleep(60)"
LOST = "the connection to box was lost and not regained"


class Lost(LocalHost):
    """A machine that can be seen, and then not be reached any more."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[Run] = []

    def end(self, run: Run, *, grace_s: float) -> Ending:
        self.left.append(run)
        raise HostProblem(LOST, "its supervisor ends what runs there")

    def disarm(self, run: Run) -> None:
        raise HostProblem(LOST)

    def tidy(self) -> None:
        for run in self.left:
            super().end(run, grace_s=0.0)


def subject(folder: Path, body: str, **fields: object) -> Subject:
    launch = Launch(argv=(sys.executable, "-c", body), env=dict(os.environ), cwd=folder)
    engine = engine_named("generic")
    return Subject(  # type: ignore[arg-type]
        title="t", launch=launch, engine=engine, port=None, target=None, passed_log="passed", **fields
    )


def nobody(assessment: Assessment) -> None:
    """Looks on, and does nothing."""


def recorded(
    folder: Path, host: Lost, body: str, look_on: Callable[[Assessment], None] = nobody, **fields: object
) -> TrialRecord:
    try:
        with Ledger.open(folder / "ledger.db") as ledger:
            return run_recorded(ledger, host, subject(folder, body, **fields), Occasion(), look_on)
    finally:
        host.tidy()


def told(record: TrialRecord, kind: str) -> str:
    assert record.judgement is not None
    return "; ".join(seen.text for seen in record.judgement.evidence if seen.kind == kind)


def test_a_machine_that_is_lost_before_the_launch_is_ended_takes_no_verdict_along(tmp_path):
    record = recorded(tmp_path, Lost(), CRASHES)
    assert record.judgement.verdict is Verdict.CRASHED
    assert "no kernel image" in record.judgement.cause
    assert record.judgement.phases
    assert LOST in told(record, "still alive")
    assert "its supervisor ends" in told(record, "still alive")


def test_a_failure_that_cannot_be_looked_after_any_more_keeps_its_verdict(tmp_path):
    def look(failed: Failed) -> tuple[Evidence, ...]:
        raise HostProblem(LOST)

    record = recorded(tmp_path, Lost(), CRASHES, look_after=look)
    assert record.judgement.verdict is Verdict.CRASHED
    assert LOST in told(record, "not read")


def test_a_launch_that_serves_and_cannot_be_let_go_of_serves_and_is_not_called_kept(tmp_path):
    record = recorded(tmp_path, Lost(), PASSES, keep=True)
    assert (record.judgement.verdict, record.kept_running) == (Verdict.SERVES, False)
    assert LOST in told(record, "not kept")
    assert LOST in told(record, "still alive")


def test_a_machine_that_is_lost_during_the_watch_leaves_what_was_seen_until_then(tmp_path):
    class Away(Lost):
        def read_log(self, run: Run, offset: int) -> tuple[bytes, int]:
            data, after = super().read_log(run, offset)
            if offset:
                raise HostProblem(LOST, "a way there")
            return data, after

    record = recorded(tmp_path, Away(), "import time; print('loading weights', flush=True); time.sleep(60)")
    judgement = record.judgement
    assert (judgement.verdict, judgement.environment) == (Verdict.UNDECIDED, True)
    assert LOST in judgement.cause
    assert judgement.would_change == "a way there"
    assert "last hard progress" in told(record, "progress")
    assert LOST in told(record, "still alive")


def test_an_interrupted_trial_stays_open_although_its_machine_is_lost(tmp_path):
    def press(assessment: Assessment) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path, Lost(), "import time; time.sleep(60)", press)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert [record.state for record in ledger.runs()] == [RecordState.OPEN]


class Bereft(Lost):
    """A machine whose memory runs out: the kernel takes the supervisor of the first launch it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []

    def start(self, launch: Launch, folder: Path, *, detach: bool = False) -> Run:
        self.runs.append(super().start(launch, folder, detach=detach))
        return self.runs[-1]

    def end(self, run: Run, *, grace_s: float) -> Ending:
        return LocalHost.end(self, run, grace_s=grace_s)

    def bereave(self, assessment: Assessment) -> None:
        if is_alive(self.runs[0].supervisor):
            os.kill(self.runs[0].supervisor.pid, signal.SIGKILL)


TALKS = "import time\nfor n in range(600): print('block', 'abcdef'[n % 6] * n, flush=True); time.sleep(0.2)"


def test_a_launch_whose_supervisor_is_killed_is_undecided_and_ended_and_never_hung(tmp_path):
    """Nobody takes in what it says any more: a healthy one was called hung."""
    host = Bereft()
    record = recorded(tmp_path, host, TALKS, host.bereave)
    judgement = record.judgement
    assert judgement is not None
    assert (judgement.verdict, judgement.environment) == (Verdict.UNDECIDED, True)
    assert judgement.cause.startswith(f"its supervisor (pid {host.runs[0].supervisor.pid}) was killed")
    assert "its log is blind from then on" in judgement.cause
    assert not any(character.isdigit() for character in judgement.fingerprint)
    assert not is_alive(host.runs[0].leader)


def test_a_launch_that_goes_with_its_supervisor_has_exited(tmp_path):
    host = Bereft()

    def take_both(assessment: Assessment) -> None:
        host.bereave(assessment)
        if is_alive(host.runs[0].leader):
            os.kill(host.runs[0].leader.pid, signal.SIGKILL)

    judgement = recorded(tmp_path, host, TALKS, take_both).judgement
    assert judgement is not None
    assert judgement.verdict is Verdict.CRASHED
    assert judgement.cause == "ended, and nobody was left to see how"


LOADS = "import time; [(print('part', c, flush=True), time.sleep(0.5)) for c in 'abcdefghijklmnopqrstuvwxyz']"


def test_the_deadline_ends_a_server_that_loads_for_ever(tmp_path):
    """It answers 503 and goes on moving; what it said last is told."""
    with serving("http_model.py", "--fault", "loads_for_ever", engine="generic", health_path=None) as target:

        class Listens(LocalHost):
            def listener(self, port: int, run: Run | None = None) -> Listener | None:
                return Listener(port=port, pid=None, program="server", ours=True) if run else None

        asked = {"target": target, "port": 8000, "passed_log": None, "deadline_s": 6.0}
        given = replace(subject(tmp_path, LOADS), **asked)
        with Ledger.open(tmp_path / "ledger.db") as ledger:
            record = run_recorded(ledger, Listens(), given, Occasion(), nobody)
    assert "deadline" in record.judgement.cause
    assert "Loading model" in told(record, "canary plain")
