"""Ending a run: all of it, whatever it does, and nobody else."""

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from host_runs import BAD_SERVERS, family_in, is_alive, launch_of, wait_for

from shakedown.core import Exit, Missing
from shakedown.host import procfs
from shakedown.host.local import LocalHost
from shakedown.host.shm import ShmWatch, named_in

PROMPT_S = 10.0  # 1 s where nothing else runs; with the patience of a watched end it were 20 s


@pytest.fixture(params=[True, False], ids=["cgroup", "pidfds"])
def host(request):
    return LocalHost(cgroups=request.param)


@pytest.fixture
def places(tmp_path):
    (tmp_path / "family").mkdir()
    return tmp_path / "run", tmp_path / "family"


@pytest.fixture
def bystander(tmp_path):
    """A family of the same program, command line but for the folder, and user: not ours to end."""
    folder = tmp_path / "bystander"
    folder.mkdir()
    leader = subprocess.Popen([sys.executable, str(BAD_SERVERS / "proc_family.py"), str(folder)])
    family = family_in(folder)
    yield family
    assert all(is_alive(process) for process in family.values())
    for process in family.values():
        os.kill(process.pid, signal.SIGKILL)
    leader.wait()


def test_everything_goes_and_the_bystander_stays(host, places, bystander):
    run = host.start(launch_of("proc_family.py", places[1]), places[0])
    family = family_in(places[1])
    assert family["leader"] == run.leader
    ending = host.end(run, grace_s=0)
    assert not any(is_alive(process) for process in family.values())
    assert ending.left == ()
    assert not is_alive(run.supervisor)


def test_the_family_of_a_killed_leader_is_still_ours(host, places, bystander):
    run = host.start(launch_of("proc_family.py", places[1]), places[0])
    family = family_in(places[1])
    os.kill(run.leader.pid, signal.SIGKILL)
    ended = wait_for(lambda: host.exit_of(run))
    assert (ended.code, ended.signal) == (None, signal.SIGKILL)
    assert {sample.pid for sample in host.processes(run)} >= {family["plain"].pid, family["daemon"].pid}
    host.end(run, grace_s=0)
    assert not any(is_alive(process) for process in family.values())


def test_a_leader_that_leaves_is_recorded_and_what_it_left_is_ended(host, places):
    run = host.start(launch_of("proc_family.py", places[1], "--quit", 3), places[0])
    ended = wait_for(lambda: host.exit_of(run))
    assert (ended.code, ended.signal) == (3, None)
    left = [int((places[1] / role).read_text()) for role in ("plain", "stopped", "daemon")]
    assert all(procfs.read_stat(pid) for pid in left)
    ending = host.end(run, grace_s=5)
    assert not ending.forced  # the stopped one was woken to hear it
    assert not any((stat := procfs.read_stat(pid)) and not stat.is_dead for pid in left)


def test_who_does_not_listen_to_term_is_killed_after_the_grace(host, places, bystander):
    run = host.start(launch_of("proc_family.py", places[1], "--deaf"), places[0])
    family = family_in(places[1])
    ending = host.end(run, grace_s=0.3)
    assert ending.forced
    assert ending.seconds >= 0.3
    assert not any(is_alive(process) for process in family.values())


def test_a_server_that_goes_when_asked_is_not_killed(host, places):
    run = host.start(launch_of("proc_listen.py"), places[0])
    wait_for(lambda: b"port" in host.read_log(run, 0)[0])
    ending = host.end(run, grace_s=15)
    assert not ending.forced
    assert ending.seconds < 15
    assert host.exit_of(run).signal == signal.SIGTERM


def test_a_storm_of_forks_is_ended(host, places):
    run = host.start(launch_of("proc_storm.py", 4), places[0])
    wait_for(lambda: b"storming" in host.read_log(run, 0)[0])
    ending = host.end(run, grace_s=0)
    assert ending.left == ()
    session = run.leader.pid
    stats = filter(None, map(procfs.read_stat, procfs.list_pids()))
    assert [stat for stat in stats if stat.session == session and not stat.is_dead] == []


def test_a_killed_supervisor_leaves_nothing_unended(host, places, bystander):
    run = host.start(launch_of("proc_family.py", places[1], "--deaf"), places[0])
    family = family_in(places[1])
    wait_for(lambda: len(host.processes(run)) == 4)
    os.kill(run.supervisor.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(run.supervisor))
    assert isinstance(host.exit_of(run), Missing)
    assert is_alive(run.leader)
    host.end(run, grace_s=0)
    assert not any(is_alive(process) for process in family.values())
    assert isinstance(host.exit_of(run), Exit)


def test_ending_twice_is_fine(host, places):
    run = host.start(launch_of("proc_family.py", places[1]), places[0])
    family_in(places[1])
    first = host.end(run, grace_s=0)
    again = host.end(run, grace_s=0)
    assert (first.left, again.left) == ((), ())


def start_tool(places, mode, *arguments):
    argv = [sys.executable, str(BAD_SERVERS / "proc_tool.py"), str(places[0]), mode]
    program = [sys.executable, str(BAD_SERVERS / "proc_family.py"), str(places[1]), *arguments]
    tool = subprocess.Popen([*argv, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with tool.stdout:
        assert tool.stdout.readline() == b"started\n"
    return tool


def kill(tool):
    tool.kill()
    tool.stdin.close()
    tool.wait()


def test_the_run_of_a_killed_tool_is_ended(places, bystander):
    tool = start_tool(places, "plain")
    family = family_in(places[1])
    run = LocalHost().attach_run(places[0])
    kill(tool)
    wait_for(lambda: not any(is_alive(process) for process in (*family.values(), run.supervisor)))


def test_no_patience_is_left_once_the_tool_is_killed(places, bystander):
    tool = start_tool(places, "plain", "--deaf")
    family = family_in(places[1])
    kill(tool)
    wait_for(lambda: not any(is_alive(process) for process in family.values()), PROMPT_S)


def test_a_tool_killed_while_it_waits_for_the_end_takes_its_patience_along(places, bystander):
    tool = start_tool(places, "end", "--deaf")
    family = family_in(places[1])
    tool.stdin.write(b"\n")
    tool.stdin.flush()
    time.sleep(0.5)
    assert is_alive(family["leader"])  # asked, and deaf
    kill(tool)
    wait_for(lambda: not any(is_alive(process) for process in family.values()), PROMPT_S)


@pytest.mark.parametrize("mode", ["detach", "disarm"])
def test_a_run_let_go_of_outlives_the_tool_and_is_ended_from_its_folder(mode, places, bystander):
    tool = start_tool(places, mode, "--deaf")
    family = family_in(places[1])
    kill(tool)
    time.sleep(0.5)
    host = LocalHost()
    run = host.attach_run(places[0])
    assert all(is_alive(process) for process in (*family.values(), run.supervisor))
    ending = host.end(run, grace_s=0.1)
    assert ending.left == ()
    assert not any(is_alive(process) for process in (*family.values(), run.supervisor))


def test_a_run_let_go_of_needs_no_supervisor_once_everything_exited(places):
    host = LocalHost()
    run = host.start(launch_of("proc_family.py", places[1], "--quit", 0), places[0], detach=True)
    wait_for(lambda: host.exit_of(run))
    for role in ("plain", "stopped", "daemon"):
        os.kill(int((places[1] / role).read_text()), signal.SIGKILL)
    wait_for(lambda: not is_alive(run.supervisor))
    assert host.end(run, grace_s=0).left == ()


@pytest.fixture
def name():
    """Of things in /dev/shm, of which nothing stays."""
    name = f"shakedown-test-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    for path in Path("/dev/shm").iterdir():
        if name in path.name:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def left_of(name):
    return sorted(path for path in os.listdir("/dev/shm") if name in path)


def test_segments_of_the_run_are_swept_and_no_other_and_no_file(host, places, name):
    """A file that the run only opened or read may hold somebody's only copy."""
    Path(f"/dev/shm/{name}-foreign").touch()
    run = host.start(launch_of("proc_shm.py", name), places[0])
    wait_for(lambda: b"made" in host.read_log(run, 0)[0])
    ending = host.end(run, grace_s=0)
    assert ending.swept_shm == (f"/dev/shm/sem.{name}", f"/dev/shm/{name}-mapped")
    assert left_of(name) == [f"{name}-foreign", f"{name}-open", f"{name}-read"]


def test_what_the_run_put_into_a_folder_or_where_the_launch_says_is_kept(host, places, name):
    """Weights that were downloaded into a cache in /dev/shm."""
    paths = (f"/dev/shm/{name}/hub/model.safetensors", f"/dev/shm/{name}.gguf")
    run = host.start(launch_of("proc_shm.py", name, *paths), places[0])
    wait_for(lambda: b"made" in host.read_log(run, 0)[0])
    ending = host.end(run, grace_s=0)
    assert ending.swept_shm == (f"/dev/shm/sem.{name}", f"/dev/shm/{name}-mapped")
    assert all(os.path.exists(path) for path in paths)


def test_a_cache_in_the_very_folder_leaves_libraries_segments_ours(host, places, name):
    launch = launch_of("proc_shm.py", name)
    launch = replace(launch, env=launch.env | {"A_CACHE": "/dev/shm/"})
    run = host.start(launch, places[0])
    wait_for(lambda: b"made" in host.read_log(run, 0)[0])
    assert host.end(run, grace_s=0).swept_shm == (f"/dev/shm/sem.{name}",)


def test_what_a_launch_names_of_shared_memory_is_read_off_its_words():
    words = ["--dir=/dev/shm/a", '{"x": "/dev/shm/b/c"}', "/bin:/dev/shm//d:/x", "/dev/shm2/e", "shm"]
    assert named_in(words) == {"a", "b", "d"}
    assert named_in(["TMPDIR=/dev/shm"]) == named_in(["/dev/shm/"]) == {""}


def test_shared_memory_of_a_leader_that_was_killed_is_swept(host, places, name):
    run = host.start(launch_of("proc_shm.py", name), places[0])
    wait_for(lambda: len(json.loads((places[0] / "state.json").read_text())["shm"]) == 2)
    os.kill(run.leader.pid, signal.SIGKILL)
    wait_for(lambda: host.exit_of(run))
    assert host.end(run, grace_s=0).swept_shm == (f"/dev/shm/sem.{name}", f"/dev/shm/{name}-mapped")


def test_what_appears_after_a_look_is_found_by_the_next(name):
    path = f"/dev/shm/{name}"
    watch = ShmWatch()
    watch.sample([os.getpid()])
    with open(path, "w+b") as file:
        file.write(b"x")
        file.flush()
        with mmap.mmap(file.fileno(), 1):
            wait_for(lambda: watch.sample([os.getpid()]))
    assert path in {it.path for it in watch.seen}


def test_shared_memory_somebody_else_has_open_is_kept(host, places, name):
    run = host.start(launch_of("proc_shm.py", name), places[0])
    wait_for(lambda: b"made" in host.read_log(run, 0)[0])
    with open(f"/dev/shm/{name}-mapped"):
        assert host.end(run, grace_s=0).swept_shm == (f"/dev/shm/sem.{name}",)


def test_a_handle_of_another_boot_signals_nobody(places):
    host = LocalHost()
    run = host.start(launch_of("proc_family.py", places[1]), places[0])
    family = family_in(places[1])
    state = places[0] / "state.json"
    written = state.read_text()
    state.write_text(written.replace(procfs.boot_id(), "another-boot"))
    stranger = LocalHost()
    assert stranger.end(stranger.attach_run(places[0]), grace_s=0).left == ()
    assert all(is_alive(process) for process in family.values())
    state.write_text(written)
    host.end(run, grace_s=0)
