"""Starting a run, reading it, and what is refused before anything starts."""

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from host_runs import BAD_SERVERS, is_alive, launch_of, wait_for

from shakedown.core import Launch, Missing
from shakedown.errors import HostProblem, UsageError
from shakedown.host import procfs
from shakedown.host.local import LocalHost


@pytest.fixture
def host():
    return LocalHost()


@pytest.fixture
def begin(host, tmp_path):
    """Start things that are surely ended."""
    runs = []

    def start(launch):
        runs.append(host.start(launch, tmp_path / f"run{len(runs)}"))
        return runs[-1]

    yield start
    for run in runs:
        host.end(run, grace_s=0)


def shell(script, **env):
    return Launch(argv=("sh", "-c", script), env={**os.environ, **env}, cwd=Path("/"))


def lines_of(host, run):
    return host.read_log(run, 0)[0].decode().splitlines()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("no-such-program-here", "serve"), "no-such-program-here"),
        (("./no-such-script",), "no-such-script"),
        (("/etc/passwd",), "not an executable"),
        ((), "no command"),
    ],
)
def test_a_program_that_cannot_run_is_refused_by_name(host, tmp_path, argv, said):
    with pytest.raises(UsageError, match=said) as refused:
        host.start(Launch(argv=argv, env=dict(os.environ), cwd=tmp_path), tmp_path / "run")
    assert refused.value.hints
    assert not (tmp_path / "run").exists()


def test_a_program_the_kernel_refuses_is_refused(host, tmp_path):
    script = tmp_path / "script"
    script.write_text("echo no first line\n")
    script.chmod(0o755)
    with pytest.raises(UsageError, match="Exec format error"):
        host.start(Launch(argv=("./script",), env=dict(os.environ), cwd=tmp_path), tmp_path / "run")


def test_a_missing_folder_to_run_in_is_refused(host, tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        host.start(Launch(argv=("true",), env=dict(os.environ), cwd=tmp_path / "nowhere"), tmp_path / "run")


def test_a_run_folder_that_is_a_file_or_was_used_is_refused(host, tmp_path):
    (tmp_path / "file").write_text("")
    launch = Launch(argv=("true",), env=dict(os.environ), cwd=tmp_path)
    with pytest.raises(HostProblem, match="file"):
        host.start(launch, tmp_path / "file")
    host.end(host.start(launch, tmp_path / "run"), grace_s=0)
    with pytest.raises(HostProblem, match="used before"):
        host.start(launch, tmp_path / "run")
    with pytest.raises(HostProblem, match="no run"):
        host.attach_run(tmp_path / "elsewhere")


def test_the_server_gets_the_users_surroundings_and_a_session_of_its_own(host, begin, tmp_path):
    script = (
        "import os, resource, signal; print(os.getcwd(), oct(os.umask(0)), os.getsid(0) == os.getpid(),"
        "resource.getrlimit(resource.RLIMIT_NOFILE), signal.getsignal(signal.SIGINT) is "
        "signal.default_int_handler, os.read(0, 1), os.environ['NAME'], sorted(os.listdir('/proc/self/fd')))"
    )
    env = {**os.environ, "NAME": "gr\u00fc\udcff"}
    before = os.umask(0o027)
    try:
        run = begin(Launch(argv=(sys.executable, "-c", script), env=env, cwd=tmp_path))
    finally:
        os.umask(before)
    (line,) = wait_for(lambda: lines_of(host, run))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert line.startswith(f"{tmp_path} 0o27 True {limits} True b'' ")
    assert line.endswith("['0', '1', '2', '3']")  # 3: the listing itself


def test_nothing_of_the_launch_stands_on_a_command_line_and_the_folder_is_private(host, begin, tmp_path):
    run = begin(shell("echo $A_TOKEN; sleep 60", A_TOKEN="canary-on-the-line"))
    wait_for(lambda: lines_of(host, run))
    for name in ("cmdline", "environ"):
        assert b"canary" not in Path(f"/proc/{run.supervisor.pid}/{name}").read_bytes()
    assert stat.S_IMODE(run.folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in run.folder.iterdir()}
    assert modes == dict.fromkeys(["launch.log", "state.json", "state.spare", "supervisor.err"], 0o600)


def test_a_broken_python_environment_of_the_launch_does_not_reach_the_supervisor(
    host, begin, tmp_path, monkeypatch
):
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "json.py"))
    run = begin(shell("echo $PYTHONPATH; sleep 60"))
    assert wait_for(lambda: lines_of(host, run)) == [str(tmp_path)]


def test_the_exit_is_recorded_and_the_log_ends_with_an_unfinished_line(host, begin):
    run = begin(shell("printf 'one\\ntwo'; exit 7"))
    assert wait_for(lambda: host.exit_of(run)).code == 7
    assert lines_of(host, run)[:1] == ["one"]
    wait_for(lambda: lines_of(host, run) == ["one", "two"])


def test_processes_are_named_by_their_title_and_show_no_secret(host, begin):
    argv = (sys.executable, "-c", "import time; time.sleep(60)", "--api-key", "canary-in-a-command-line")
    run = begin(Launch(argv=argv, env=dict(os.environ), cwd=Path("/")))
    # In the moment of its exec a process has a name and hardly any memory yet.
    (sample,) = wait_for(lambda: [each for each in host.processes(run) if each.rss_bytes > 1 << 20])
    assert (sample.pid, sample.started_ticks) == (run.leader.pid, run.leader.started_ticks)
    assert sample.name.startswith("python")
    assert "time.sleep" in sample.name
    assert "canary" not in sample.name
    assert sample.threads == 1


def test_a_port_is_ours_only_if_the_run_listens(host, begin):
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        run = begin(launch_of("proc_listen.py"))
        own_port = int(wait_for(lambda: lines_of(host, run))[0].split()[1])
        wait_for(lambda: host.processes(run))
        ours, theirs = host.listener(own_port, run), host.listener(port, run)
        assert (ours.ours, ours.pid) == (True, run.leader.pid)
        assert (theirs.ours, theirs.pid) == (False, os.getpid())
        assert theirs.program
        assert host.listener(own_port).ours is False
    assert host.listener(port) is None


def test_socket_bytes_grow_and_never_shrink(host, begin):
    run = begin(launch_of("proc_listen.py"))
    port = int(wait_for(lambda: lines_of(host, run))[0].split()[1])
    pid = run.leader.pid
    assert host.socket_bytes([pid]) == {pid: 0}
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"x" * 5000)
        received = 0
        while received < 5000:
            received += len(client.recv(65536))
        wait_for(lambda: host.socket_bytes([pid])[pid] >= 10000)
    assert host.socket_bytes([pid])[pid] >= 10000


def test_stacks_show_where_python_stands_and_say_why_not(host, begin):
    run = begin(launch_of("proc_listen.py"))
    wait_for(lambda: lines_of(host, run))
    dump = host.stacks(run.leader.pid)
    if isinstance(dump, Missing):
        assert "ermission" in dump.why
        return
    frame = dump.threads[0].frames[0]
    assert "accept" in frame.function
    assert Path(frame.file).name == "socket.py"
    other = begin(shell("sleep 60"))
    assert isinstance(host.stacks(other.leader.pid), Missing)
    assert "gone" in host.stacks(2**22 + 1).why


def test_no_gpu_is_a_reading_that_is_missing(host):
    reading = host.gpu_use([os.getpid()])
    assert isinstance(reading, Missing | tuple)


def test_a_short_program_is_run_fed_and_cut_off(host, tmp_path):
    env = dict(os.environ)
    done = host.execute(
        ("sh", "-c", "cat; echo err >&2; exit 3"), env=env, cwd=tmp_path, stdin="in", deadline_s=10
    )
    assert (done.code, done.stdout, done.stderr, done.timed_out) == (3, "in", "err\n", False)
    pid_file = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {pid_file}; echo before; wait"
    done = host.execute(("sh", "-c", script), env=env, cwd=tmp_path, deadline_s=0.5)
    assert (done.code, done.stdout, done.timed_out) == (None, "before\n", True)
    wait_for(lambda: not Path(f"/proc/{pid_file.read_text().strip()}/cwd").exists())
    done = host.execute(("sh", "-c", "sleep 60 & echo left"), env=env, cwd=tmp_path, deadline_s=30)
    assert (done.code, done.stdout) == (0, "left\n")
    assert done.seconds < 30
    assert host.execute(("no-such-thing",), env=env, cwd=tmp_path, deadline_s=1).code == 127
    flood = host.execute(("sh", "-c", "yes | head -c 9000000"), env=env, cwd=tmp_path, deadline_s=30)
    assert len(flood.stdout) <= 4 << 20
    told = {**env, "MY_TOKEN": "canary-in-execute"}
    assert (
        "canary"
        not in host.execute(("sh", "-c", "echo $MY_TOKEN"), env=told, cwd=tmp_path, deadline_s=9).stdout
    )


def test_ctrl_c_in_the_terminal_reaches_neither_supervisor_nor_server(tmp_path):
    argv = [sys.executable, str(BAD_SERVERS / "proc_tool.py"), str(tmp_path / "run"), "detach", "sleep", "60"]
    tool = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    with tool.stdout:
        assert tool.stdout.readline() == b"started\n"
    os.killpg(tool.pid, signal.SIGINT)
    tool.wait()
    host = LocalHost()
    run = host.attach_run(tmp_path / "run")
    assert is_alive(run.supervisor)
    assert is_alive(run.leader)
    host.end(run, grace_s=0)


def test_a_supervisor_that_is_no_child_of_its_starter_ends_the_run_as_any_other(tmp_path):
    host = LocalHost(orphaned=True)
    run = host.start(shell("sleep 60 & wait"), tmp_path / "run")
    assert procfs.read_stat(run.supervisor.pid).ppid != os.getpid()
    assert is_alive(run.supervisor)
    ending = host.end(run, grace_s=0)
    assert not ending.left
    assert not is_alive(run.leader)
    wait_for(lambda: not is_alive(run.supervisor))


def test_a_program_the_kernel_refuses_is_refused_there_too(tmp_path):
    script = tmp_path / "no-interpreter"
    script.write_text("no first line\n")
    script.chmod(0o700)
    launch = Launch(argv=(str(script),), env=dict(os.environ), cwd=tmp_path)
    with pytest.raises(UsageError, match="cannot run"):
        LocalHost(orphaned=True).start(launch, tmp_path / "run")
