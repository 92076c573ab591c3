"""What cannot work is told clearly, with the right exit code, and leaves nothing running."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

import psutil
import pytest
from stand_ins import STAND_IN, running, words_of

from shakedown.engines.flags import SENTINEL
from shakedown.errors import LedgerProblem
from shakedown.host.reach import free_port
from shakedown.ledger.place import default_path

ODD = Path(__file__).parent / "bad_servers" / "odd.py"
SHAKEDOWN = (sys.executable, "-m", "shakedown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder with a state of its own, in which commands are given."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STAND_IN")}
        return {
            **kept,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CACHE_HOME": str(self.folder / "c"),
        }

    def __call__(
        self, *words: str | bytes, env: Mapping[str, str] | None = None, **how: object
    ) -> subprocess.CompletedProcess[str]:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        how = {"timeout": 50, **streams, **how}
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [*SHAKEDOWN, *words],
            env={**self.env, **(env or {})},
            cwd=self.folder,
            text=True,
            errors="surrogateescape",
            **how,  # type: ignore[call-overload]
        )
        for stream in (done.stdout, done.stderr):
            assert "Traceback" not in (stream or ""), stream
        return done


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """After the test nothing that was started in it may live."""
    yield Place(folder=tmp_path)
    left = [words for process in psutil.process_iter() if str(tmp_path) in str(words := words_of(process))]
    assert left == []


@pytest.fixture
def odd(place: Place) -> Callable[..., tuple[str, ...]]:
    """A command whose processes carry the folder of the test in their command line."""
    (place.folder / "odd.py").symlink_to(ODD)

    def command(mode: str, *flags: str, port: int | None = None) -> tuple[str, ...]:
        program = str(place.folder / "odd.py")
        return (sys.executable, program, mode, "--port", str(port or free_port()), *flags)

    return command


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run",), "no command to launch"),
        (("isolate", "--"), "no command to launch"),
        (("run", "--", "--", "true"), 'no program is named "--"'),
        (("run", "--", "no-such-program"), "no program named 'no-such-program' on the PATH"),
        (("run", "--", "./no-such-file"), "no such program: "),
        (("run", "--", "/"), "not an executable program: /"),
        (("run", "--", b"\xff\xfe"), r"no program named '\udcff\udcfe'"),
        (("isolate", "--", "bash", "start.sh"), "`bash` is a shell script"),
        (("isolate", "--", "./start.sh"), "`./start.sh` is a shell script"),
        (("run", "--port", "99999", "--", "true"), "99999 is not in the range"),
        (("run", "--deadline", "0", "--", "true"), "'0' is not a duration"),
        (("run", "--deadline", "xyz", "--", "true"), "'xyz' is not a duration"),
        (("run", "--ready-log", "(", "--", "true"), "'(' is not a regular expression"),
        (("run", "--ready-url", "here", "--", "true"), "'here' is not a URL"),
        (("run", "--ready-url", "http://[::1", "--", "true"), "'http://[::1' is not a URL"),
        (("run", "--ready-url", "http://x:99999/", "--", "true"), "'http://x:99999/' is not a URL"),
        (("run", "--ledger", ".", "--", "true"), "'.' is a directory"),
        (("isolate", "--resume", "s-none"), "no search 's-none' in the ledger"),
        (("show", "t-none"), "no run 't-none' in the ledger"),
        (("report", "t-none"), "no run 't-none' in the ledger"),
        (("report", "a", "b", "c"), "3 IDs were given"),
        (("stop",), "say what to stop"),
        (("vanish",), "No such command 'vanish'"),
    ],
)
def test_a_command_that_cannot_be_used_is_told_in_one_line(
    place: Place, words: tuple[str | bytes, ...], told: str
) -> None:
    (place.folder / "start.sh").write_text("#!/bin/sh\n")
    done = place(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert not list(place.folder.glob("state/shakedown/runs/*/state.json"))


def test_usage_errors_are_json_for_those_who_asked_for_it(place: Place) -> None:
    for words in (("run", "--port", "x"), ("run", "--ready-log", "("), ("run",), ("show", "t-none")):
        done = place(*words, "--json")
        document = json.loads(done.stdout)
        assert (done.returncode, document["verdict"], document["command"]) == (2, None, words[0])
        assert document["error"] in done.stderr
    assert place("run", "--port", "x", "--", "true", "--json").stdout == ""  # theirs, not ours


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("run", "--json", "--bogus"), "run"),
        (("draft", "lint", "--json", "--bogus"), "draft lint"),
        (("--json", "runs"), ""),
        (("--json",), ""),
    ],
)
def test_a_usage_error_names_the_command_and_outlives_a_full_disk(
    place: Place, words: tuple[str, ...], command: str
) -> None:
    done = place(*words)
    assert (done.returncode, json.loads(done.stdout)["command"]) == (2, command)
    with open("/dev/full", "w") as full:
        assert place(*words, stdout=full).returncode == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_in_every_encoding(place: Place, encoding: str) -> None:
    name = "é🎉\udcff"
    done = place("run", "--json", "--dry-run", "--", "sh", name, env={"PYTHONIOENCODING": encoding})
    assert done.returncode == 0, done.stderr
    assert f"sh '{name}'" in json.loads(done.stdout)["dry_run"][0]


def test_a_removed_folder_is_no_place_to_launch_from(place: Place) -> None:
    (place.folder / "gone").mkdir()
    there = f"cd gone && rmdir ../gone && exec {sys.executable} -m shakedown"
    for words, code, told in (
        ("run -- true", 2, "was removed"),
        ("isolate -- true", 2, "was removed"),
        ("runs", 0, ""),
        ("runs --ledger here.db", 125, "cannot be opened: No such file"),
    ):
        (place.folder / "gone").mkdir(exist_ok=True)
        done = subprocess.run(
            ["sh", "-c", f"{there} {words}"], env=place.env, cwd=place.folder, capture_output=True, text=True
        )
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert told in done.stderr


@pytest.mark.parametrize("command", [("true",), ("sh", "start.sh"), ("sh", "-c", "sleep 100 & exit 0")])
def test_a_program_that_is_over_at_once_did_not_serve(place: Place, command: tuple[str, ...]) -> None:
    (place.folder / "start.sh").write_text("echo setting up\n")
    done = place("run", "--json", "--", *command)
    document = json.loads(done.stdout)
    assert (done.returncode, document["verdict"]) == (1, "crashed")
    assert "exited with code 0 although it should serve" in document["cause"]


def test_a_program_without_exceptions_is_quoted(place: Place) -> None:
    script = "echo loading; echo 'tool: cannot open /dev/x: Permission denied' >&2; echo bye; exit 3"
    document = json.loads(place("run", "--json", "--", "sh", "-c", script).stdout)
    assert document["verdict"] == "crashed"
    assert document["cause"].startswith("exited with code 3")
    assert document["cause"].endswith("tool: cannot open /dev/x: Permission denied")


SERVERS = {
    "forks away twice": ("daemon",),
    "never logs": ("serve",),
    "logs noise": ("binary",),
    "ends no line": ("unfinished",),
    "wants a key": ("serve", "--api-key", "sesame-sesame"),
    "has another name": ("serve", "--served-model-name", "other"),
    "lives under a path": ("serve", "--root-path", "/deep/root"),
    "thinks and says nothing": ("serve", "--fault", "reasoning"),
}


@pytest.mark.parametrize("flags", SERVERS.values(), ids=SERVERS)
def test_an_odd_server_that_serves_is_found_to_serve(place: Place, odd, flags: tuple[str, ...]) -> None:
    done = place("run", "--json", "--", *odd(*flags))
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "serves"), done.stdout
    log = next(place.folder.glob("state/shakedown/runs/*/launch.log")).read_bytes()
    assert not set(log) & (set(range(9)) | {0x1B})


def test_a_certificate_it_signed_itself_is_no_hindrance(place: Place, odd) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    made = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=x",
        "-days",
        "2",
        "-keyout",
        "key.pem",
        "-out",
        "only.pem",
    ]
    subprocess.run(["openssl", *made], cwd=place.folder, check=True, capture_output=True)
    both = (place.folder / "key.pem").read_text() + (place.folder / "only.pem").read_text()
    (place.folder / "both.pem").write_text(both)
    done = place("run", "--json", "--", *odd("serve", "--ssl-certfile", "both.pem"))
    assert json.loads(done.stdout)["verdict"] == "serves", done.stdout


@pytest.mark.parametrize(("flag", "told"), [("no_api", "404"), ("strict_key", "401")])
def test_a_server_that_cannot_be_asked_is_undecided_and_says_so(
    place: Place, odd, flag: str, told: str
) -> None:
    flags = ("--fault", flag) if flag == "no_api" else ("--hidden-key", "sesame-sesame")
    done = place("run", "--json", "--", *odd("serve", *flags))
    document = json.loads(done.stdout)
    assert (done.returncode, document["verdict"]) == (125, "undecided")
    assert told in document["cause"]
    if flag == "no_api":
        for page in ("/v1/chat/completions answers", "/v1/completions answers", "/v1/models", "/health"):
            assert page in document["cause"]
        assert "--ready-url" in document["next"][0]


@pytest.mark.slow
def test_a_server_that_listens_elsewhere_is_asked_there(place: Place, odd) -> None:
    command = odd("elsewhere")
    document = json.loads(place("run", "--json", "--", *command).stdout)
    found = next(it["text"] for it in document["evidence"] if it["kind"] == "found")
    assert document["verdict"] == "serves"
    assert f"not at 127.0.0.1:{command[4]}" in found


@pytest.mark.slow
def test_a_server_that_listens_on_several_other_ports_is_undecided_and_says_where(place: Place, odd) -> None:
    command = odd("anywhere")
    document = json.loads(place("run", "--json", "--", *command).stdout)
    assert document["verdict"] == "undecided"
    assert "its log says that it is ready, but nothing of it listens" in document["cause"]
    assert f"127.0.0.1:{command[4]}" in document["cause"]
    assert "it listens on ports" in document["cause"]
    assert "--port" in document["next"][0]


@pytest.mark.slow
def test_a_flood_of_log_is_kept_in_bounds(place: Place, odd) -> None:
    done = place("run", "--json", "--", *odd("flood"))
    assert json.loads(done.stdout)["verdict"] == "serves", done.stdout
    kept = sum(path.stat().st_size for path in place.folder.glob("state/shakedown/runs/*/launch.log*"))
    assert 1 << 20 < kept < 80 << 20


def test_a_held_port_is_nobodys_fault_and_its_holder_is_named(place: Place, odd) -> None:
    port = free_port()
    holder = subprocess.Popen([sys.executable, str(ODD), "serve", "--port", str(port)])
    try:
        for _ in range(100):
            if any(each.laddr.port == port for each in psutil.Process(holder.pid).net_connections()):
                break
            time.sleep(0.1)
        for command in ("run", "isolate"):
            done = place(command, "--json", "--", *odd("serve", port=port))
            assert done.returncode == 125
            assert f"port {port} is already held by " in done.stdout
            assert f"(pid {holder.pid})" in done.stdout
        assert holder.poll() is None
    finally:
        holder.kill()
        holder.wait()


def test_an_expression_that_takes_for_ever_is_refused_once_it_does(place: Place) -> None:
    script = f"echo {'a' * 60}!; exec sleep 60"
    done = place("run", "--ready-log", "(a+)+$", "--port", str(free_port()), "--", "sh", "-c", script)
    assert done.returncode == 2
    assert "--ready-log '(a+)+$' takes over 1 s on a line of the log" in done.stderr


def test_what_is_printed_to_run_it_again_does_the_same(place: Place) -> None:
    given = ("--engine", "generic", "--port", str(free_port()), "--ready-log", "is up", "--deadline", "20s")
    ledger = ("--ledger", str(place.folder / "l.db"))
    first = json.loads(place("run", "--json", *ledger, *given, "--", "sh", "-c", "exit 3").stdout)
    shown = place("show", first["trial"], *ledger).stdout
    again = shown.partition("again:")[2].replace("\\\n", " ").replace("shakedown run", "command run")
    words = shlex.split(again)
    at = words.index("run")
    assert words[at - 1] == "command"
    second = json.loads(place(words[at], "--json", *words[at + 1 :]).stdout)
    listed = json.loads(place("runs", "--json", *ledger).stdout)["runs"]
    assert [entry["id"] for entry in listed] == [second["trial"], first["trial"]]
    assert (second["facts"], second["argv"]) == (first["facts"], first["argv"])
    assert second["facts"]["options"] == shlex.join(given)
    (step,) = second["next"]
    assert step == f"shakedown isolate {shlex.join((*given[:-2], *ledger))} -- CMD, with the same CMD"


@pytest.mark.slow
def test_a_command_without_factors_is_isolated_to_its_base(place: Place) -> None:
    done = place("isolate", "--json", "--", "sh", "-c", "exit 3")
    assert done.returncode == 2  # a shell: what it starts cannot be seen
    (place.folder / "broken").write_text("#!/usr/bin/env python3\nraise SystemExit('no such device')\n")
    (place.folder / "broken").chmod(0o755)
    done = place("isolate", "--json", "--", "./broken")
    document = json.loads(done.stdout)
    assert (done.returncode, document["cause"]["kind"], document["causes"][0]["factors"]) == (1, "base", [])
    finished = document["search"]
    again = place("isolate", "--json", "--resume", finished)
    assert json.loads(again.stdout)["launches"] == document["launches"]  # all known, none repeated
    wrong = place("isolate", "--resume", document["trials"][0]["id"])
    assert wrong.returncode == 2
    assert "no search" in wrong.stderr


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"}])
def test_bytes_that_are_no_text_are_survived_in_any_locale(place: Place, locale: dict[str, str]) -> None:
    script = b"echo \xff\xfe \xc3\xa4 $BAD; exit 3"
    env = {**locale, "BAD": b"\xff\xfe".decode(errors="surrogateescape"), "PYTHONUTF8": "0"}
    done = place("run", "--", "sh", "-c", script, env=env)
    assert done.returncode == 1, done.stderr
    found = re.search(r"recorded +(\S+)", done.stdout)
    assert found, done.stdout
    for words in (
        ("runs",),
        ("show", found[1]),
        ("report", found[1]),
        ("report", found[1], "--format", "html"),
    ):
        assert place(*words, env=env).returncode == 0


# --- streams, terminals, interrupts


@pytest.mark.slow
def test_closed_streams_change_no_exit_code(place: Place) -> None:
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        script = f"exec {sys.executable} -m shakedown run -- true {closed}"
        done = subprocess.run(["sh", "-c", script], env=place.env, cwd=place.folder, capture_output=True)
        assert done.returncode == 1, (closed, done.stderr)
        assert b"Traceback" not in done.stderr


def test_a_reader_that_went_away_changes_no_exit_code(place: Place) -> None:
    place("run", "--", "true")
    commands = {
        ("runs", "--json"): 0,
        ("run", "--", "true"): 1,
        ("--help",): 0,
        ("run", "--help"): 0,
        ("--version",): 0,
    }
    for words, code in commands.items():
        assert unread(place, "stdout", *words) == (code, ""), words
    assert unread(place, "stderr", "run", "--port", "x") == (2, "")


def unread(place: Place, stream: str, *words: str) -> tuple[int, str]:
    """The exit code of a command whose stream nobody reads, and what it says of that."""
    reader, writer = os.pipe()
    os.close(reader)
    done = place(*words, **{stream: writer})
    os.close(writer)
    said = [line for line in (done.stderr or "").splitlines() if "Pipe" in line or "Exception" in line]
    return done.returncode, "".join(said)


def test_an_answer_that_cannot_be_written_is_an_error(place: Place) -> None:
    with open("/dev/full", "w") as full:
        done = place("runs", stdout=full)
    assert done.returncode == 125
    assert "could not be written to standard output: No space left on device" in done.stderr


def in_terminal(
    place: Place, *words: str, columns: int, env: Mapping[str, str], keys: tuple[float, ...] = ()
) -> tuple[int, str]:
    """Exit code and all that a terminal of so many columns got; Ctrl-C at `keys` seconds after the start."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.folder)
        os.execve(sys.executable, [*SHAKEDOWN, *words], {**place.env, "TERM": "xterm", **env})
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    seen, waiting, pressed = b"", list(keys), 0.0
    while True:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # how a terminal tells that nobody is left
                break
            seen += data
        if b"Loading weights" in seen or b"stand-in with" in seen:
            pressed = pressed or time.monotonic()
        if waiting and pressed and time.monotonic() - pressed >= waiting[0]:
            waiting.pop(0)
            os.write(terminal, b"\x03")
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen.decode()


def stand_in(place: Place) -> tuple[str, ...]:
    link = place.folder / "stand_in.py"
    link.symlink_to(STAND_IN)
    return (sys.executable, str(link), "--model", "m", "--port", str(free_port()))


def test_a_narrow_terminal_shows_the_answer_whole_and_nothing_in_between(place: Place) -> None:
    code, seen = in_terminal(place, "run", "--", *stand_in(place), columns=20, env={"STAND_IN_LOAD_S": "1"})
    assert code == 0
    assert "Traceback" not in seen
    _, _, answer = seen.rpartition("\x1b[2K")  # the last that the live view does is to clear itself
    assert answer.startswith("serves after ")
    assert re.fullmatch(r"[^\x1b]*recorded +\S+\r\n", answer)
    assert str(place.folder / "state") in answer  # not broken by us: it can be copied


@pytest.mark.parametrize("keys", [(0.5,), (0.5, 0.6, 0.7, 0.8, 0.9)], ids=["once", "five times"])
def test_ctrl_c_cleans_up_and_says_so(place: Place, keys: tuple[float, ...]) -> None:
    env = {"STAND_IN_LOAD_S": "30", "STAND_IN_DEAF": "1"}
    code, seen = in_terminal(place, "run", "--", *stand_in(place), columns=80, env=env, keys=keys)
    assert code == 130
    assert "shakedown: interrupted; what was started has been ended" in seen
    assert "Traceback" not in seen


# --- places for the ledger


@pytest.fixture
def small_disk(place: Place) -> Iterator[Path]:
    """1 MiB, mounted; only root can."""
    disk = place.folder / "state"
    disk.mkdir()
    options = ["-o", "size=1m,mode=700"]
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", disk]).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def fill(disk: Path) -> None:
    with open(disk / "filler", "ab", buffering=0) as filler:
        try:
            while True:
                filler.write(b"\0" * 4096)
        except OSError:
            return


def test_a_full_disk_is_called_full_and_space_helps(place: Place, small_disk: Path) -> None:
    assert place("run", "--", "true").returncode == 1
    fill(small_disk)
    for words in (("run", "--", "true"), ("isolate", "--", "true"), ("runs",)):
        done = place(*words)
        assert done.returncode == 125
        assert "the disk is full" in done.stderr
    (small_disk / "filler").unlink()
    assert len(place("runs").stdout.splitlines()) == 1


@pytest.mark.slow
def test_a_log_that_fills_the_disk_costs_no_verdict(place: Place, small_disk: Path, odd) -> None:
    done = place("run", "--json", "--", *odd("flood"))
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "serves")


@pytest.mark.slow
def test_a_verdict_that_cannot_be_recorded_is_told_all_the_same(place: Place, small_disk: Path, odd) -> None:
    words = [*SHAKEDOWN, "run", "--", *odd("serve")]
    launch = subprocess.Popen(words, env=place.env, cwd=place.folder, stderr=subprocess.PIPE, text=True)
    while not list(small_disk.glob("shakedown/runs/*/state.json")) and launch.poll() is None:
        time.sleep(0.01)
    with kept_full(small_disk):
        _, err = launch.communicate(timeout=50)
    assert (launch.returncode, "Traceback" in err) == (125, False), err
    assert "the disk is full" in err
    assert "not recorded: the launch serves in serving" in err


@contextlib.contextmanager
def kept_full(disk: Path) -> Iterator[None]:
    """What is freed is taken at once."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(0.001):
            fill(disk)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_disk_that_fills_in_mid_search_costs_no_finished_launch(place: Place, small_disk: Path) -> None:
    command = (*stand_in(place), "--alpha", "--beta", "3")
    env = {**place.env, "STAND_IN_FAULT": "crash:--alpha", "STAND_IN_LOAD_S": "1"}
    words = [*SHAKEDOWN, "isolate", "--json", "--", *command]
    search = subprocess.Popen(
        words, env=env, cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (finished := trials(place, "closed")) and search.poll() is None:
        time.sleep(0.1)
    fill(small_disk)
    out, err = search.communicate(timeout=120)
    assert (search.returncode, "Traceback" in err) == (125, False), err
    assert "full" in json.loads(out or "{}").get("error", err) or "No space left" in err
    assert not running("m")
    (small_disk / "filler").unlink()
    (entry,) = (
        run for run in json.loads(place("runs", "--json").stdout)["runs"] if run["id"].startswith("s")
    )
    again = json.loads(place("isolate", "--json", "--resume", entry["id"], env=env, timeout=120).stdout)
    assert [factor["name"] for factor in again["cause"]["factors"]] == ["--alpha"]
    assert set(finished) <= {trial["id"] for trial in again["trials"] if trial["state"] == "finished"}


def trials(place: Place, event: str) -> list[str]:
    """IDs in the ledger's events of a kind; [] while there is no ledger."""
    ledger = place.folder / "state" / "shakedown" / "ledger.db"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as connection:
            query = "SELECT entry_id FROM event WHERE kind = ? AND entry_id LIKE 't%'"
            return [row[0] for row in connection.execute(query, (event,))]
    except sqlite3.OperationalError:
        return []


def test_a_read_only_place_is_told(place: Place, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for words in (("run", "--", "true"), ("runs", "--ledger", "state/l.db")):
        done = place(*words)
        assert done.returncode == 125
        assert "Read-only file system" in done.stderr
        assert "use another with --ledger PATH" in done.stderr


def test_a_user_without_home_and_name_is_told_where_to_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_path().is_absolute()  # of the user's entry in the password file
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    with pytest.raises(LedgerProblem, match="no place for the ledger"):
        default_path()


def test_a_hang_up_without_nohup_cleans_up(place: Place, odd) -> None:
    running = subprocess.Popen(
        [*SHAKEDOWN, "run", "--", *odd("quiet")],
        env=place.env, cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 20
    while not list(place.folder.glob("state/shakedown/runs/*/state.json")) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)
    running.send_signal(signal.SIGHUP)
    _, stderr = running.communicate(timeout=30)
    assert (running.returncode, "Traceback" in stderr) == (130, False)


# --- what nobody foresaw, and what we may not see


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_what_nobody_foresaw_is_no_answer_and_tells_no_secret(place: Place, flags: tuple[str, ...]) -> None:
    secret = "hf_" + "q" * 34
    job = "raise ZeroDivisionError(f\"no half of {os.environ['HF_TOKEN']}\")"
    script = f"import os\nfrom shakedown.cli.finish import finish\ndef job():\n    {job}\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}finish('run', {bool(flags)}, job)"],
        env={**place.env, "HF_TOKEN": secret}, cwd=place.folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 125  # Python's own 1 would read "bad, and decided"
    assert "a fault of Shakedown's own: ZeroDivisionError: no half of" in done.stderr
    assert "Traceback" in done.stderr
    assert secret not in done.stdout + done.stderr
    if flags:
        document = json.loads(done.stdout)
        assert (document["command"], document["verdict"]) == ("run", None)
        assert "ZeroDivisionError: no half of" in document["error"]
        assert "(in shakedown/cli/finish.py, line " in document["error"]
    else:
        assert done.stdout == ""


def test_a_row_of_an_unknown_kind_is_an_unreadable_row(place: Place) -> None:
    place("run", "--", "true")
    ledger = place.folder / "state" / "shakedown" / "ledger.db"
    with contextlib.closing(sqlite3.connect(ledger)) as connection, connection:
        row = "INSERT INTO event (entry_id, kind, at, body) SELECT id, 'vanished', '', '{}' FROM entry"
        connection.execute(row)
    done = place("runs", "--json")
    assert done.returncode == 125
    assert "holds an unreadable row: event.kind: 'vanished'" in json.loads(done.stdout)["error"]


@pytest.fixture
def engine(place: Place) -> tuple[str, ...]:
    """A command of vLLM whose interpreter knows its flags and nothing else."""
    python = place.folder / "python3"
    table = {"version": "9.9", "flags": [{"names": ["--model"], "values": "one"}]}
    said = f"{SENTINEL}\n{json.dumps(table)}"
    python.write_text(f"#!/bin/sh\n[ \"$1\" = - ] && cat > /dev/null && echo '{said}'\n")
    python.chmod(0o755)
    return (str(python), "-m", "vllm.entrypoints.openai.api_server", "--model")


@pytest.mark.parametrize("words", [("run", "--dry-run"), ("isolate", "--dry-run"), ("check",)])
def test_a_model_of_a_name_too_long_for_a_file_is_no_folder(
    place: Place, engine: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = place(*words, "--json", "--", *engine, "m" * 300)
    assert "error" not in json.loads(done.stdout), done.stderr


def test_a_cache_that_cannot_be_written_costs_no_answer(place: Place, engine: tuple[str, ...]) -> None:
    done = place("isolate", "--dry-run", "--", *engine, "m", env={"XDG_CACHE_HOME": "/dev/null"})
    assert done.returncode == 0, done.stderr
    assert "could not be read live" not in done.stderr
