"""`stop --pid`: a tree that we did not start is shown, and ended only with --yes; nobody beside it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Shakedown
from host_runs import BAD_SERVERS, family_in, identity, is_alive, wait_for

from shakedown.core import Identity
from shakedown.errors import UsageError
from shakedown.host import foreign
from shakedown.host.felling import fell

Family = dict[str, Identity]


def start(folder: Path, *flags: str) -> tuple[subprocess.Popen[bytes], Family]:
    folder.mkdir()
    argv = [sys.executable, str(BAD_SERVERS / "proc_family.py"), str(folder), *flags]
    leader = subprocess.Popen(argv)
    return leader, family_in(folder)


def end(leader: subprocess.Popen[bytes], family: Family) -> None:
    for process in family.values():
        if is_alive(process):
            os.kill(process.pid, signal.SIGKILL)
    leader.wait()


@pytest.fixture
def bystander(tmp_path: Path) -> Iterator[Family]:
    """The same program, user and session; only its folder is another."""
    leader, family = start(tmp_path / "bystander")
    yield family
    assert all(is_alive(process) for process in family.values())
    end(leader, family)


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Family]:
    leader, family = start(tmp_path / "family", *getattr(request, "param", ()))
    yield family
    end(leader, family)


def test_nothing_is_ended_without_yes_and_all_of_it_is_shown(
    server: Family, bystander: Family, shakedown: Shakedown
) -> None:
    said = shakedown("stop", "--pid", str(server["leader"].pid))
    assert said.code == 2
    assert {each["pid"] for each in said.document["tree"]} == {
        server[role].pid for role in ("leader", "plain", "stopped")
    }
    first = said.document["tree"][0]
    assert first["pid"] == server["leader"].pid
    assert first["user"] == said.document["owner"] == foreign.user_name(os.geteuid())
    assert first["age_s"] >= 0
    assert "proc_family.py" in first["name"]
    assert all(is_alive(process) for process in server.values())
    assert shakedown("stop", "--pid", str(first["pid"]), "--yes", "--dry-run").code == 0
    assert all(is_alive(process) for process in server.values())


@pytest.mark.parametrize("server", [(), ("--deaf",)], indirect=True, ids=["listens", "deaf"])
def test_with_yes_the_tree_ends_and_the_bystander_and_whoever_fled_before_live(
    server: Family, bystander: Family, shakedown: Shakedown
) -> None:
    said = shakedown("stop", "--pid", str(server["leader"].pid), "--yes", "--grace", "1s")
    assert (said.code, said.document["ended"], said.document["left"]) == (0, 3, [])
    assert not any(is_alive(server[role]) for role in ("leader", "plain", "stopped"))
    assert is_alive(server["daemon"])  # no descendant any more when we looked
    again = shakedown("stop", "--pid", str(server["leader"].pid), "--yes")
    assert (again.code, again.document["ended"]) == (0, 0)
    assert "already dead" in again.document["said"]


def test_a_part_of_a_tree_ends_without_its_parent(server: Family, shakedown: Shakedown) -> None:
    said = shakedown("stop", "--pid", str(server["plain"].pid), "--yes")
    assert (said.code, said.document["ended"]) == (0, 1)
    assert is_alive(server["leader"])
    assert is_alive(server["stopped"])


def test_a_stopped_leader_is_woken_to_hear_that_it_should_go(server: Family) -> None:
    leader = server["leader"]
    os.kill(leader.pid, signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{leader.pid}/stat").read_text().split(") ")[1].startswith("T"))
    felled = fell(leader, users=[os.geteuid()], grace_s=15)
    assert not felled.forced
    assert felled.seconds < 15


def test_a_number_given_to_another_process_protects_it(server: Family) -> None:
    leader = server["leader"]
    before = Identity(pid=leader.pid, started_ticks=leader.started_ticks - 1)
    felled = fell(before, users=[os.geteuid()], grace_s=0)
    assert (felled.ended, felled.left) == (0, ())
    assert all(is_alive(process) for process in server.values())


def test_a_process_of_a_user_that_was_not_shown_lives(server: Family) -> None:
    felled = fell(server["leader"], users=[os.geteuid() + 1], grace_s=0)
    assert felled.ended == 0
    assert all(is_alive(process) for process in server.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act for two users")
@pytest.mark.parametrize("users", [[0], [0, 65534]], ids=["not shown", "shown"])
def test_a_process_group_is_not_killed_whole_with_a_user_in_it_that_was_not_shown(users: list[int]) -> None:
    """The root of the tree made the session, so the other user's process was started by it, in its group."""
    code = (
        "import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "other = subprocess.Popen(['sleep', '60'], user=65534)\n"
        "print(other.pid, flush=True); other.wait()"
    )
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    with leader, leader.stdout:  # type: ignore[union-attr]
        other = identity(int(leader.stdout.readline()))  # type: ignore[union-attr]
        try:
            wait_for(lambda: foreign.uid_of(other.pid) == 65534)
            felled = fell(identity(leader.pid), users=users, grace_s=0)
            assert (felled.ended, felled.left) == (len(users), ())
            assert leader.wait() == -signal.SIGKILL
            assert is_alive(other) == (65534 not in users)
        finally:
            if is_alive(other):
                os.kill(other.pid, signal.SIGKILL)


def test_children_forked_meanwhile_are_ended_too(bystander: Family) -> None:
    argv = [sys.executable, str(BAD_SERVERS / "proc_storm.py"), "3"]
    storm = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    with storm, storm.stdout:  # type: ignore[union-attr]
        assert storm.stdout
        assert storm.stdout.readline() == b"storming\n"
        root = foreign.find(storm.pid)
        assert root
        felled = fell(root.identity, users=[os.geteuid()], grace_s=0)
        assert felled.left == ()
        storm.wait()
    time.sleep(0.2)
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if is_in_session(pid, storm.pid)]


def is_in_session(place: Path, session: int) -> bool:
    try:
        fields = (place / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[3]) == session and fields[0] not in "ZX"


def test_neither_pid_1_nor_the_kernel_nor_ourselves_is_ended(shakedown: Shakedown) -> None:
    for pid in (1, os.getpid(), os.getppid()):
        said = shakedown("stop", "--pid", str(pid), "--yes")
        assert said.code == 2, said.document
        assert "never ended" in said.document["error"]
    with pytest.raises(UsageError):
        fell(Identity(pid=1, started_ticks=0), users=[0], grace_s=0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act for two users")
def test_another_users_process_is_refused_to_all_but_root(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"], user=65534)
    try:
        code = (
            "import os, sys; from shakedown.host.foreign import refuse_to_end;"
            "from shakedown.errors import UsageError; os.setuid(65533)\n"
            "try: refuse_to_end(int(sys.argv[1]))\nexcept UsageError as e: print(e.message)"
        )
        argv = [sys.executable, "-c", code, str(other.pid)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert "belongs to" in done.stdout
    finally:
        other.kill()
        other.wait()


def test_ports_and_shared_memory_are_shown_and_the_latter_left(shakedown: Shakedown, port: int) -> None:
    name = f"shakedown-test-{os.getpid()}-{time.monotonic_ns()}"
    makes = f"""
import mmap, os, socket, time
handle = os.open("/dev/shm/{name}", os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(handle, 4096)
view = mmap.mmap(handle, 4096)
server = socket.create_server(("127.0.0.1", {port}))
print("up", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", makes], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"up\n"
            shown = shakedown("stop", "--pid", str(process.pid)).document
            assert [(it["port"], it["address"]) for it in shown["ports"]] == [(port, "127.0.0.1")]
            assert shown["shm"] == [f"/dev/shm/{name}"]
            assert shakedown("stop", "--pid", str(process.pid), "--yes").code == 0
            assert Path("/dev/shm", name).exists()
        finally:
            process.kill()
            Path("/dev/shm", name).unlink()


def test_one_of_id_and_pid_is_needed(shakedown: Shakedown) -> None:
    assert shakedown("stop").code == 2
    assert shakedown("stop", "t-1", "--pid", "1").code == 2
