"""A launch that makes a container: the container is watched and ended by its ID, and no other one is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from container_engines import Engine, fake_docker
from host_runs import BAD_SERVERS, family_in, is_alive, wait_for

from shakedown.core import Identity, Launch, Missing
from shakedown.engines import endable
from shakedown.errors import UsageError
from shakedown.host import cgroup
from shakedown.host.local import LocalHost


@pytest.fixture
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with fake_docker(tmp_path, *getattr(request, "param", ())) as engine:
        yield engine


def family_command(folder: Path) -> tuple[str, ...]:
    program = (sys.executable, str(BAD_SERVERS / "proc_family.py"), str(folder))
    return ("docker", "run", "-it", "an/image:tag", *program)


@pytest.fixture
def bystander(engine: Engine, tmp_path: Path) -> Iterator[dict[str, Identity]]:
    """Another container of the same image and command; its client has gone."""
    (tmp_path / "bystander").mkdir()
    client = subprocess.Popen(
        family_command(tmp_path / "bystander"), env=engine.env, stdout=subprocess.DEVNULL
    )
    family = family_in(tmp_path / "bystander")
    client.kill()
    client.wait()
    yield family
    assert all(is_alive(process) for process in family.values())
    for process in family.values():
        os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def begin(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., object]]:
    """Starts a family in a container: (host, run, its processes)."""
    (tmp_path / "family").mkdir()
    host = LocalHost()
    runs = []

    def start() -> object:
        launch = Launch(argv=family_command(tmp_path / "family"), env=engine.env, cwd=tmp_path)
        runs.append(host.start(endable(launch, tmp_path / "run" / "container.id"), tmp_path / "run"))
        return host, runs[0], family_in(tmp_path / "family")

    yield start
    for run in runs:
        host.end(run, grace_s=0)


needs_groups = pytest.mark.skipif(
    (probe := cgroup.make(f"probe-{os.getpid()}")) is None, reason="cgroup v2 is not writable here"
)
if probe:
    cgroup.remove(probe)


@pytest.mark.parametrize("engine", [pytest.param(("--groups",), marks=needs_groups)], indirect=True)
def test_the_processes_of_a_container_are_seen_and_ended_and_no_others(engine, begin, bystander):
    host, run, family = begin()
    seen = wait_for(lambda: isinstance(found := host.processes(run), tuple) and len(found) > 3 and found)
    assert family["leader"].pid in {sample.pid for sample in seen}
    own = (run.folder / "container.id").read_text()
    ending = host.end(run, grace_s=0)
    assert ending.left == ()
    assert not any(is_alive(process) for process in family.values())
    assert set(engine.asked("rm")) == {own}
    assert not engine.asked("stop")


def test_a_container_whose_processes_are_not_seen_is_ended_all_the_same(engine, begin, bystander):
    host, run, family = begin()
    assert isinstance(host.processes(run), Missing)
    assert host.end(run, grace_s=0).left == ()
    assert not is_alive(family["leader"])


def test_a_container_is_asked_before_it_is_removed(engine, begin, bystander):
    host, run, family = begin()
    ending = host.end(run, grace_s=10)
    assert (ending.left, ending.forced) == ((), False)
    assert engine.asked("stop") == engine.asked("rm")[:1]
    assert not is_alive(family["leader"])


def test_a_killed_client_leaves_no_container(engine, begin, bystander):
    host, run, family = begin()
    os.kill(run.leader.pid, signal.SIGKILL)
    wait_for(lambda: host.exit_of(run))
    assert is_alive(family["leader"])  # as with the real one
    host.end(run, grace_s=0)
    assert not is_alive(family["leader"])


def test_a_killed_supervisor_leaves_no_container(engine, begin, bystander, monkeypatch):
    host, run, family = begin()
    os.kill(run.supervisor.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(run.supervisor))
    for name in ("PATH", "FAKE_DOCKER"):
        monkeypatch.setenv(name, engine.env[name])
    assert host.end(run, grace_s=0).left == ()
    assert not is_alive(family["leader"])


@pytest.mark.parametrize("engine", [("--deaf-to", "rm")], indirect=True)
def test_a_container_that_stays_is_shouted(engine, begin, tmp_path):
    host, run, family = begin()
    own = (run.folder / "container.id").read_text()
    assert [sample.name for sample in host.end(run, grace_s=0).left] == [f"container {own[:12]}"]
    for process in filter(is_alive, family.values()):
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "command", ["docker exec -it c vllm serve X", "kubectl exec p -- vllm serve X", "docker -H ssh://x run i"]
)
def test_what_could_not_be_ended_is_not_started(command, tmp_path):
    launch = Launch(argv=tuple(command.split()), env={}, cwd=tmp_path)
    with pytest.raises(UsageError) as refused:
        endable(launch, tmp_path / "container.id")
    assert refused.value.hints
