"""The far host itself: nouns that travel, words that give a shell, what goes wrong on the way."""

from __future__ import annotations

import http.client
import http.server
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from far_machines import container
from host_runs import wait_for
from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import Gap, Identity, Launch, Missing, ProcessSample, Run
from shakedown.errors import HostProblem, UsageError
from shakedown.host import files, foreign
from shakedown.host.procfs import ShmObject
from shakedown.host.remote import aliases, line, parcel
from shakedown.host.remote.client import RemoteHost
from shakedown.host.remote.codec import decode, encode
from shakedown.host.remote.logs import HomeLog
from shakedown.host.remote.streams import Stream
from shakedown.host.remote.wire import Frame, Wire
from shakedown.host.remote.words import by_way_of, over_ssh
from shakedown.host.segments import read_log

texts = st.text(max_size=20) | st.just("\udcff")
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.binary(max_size=9)
leaf = plain | texts.map(lambda text: Path("/") / text.replace("\0", ""))
things = st.deferred(
    lambda: (
        leaf
        | st.lists(things, max_size=3)
        | st.tuples(things, things)
        | st.dictionaries(st.integers() | texts, things, max_size=3)
    )
)


@given(things)
def test_whatever_a_host_says_arrives_as_it_was(thing):
    assert decode(encode(thing)) == thing
    assert type(decode(encode(thing))) is type(thing)


def test_nouns_arrive_as_they_were():
    sample = ProcessSample(
        pid=1, started_ticks=2, ppid=0, name="a\udc80", state="S", wchan="", cpu_s=0.1, children_cpu_s=0.0,
        rss_bytes=1, minor_faults=2, read_bytes=3, written_bytes=4, threads=5,
    )  # fmt: skip
    run = Run(
        folder=Path("/tmp/x"), supervisor=Identity(pid=1, started_ticks=2),
        leader=Identity(pid=3, started_ticks=4), started_s=1.5,
    )  # fmt: skip
    shm = ShmObject("/dev/shm/x", 1, 2)
    for noun in (sample, run, shm, (sample,), Missing(what="a", why="b"), {1: 2}, Gap(at_s=1.0, seconds=2.0)):
        assert decode(encode(noun)) == noun


@pytest.mark.parametrize(
    "text", [b'{"noun": "Popen", "of": {}}', b'{"path": 1, "x": 2}', b'{"odd": 1}', b"["]
)
def test_nothing_is_made_that_is_no_noun(text):
    with pytest.raises(ValueError):
        decode(text)


def test_words_are_read_by_no_shell():
    assert by_way_of("docker exec -i 'a b' --")[:-1] == ("docker", "exec", "-i", "a b", "--")
    assert over_ssh("me@box")[-2:] == ("me@box", "sh")
    for bad in ("", "-oProxyCommand=x", "a b"):
        with pytest.raises(UsageError):
            over_ssh(bad)
    for bad in ("", "docker 'x"):
        with pytest.raises(UsageError):
            by_way_of(bad)


def test_what_the_shell_reads_fits_a_terminal_and_holds_no_greeting():
    lines = parcel.first_words("python3").splitlines()
    assert max(map(len, lines)) < 4000
    assert parcel.GREETING not in b"\n".join(lines)
    assert parcel.NO_PYTHON not in b"\n".join(lines)
    assert len(parcel.parcel()) < 300_000


def test_secrets_of_the_machine_travel_as_aliases_only(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "s3cret-value-0123456789")
    hidden = aliases.hide_env(os.environ, aliases.OWN)
    assert "s3cret" not in str(hidden)
    assert hidden["PATH"] == os.environ["PATH"]
    assert aliases.reveal_env(hidden)["MY_API_KEY"] == "s3cret-value-0123456789"
    argv = ("vllm", "serve", "--api-key", "s3cret-value-0123456789", "--port=1")
    assert aliases.hide_argv(argv, "7") == (*argv[:3], "far-secret.7.#3.", "--port=1")
    with pytest.raises(HostProblem, match="cannot be read any more"):
        aliases.reveal("far-secret.env.NO_SUCH_NAME.")


@pytest.fixture
def inside(tmp_path):
    """A host in a fake container, and the words that lead there."""
    said: list[str] = []
    words = by_way_of(container(tmp_path / "box"))
    host = RemoteHost(words, "box", say=said.append, keeps={})
    yield host, tmp_path / "box" / "tmp", said
    host.close()
    assert list((tmp_path / "box" / "tmp").iterdir()) == []


def test_a_launch_gets_its_words_and_the_variables_of_that_machine(inside, tmp_path):
    host, _, _ = inside
    env, home = host.surroundings()
    assert env["INSIDE"] == "1"
    assert home == tmp_path / "box"
    odd = ('{"a b": "c\'d"}', "", "$HOME", "two\nlines", "ä")
    code = "import os, sys; print(sys.argv[1:], os.environ['INSIDE'], flush=True)"
    folder = tmp_path / "run"
    folder.mkdir()
    run = host.start(Launch(argv=(sys.executable, "-c", code, *odd), env=env, cwd=home), folder)
    exit_ = wait_for(lambda: host.exit_of(run))
    assert exit_.code == 0
    assert host.end(run, grace_s=0).left == ()
    assert (folder / "launch.log").read_text() == f"{list(odd)} 1\n"


def test_secrets_of_the_machine_never_cross(tmp_path, port, monkeypatch):
    """Neither as a variable, nor in a log, nor in what a program says; a request gets its key over there."""
    secret, crossed = "s3cret-value-0123456789", bytearray()
    receive = Wire.receive

    def overhear(wire: Wire) -> Frame:
        frame = receive(wire)
        crossed.extend(frame.body)
        return frame

    monkeypatch.setattr(Wire, "receive", overhear)
    words = by_way_of(container(tmp_path / "box", variables=f"VLLM_API_KEY={secret}"))
    host = RemoteHost(words, "box", say=print, keeps={})
    env, home = host.surroundings()
    code = (
        "import http.server, os\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        right = self.headers['Authorization'] == 'Bearer ' + os.environ['VLLM_API_KEY']\n"
        "        self.send_response(200 if right else 401); self.end_headers()\n"
        "print('key', os.environ['VLLM_API_KEY'], flush=True)\n"
        f"http.server.HTTPServer(('127.0.0.1', {port}), Handler).serve_forever()\n"
    )
    folder = tmp_path / "run"
    folder.mkdir()
    run = host.start(Launch(argv=(sys.executable, "-c", code), env=env, cwd=home), folder)
    wait_for(lambda: host.listener(port, run))
    asked = http.client.HTTPConnection(host.reach(f"http://127.0.0.1:{port}").split("/")[2], timeout=10)
    asked.request("GET", "/", headers={"Authorization": f"Bearer {env['VLLM_API_KEY']}"})
    assert asked.getresponse().status == 200
    asked.close()
    told = host.execute(("env",), env=env, cwd=home, deadline_s=10).stdout
    assert "VLLM_API_KEY=[redacted]" in told
    host.end(run, grace_s=0)
    host.close()
    assert "key [redacted]" in (folder / "launch.log").read_text()
    assert len(crossed) > 1000
    assert secret.encode() not in crossed


def test_the_secrets_of_a_foreign_process_are_lent_to_its_launch_there(inside):
    host, _, _ = inside
    secret = "s3cret-value-0123456789"
    words = [sys.executable, "-c", "import time; time.sleep(60)", "--api-key", secret, f"--hf-token={secret}"]
    server = subprocess.Popen(words, env={**os.environ, "MY_API_KEY": secret}, start_new_session=True)
    try:
        process = wait_for(
            lambda: (it := host.ask(foreign.find, server.pid)) and not isinstance(it.argv, Missing) and it
        )
        assert secret not in str(process.argv) + str(process.env)
        code = "import os, sys; print([len(w) for w in sys.argv[1:]], len(os.environ['MY_API_KEY']))"
        argv = (sys.executable, "-c", code, *process.argv[3:])
        done = host.execute(argv, env=process.env, cwd=Path("/"), deadline_s=20)
        assert done.stdout.strip() == f"[9, {len(secret)}, {len(words[-1])}] {len(secret)}"
    finally:
        server.kill()
        server.wait()
    with pytest.raises(HostProblem, match="cannot be read any more"):
        host.execute(argv, env=process.env, cwd=Path("/"), deadline_s=20)


def test_a_lost_line_loses_nothing_and_stops_the_clock(inside, tmp_path):
    host, _, said = inside
    env, home = host.surroundings()
    folder = tmp_path / "run"
    folder.mkdir()
    run = host.start(Launch(argv=("sleep", "100"), env=env, cwd=home), folder)
    before = host.clock_s()
    host._line._link._process.kill()
    wait_for(lambda: host._line._link.lost_s)
    stood = host.clock_s()
    time.sleep(0.2)
    assert host.clock_s() == stood
    assert len(host.gaps()) == 1
    (sample,) = host.processes(run)
    assert sample.pid == run.leader.pid
    assert before <= host.gaps()[0].at_s <= stood
    assert any("is lost" in text for text in said)
    assert any("again" in text for text in said)
    assert host.end(run, grace_s=0).left == ()


def test_a_start_whose_answer_was_lost_is_not_started_twice(inside, tmp_path):
    host, _, _ = inside
    env, home = host.surroundings()
    folder = tmp_path / "run"
    folder.mkdir()
    launch = Launch(argv=("sleep", "100"), env=env, cwd=home)
    run = host.start(launch, folder)
    assert host.start(launch, folder).leader == run.leader
    host.end(run, grace_s=0)


def test_a_run_that_nobody_comes_back_to_is_ended_there(tmp_path):
    words = by_way_of(container(tmp_path / "box"))
    host = RemoteHost(words, "box", say=lambda text: None, keeps={}, patience_s=1.0)
    env, home = host.surroundings()
    folder = tmp_path / "run"
    folder.mkdir()
    launch = Launch(argv=("sleep", "100"), env=env, cwd=home)
    run = host.start(launch, folder)
    kept = host.start(launch, tmp_path / "kept")
    host.disarm(kept)
    host._line._link.close()
    wait_for(lambda: foreign.find(run.leader.pid) is None)
    assert foreign.find(kept.leader.pid) is not None
    assert host.exit_of(run) is not None
    for each in (run, kept):
        assert host.end(each, grace_s=0).left == ()
    host.close()


def test_a_line_that_is_not_regained_is_told_and_the_run_is_ended_by_its_supervisor(tmp_path, monkeypatch):
    monkeypatch.setattr(line, "LAST_WORDS_S", 0.5)
    words = by_way_of(container(tmp_path / "box"))
    host = RemoteHost(words, "box", say=lambda text: None, keeps={}, patience_s=1.0)
    env, home = host.surroundings()
    folder = tmp_path / "run"
    folder.mkdir()
    run = host.start(Launch(argv=("sleep", "100"), env=env, cwd=home), folder)
    program = Path(words[0])
    program.rename(program.with_suffix(".away"))
    host._line._link._process.kill()
    with pytest.raises(HostProblem, match="lost and not regained") as told:
        host.processes(run)
    assert any("1 s after the loss" in hint for hint in told.value.hints)
    with pytest.raises(HostProblem, match="lost and not regained"):
        host.end(run, grace_s=0)
    wait_for(lambda: foreign.find(run.leader.pid) is None)
    program.with_suffix(".away").rename(program)
    assert host.end(run, grace_s=0).left == ()
    host.close()


def test_a_terminal_in_between_changes_no_byte(tmp_path):
    """As with `srun --pty`: what is sent is echoed, translated and cut in lines until the agent speaks."""
    spawn = shlex.join([sys.executable, "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))"])
    every = tmp_path / "bytes"
    every.write_bytes(bytes(range(256)) * 2000)
    host = RemoteHost(by_way_of(f"{spawn} {container(tmp_path / 'box')}"), "box", say=print, keeps={})
    assert host.ask(files.read_head, str(every), "", Path("/"), 1 << 20) == every.read_bytes()
    host.close()


def test_who_holds_a_lock_file_there_is_told(inside, tmp_path):
    host, _, _ = inside
    env, _ = host.surroundings()
    code = "import fcntl, sys, time; lock = open('a.lock', 'w'); fcntl.flock(lock, 2); time.sleep(100)"
    run = host.start(Launch(argv=("python3", "-c", code), env=env, cwd=tmp_path), tmp_path / "run")
    wait_for(lambda: run.leader.pid in {it.pid for it in host.lock_holders()})
    assert host.end(run, grace_s=0).left == ()


def test_errors_of_the_far_side_arrive_as_what_they_are(inside, tmp_path):
    host, _, _ = inside
    env, home = host.surroundings()
    with pytest.raises(UsageError, match="no program named 'nothing-such'"):
        host.start(Launch(argv=("nothing-such",), env=env, cwd=home), tmp_path / "run")
    with pytest.raises(HostProblem, match="No such file"):
        host.ask(files.copy_with, Path("/no/such"), tmp_path / "copy", "config.json", "{}")
    done = host.execute(("sleep", "9"), env=env, cwd=home, deadline_s=0.3)
    assert done.timed_out


def test_a_failure_over_there_that_nobody_thought_of_is_told_at_once(inside):
    host, _, _ = inside
    with pytest.raises(HostProblem, match="our agent there failed: IndexError"):
        host.call("execute", [], {}, Path("/"), "", 1.0, deadline_s=5.0)


def test_a_key_that_cannot_be_read_any_more_is_refused_by_the_server_not_met_with_silence(inside, port):
    host, _, _ = inside

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", port), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asked = http.client.HTTPConnection(host.reach(f"http://127.0.0.1:{port}").split("/")[2], timeout=10)
        asked.request("GET", "/", headers={"Authorization": f"Bearer {aliases.MARK}env.NO_SUCH_NAME."})
        assert asked.getresponse().status == 401
        asked.close()
        server.shutdown()


def test_a_tunnel_that_cannot_pass_on_what_it_is_told_breaks():
    def refuse(data: bytes) -> bytes:
        raise HostProblem("not to be passed on")

    ours, theirs = socket.socketpair()
    inbox, outbox = os.pipe()
    over = threading.Event()
    stream = Stream(Wire(inbox, outbox), 1, ours, over.set, refuse)
    stream.start()
    stream.feed(b"GET /")
    theirs.settimeout(10)
    assert theirs.recv(1) == b""
    assert over.wait(10)
    theirs.close()
    os.close(inbox)
    os.close(outbox)


def test_a_port_of_that_machine_is_reached_and_a_closed_one_breaks(inside, port):
    host, _, _ = inside
    server = http.server.HTTPServer(("127.0.0.1", port), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = host.reach(f"http://127.0.0.1:{port}/v1")
    assert url.endswith("/v1")
    asked = http.client.HTTPConnection(url.split("/")[2], timeout=10)
    asked.request("GET", "/")
    assert asked.getresponse().status == 200
    asked.close()
    server.shutdown()
    server.server_close()
    asked = http.client.HTTPConnection(url.split("/")[2], timeout=10)
    with pytest.raises(ConnectionError):
        asked.request("GET", "/") or asked.getresponse()
    asked.close()


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ({"python": "none"}, "there is no python3 on"),
        ({"python": "#!/bin/sh\nprintf 'SHAKEDOWN-%s 1 3 8\\n' AGENT; cat\n"}, "is 3.8; 3.10 or later"),
        ({"python": "#!/bin/sh\necho 'Segmentation fault' >&2; exit 139\n"}, "code 139.*Segmentation fault"),
    ],
)
def test_a_machine_without_a_python_for_us_is_told(tmp_path, inside, words):
    with pytest.raises(HostProblem, match=words) as told:
        RemoteHost(by_way_of(container(tmp_path / "box", **inside)), "box", say=print, keeps={})
    assert told.value.hints


def test_a_python_that_is_not_on_the_path_can_be_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SHAKEDOWN_FAR_PYTHON", os.path.realpath(sys.executable))
    host = RemoteHost(by_way_of(container(tmp_path / "box", python="none")), "box", say=print, keeps={})
    assert host.python() == os.path.realpath(sys.executable)
    host.close()


def test_words_that_lead_nowhere_are_told_with_what_they_said(tmp_path):
    words = by_way_of(container(tmp_path / "box").replace("-i C", "-i D"))
    with pytest.raises(HostProblem, match=r"ended with code 1 .*no such container: D"):
        RemoteHost(words, "box", say=print, keeps={})
    with pytest.raises(HostProblem, match="cannot be run: No such file"):
        RemoteHost(by_way_of(str(tmp_path / "nothing")), "box", say=print, keeps={})


def test_a_python_of_3_10_is_enough(tmp_path):
    """Ours, without the two names of the standard library that came with 3.11 and that our rooms import."""
    base = os.path.realpath(sys.executable)
    older = (
        "#!/bin/sh\nfor code; do :; done\n"
        f'exec {base} -I -S -X utf8 -c "import enum, typing; del enum.StrEnum, typing.Self\n$code"\n'
    )
    host = RemoteHost(by_way_of(container(tmp_path / "box", python=older)), "box", say=print, keeps={})
    assert host.ask(foreign.find, os.getpid()).identity.pid == os.getpid()
    host.close()


def test_noise_before_the_agent_speaks_is_passed_over(tmp_path):
    words = by_way_of(container(tmp_path / "box", noise="Welcome to box. $(date)"))
    RemoteHost(words, "box", say=print, keeps={}).close()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 kB, where we may mount one."""
    disk = tmp_path / "box" / "tmp"
    disk.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs to mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_there_is_told(small_disk, inside, tmp_path):
    host, _, _ = inside
    env, home = host.surroundings()
    (small_disk / "big").write_bytes(b"x" * (60 << 10))
    with pytest.raises(HostProblem, match="No space left on device"):
        host.start(Launch(argv=("sleep", "9"), env=env, cwd=home), tmp_path / "run")
    (small_disk / "big").unlink()
    host.call("take_away", host._line.base, "run")


def test_a_log_is_read_on_where_it_was_when_the_line_broke(inside, tmp_path):
    host, _, _ = inside
    log = tmp_path / "server.log"
    log.write_text("before\n")
    code = "import time\nfor n in range(200): print('line', n, flush=True); time.sleep(0.02)\ntime.sleep(60)"
    with log.open("ab") as out:
        server = subprocess.Popen([sys.executable, "-c", code], stdout=out, start_new_session=True)
    try:
        found = host.ask(foreign.find, server.pid)
        folder = tmp_path / "run"
        folder.mkdir()
        attached = host.attach_to(found.identity, folder, log=host.ask(foreign.log_of, server.pid))
        seen, offset = attached.tail, 0
        for _ in range(3):
            wait_for(lambda: host._line._link.lost_s is None)
            for _ in range(5):
                data, offset = attached.read_log(attached.run, offset)
                seen += data
                time.sleep(0.05)
            host._line._link._process.kill()
        while b"line 199\n" not in seen:
            data, offset = attached.read_log(attached.run, offset)
            seen += data
    finally:
        server.kill()
        server.wait()
    assert seen.decode() == log.read_text() == (folder / "launch.log").read_text()
    assert wait_for(lambda: attached.exit_of(attached.run)) is not None


def test_a_launch_is_watched_by_py_spy_that_comes_with_us(inside, tmp_path):
    host, _, _ = inside
    env, home = host.surroundings()
    folder = tmp_path / "run"
    folder.mkdir()
    argv = (sys.executable, "-c", "import time\ntime.sleep(100)")
    run = host.start(Launch(argv=argv, env=env, cwd=home), folder)
    dump = wait_for(lambda: d if not isinstance(d := host.stacks(run.leader.pid), Missing) else None)
    assert dump.threads
    host.end(run, grace_s=0)


def test_a_copy_that_cannot_be_written_holds_up_no_reading(tmp_path):
    log = HomeLog(tmp_path / "gone")
    log.add(b"one\n", 0, 4)
    log.add(b"two\n", 4, 8)
    assert log.offset == 8


def test_a_long_log_comes_home_with_how_it_began_and_how_it_ended(tmp_path):
    """Also where a second of ours goes on with what the first one copied."""
    line = b"line %05d\n"
    for number in range(2000):
        if number in (0, 300, 900):
            log = HomeLog(tmp_path, limit_bytes=8000)
            assert log.offset == number * 11
        log.add(line % number, log.offset, log.offset + 11)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 8000
    text, offset = b"", 0
    while (piece := read_log(tmp_path, offset))[0]:
        text, offset = text + piece[0], piece[1]
    assert text.startswith(line % 0 + line % 1)
    assert text.endswith(line % 1998 + line % 1999)
    assert b"bytes of log dropped" in text
    assert b"stayed" not in text


def test_a_log_that_finds_no_room_here_stays_there(inside, tmp_path):
    host, _, said = inside
    env, home = host.surroundings()
    launch = Launch(argv=("sh", "-c", "echo last words"), env=env, cwd=home)
    run = host.start(launch, tmp_path / "gone")  # there is no such folder here
    wait_for(lambda: host.exit_of(run))
    assert host.end(run, grace_s=0).left == ()
    (told,) = [text for text in said if "could not be copied" in text]
    there = Path(told.rpartition(" in ")[2])
    assert (there / "launch.log").read_bytes() == b"last words\n"
    host.call("take_away", there.parent, there.name)


def test_what_is_read_twice_is_written_once(tmp_path):
    log = HomeLog(tmp_path)
    log.add(b"one\n", 0, 4)
    log.add(b"one\n", 0, 4)
    log.add(b"two\n", 4, 8)
    assert (tmp_path / "launch.log").read_bytes() == b"one\ntwo\n"
