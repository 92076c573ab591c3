"""A recorded launch plays back as it was, on a clock that the test moves."""

from pathlib import Path

import pytest
from replaying import TRACES, recorded, trace_of

from shakedown.core import Exit, Host, Launch, Missing
from shakedown.errors import HostProblem
from shakedown.host.replay import ReplayHost, Trace

H01 = TRACES / "H01-nnodes2-master-alone"


def test_readings_are_those_of_the_moment():
    host: Host = ReplayHost(Trace.read(H01))
    assert isinstance(host, ReplayHost)
    assert host.read_log(host.run, 0) == (b"", 0)
    (leader,) = host.processes(host.run)
    assert leader.pid == host.run.leader.pid
    host.advance(10.0)
    text, offset = host.read_log(host.run, 0)
    assert b"non-default args" in text
    assert host.read_log(host.run, offset) == (b"", offset)
    host.advance(40.0)
    names = [sample.name for sample in host.processes(host.run)]
    assert names == ["python", "python", "VLLM::EngineCor", "VLLM::Worker"]
    assert host.clock_s() == host.run.started_s + 50.0


def test_stacks_appear_when_they_were_taken():
    host = ReplayHost(Trace.read(H01))
    host.advance(40.0)
    assert isinstance(host.stacks(22864), Missing)
    host.advance(5.0)
    dump = host.stacks(22864)
    assert dump.threads[0].name == "MainThread"
    assert dump.threads[0].frames[0].function == "_create_c10d_store"
    assert dump.threads[0].frames[0].line == 199
    assert isinstance(host.stacks(22864, native=True), Missing)


def test_the_exit_is_known_from_its_moment_on():
    host = ReplayHost(Trace.read(H01, exit=Exit(code=3, signal=None), ended_s=20.0))
    host.advance(19.9)
    assert host.exit_of(host.run) is None
    host.advance(0.1)
    assert host.exit_of(host.run) == Exit(code=3, signal=None)


def test_what_was_not_recorded_is_missing_and_acting_is_refused():
    host = ReplayHost(Trace.read(H01))
    assert isinstance(host.socket_bytes((1,)), Missing)
    assert isinstance(host.gpu_use((1,)), Missing)
    assert host.listener(8000) is None
    with pytest.raises(HostProblem, match="cannot start a launch"):
        host.start(Launch(argv=("true",), env={}, cwd=Path()), Path())
    with pytest.raises(HostProblem):
        host.end(host.run, grace_s=1.0)


def test_every_recording_reads_and_all_are_small():
    for row in recorded():
        trace = trace_of(row)
        assert trace.samples, row["id"]
        assert trace.seconds > 5
    assert sum(path.stat().st_size for path in TRACES.iterdir()) < 1_500_000
