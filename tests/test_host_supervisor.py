"""The supervisor when a part of it fails: no healthy server dies of that, and none is left alone."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_runs import is_alive, launch_of, wait_for

from shakedown.core import Launch, Run
from shakedown.errors import HostProblem
from shakedown.host import cgroup, launching, procfs
from shakedown.host.local import LocalHost
from shakedown.host.shm import ShmWatch
from shakedown.host.state import RunState, read_state, write_state

# Put before the supervisor's own first words: `broken(place, name)` makes a part of it fail from its second
# use on, `broken(place, name, 1)` once, with its first; whoever reads its errors counts the "planted" ones.
PLANT = """
import sys; sys.path.append(sys.argv[1])
def broken(place, name, only=0):
    real, uses = getattr(place, name), []
    def part(*words, **named):
        uses.append(1)
        if len(uses) == only or (not only and len(uses) > 1):
            raise {error}("planted")
        return real(*words, **named)
    setattr(place, name, part)
from shakedown.host import cgroup, container, family, output, shm, supervisor
{plant}
"""


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch):
    def put(text: str, error: str = "FileNotFoundError") -> None:
        monkeypatch.setattr(launching, "_BOOT", PLANT.format(plant=text, error=error) + launching._BOOT)

    return put


@pytest.fixture
def flapping() -> Iterator[None]:
    """Somebody makes and removes folders in /dev/shm, as compilers and joblib do."""
    name = f"/dev/shm/shakedown-test-{os.getpid()}-flap"
    code = f"import os\nwhile True: os.mkdir({name!r}); os.rmdir({name!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        yield
        assert process.poll() is None
        process.kill()
    if os.path.isdir(name):
        os.rmdir(name)


def errors_of(run: Run) -> str:
    return (run.folder / "supervisor.err").read_text()


def test_a_folder_that_vanishes_while_shared_memory_is_listed_is_no_error(flapping: None) -> None:
    for _ in range(100):
        ShmWatch().sample([], now=True)


def test_a_group_that_vanishes_while_ours_is_removed_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server removes one of its own groups between our look and our turn to."""
    (tmp_path / "ours" / "b" / "c").mkdir(parents=True)
    (tmp_path / "ours" / "a").mkdir()
    real = os.rmdir

    def rmdir(path: str) -> None:
        if str(path).endswith("c"):
            real(path)
        real(path)

    monkeypatch.setattr(os, "rmdir", rmdir)
    cgroup.remove(tmp_path / "ours")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("shm.ShmWatch, 'sample'", "FileNotFoundError"),
        ("family.Family, 'look', 2", "OSError"),
        ("supervisor, 'drain'", "RecursionError"),
    ],
    ids=["shared memory", "processes", "output"],
)
def test_a_duty_that_fails_ends_no_healthy_server(plant, tmp_path: Path, part: str, error: str) -> None:
    plant(f"broken({part})", error)
    host = LocalHost()
    run = host.start(launch_of("proc_listen.py"), tmp_path / "run")
    try:
        wait_for(lambda: "planted" in errors_of(run))
        plant("")
        assert is_alive(run.supervisor)
        assert is_alive(run.leader)
        assert run.leader.pid in {sample.pid for sample in host.processes(run)}
    finally:
        ending = host.end(run, grace_s=15)
    assert (ending.left, ending.forced) == ((), False)
    assert errors_of(run).count(f"{error}: planted") == 1  # told once, however often it fails
    assert ending.problem == ("its log ends early: it could not be taken in" if "drain" in part else "")
    assert host.exit_of(run).signal == 15


def test_a_supervisor_that_fails_after_the_fork_leaves_no_server(plant, tmp_path: Path) -> None:
    plant("broken(supervisor, 'write_state', 1)", "ValueError")
    launch = Launch(argv=("sleep", "20"), env=dict(os.environ), cwd=tmp_path)
    with pytest.raises(HostProblem, match="the supervisor") as told:
        LocalHost().start(launch, tmp_path / "run")
    assert told.value.hints
    state = wait_for(lambda: read_state(tmp_path / "run"))
    assert state.leader[0] > 1
    assert not procfs.is_alive(*state.leader)
    assert (state.left, state.problem) == ([], "its supervisor failed: ValueError")


def test_a_state_that_finds_no_room_is_told_and_leaves_the_last_one(tmp_path: Path) -> None:
    """A limit of a file's size ends a write as a nearly full disk does: its first pages are taken."""
    state = RunState(boot_id=procfs.boot_id(), supervisor=(2, 1), started_s=0.0)
    write_state(tmp_path, state)
    state.owned = [(pid, 12345678) for pid in range(100_000, 100_250)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError):
            write_state(tmp_path, state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    kept = read_state(tmp_path)
    assert kept is not None
    assert kept.owned == []
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
