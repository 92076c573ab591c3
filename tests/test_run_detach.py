"""`run --detach`: watched, judged and ended by a process that no terminal holds."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from conftest import Said, Shakedown
from stand_ins import begin, eventually, running, stand_in, supervisors, words_of

pytestmark = pytest.mark.slow


class Scene:
    """One stand-in by its name, launched in the background with a ledger of its own."""

    def __init__(self, folder: Path, port: int, name: str, shakedown: Shakedown) -> None:
        self.folder, self.name, self.port = folder, name, port
        self.ledger, self.runs = folder / "ledger.db", folder / "runs"
        self.shakedown = shakedown

    def detach(self, *options: str, **env: str) -> Said:
        launch = stand_in(self.name, self.port)
        return self.shakedown("run", "--detach", *options, launch=launch, env=env)

    def watchers(self) -> list[psutil.Process]:
        """Also those of a launch that was refused: they carry the name on their command line."""
        found = [process for process in psutil.process_iter() if "--detach" in words_of(process)]
        return [process for process in found if self.name in words_of(process)]

    def state(self, trial: str) -> str:
        return str(self.shakedown("show", trial).document["state"])

    def nothing_left(self) -> bool:
        return not (running(self.name) or supervisors(self.runs) or self.watchers())


@pytest.fixture
def scene(tmp_path: Path, port: int, request: pytest.FixtureRequest, shakedown: Shakedown) -> Iterator[Scene]:
    scene = Scene(tmp_path, port, f"{request.node.name}-{port}", shakedown)
    yield scene
    for process in (*scene.watchers(), *supervisors(scene.runs), *running(scene.name)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_it_returns_before_the_verdict_and_the_watcher_closes_the_record(scene: Scene) -> None:
    said = scene.detach(STAND_IN_LOAD_S="2")
    trial = said.document["trial"]
    assert said.code == 0
    assert said.document == {
        "schema": "shakedown/1",
        "command": "run",
        "verdict": None,
        "trial": trial,
        "id": trial,
        "state": "open",
    }
    assert running(scene.name)
    assert scene.state(trial) == "open"
    (watcher,) = scene.watchers()
    assert (os.getsid(watcher.pid), watcher.terminal()) == (watcher.pid, None)

    assert eventually(lambda: scene.nothing_left(), within_s=40)
    shown = scene.shakedown("show", trial).document
    assert (shown["state"], shown["verdict"], shown["kept_running"]) == ("finished", "serves", False)


def test_following_ends_with_the_verdict_and_the_exit_code_of_the_run(scene: Scene) -> None:
    trial = scene.detach(STAND_IN_LOAD_S="6", STAND_IN_FAULT="crash:").document["trial"]
    said = scene.shakedown("show", trial, "--follow")
    assert (said.code, said.document["verdict"], said.document["state"]) == (1, "crashed", "finished")
    assert said.document["command"] == "show"
    assert "running" in said.stderr
    assert eventually(scene.nothing_left, within_s=5)
    assert scene.shakedown("show", trial, "--follow").code == 1
    assert scene.shakedown("show", trial).code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_of_the_looking_leaves_the_run_alone(scene: Scene, number: int) -> None:
    trial = scene.detach(STAND_IN_LOAD_S="60").document["trial"]
    words = ("show", trial, "--follow", "--ledger", str(scene.ledger))
    process = begin(scene.folder, *words, env=os.environ)
    assert process.stderr is not None
    assert "running" in process.stderr.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "goes on" in err
    assert scene.state(trial) == "open"
    assert running(scene.name)

    said = scene.shakedown("stop", trial, "--dry-run")
    assert (said.code, scene.state(trial)) == (0, "open")
    said = scene.shakedown("stop", trial)
    assert (said.code, said.document["trials"][0]["left"]) == (0, [])
    assert eventually(scene.nothing_left, within_s=2)
    assert scene.state(trial) == "interrupted"
    assert scene.shakedown("show", trial, "--follow").code == 125


def test_kept_it_stays_until_it_is_stopped(scene: Scene) -> None:
    trial = scene.detach("--keep").document["trial"]
    said = scene.shakedown("show", trial, "--follow")
    assert (said.code, said.document["kept_running"]) == (0, True)
    assert eventually(lambda: not scene.watchers(), within_s=5)
    assert running(scene.name)
    assert scene.shakedown("stop", trial).code == 0
    assert scene.nothing_left()


def test_a_kill_of_the_watcher_leaves_the_launch_and_stop_ends_it(scene: Scene) -> None:
    trial = scene.detach(STAND_IN_LOAD_S="60").document["trial"]
    (watcher,) = scene.watchers()
    watcher.kill()
    assert eventually(lambda: not scene.watchers(), within_s=5)
    time.sleep(1.0)
    assert len(running(scene.name)) == 2
    assert scene.state(trial) == "interrupted"
    assert scene.shakedown("show", trial, "--follow").code == 125
    assert scene.shakedown("stop", trial).code == 0
    assert scene.nothing_left()


def test_a_terminal_that_closes_ends_nothing(scene: Scene) -> None:
    words = ("run", "--detach", "--ledger", str(scene.ledger), "--", *stand_in(scene.name, scene.port))
    argv = [sys.executable, "-m", "shakedown", *words]
    leader, terminal = pty.openpty()
    process = subprocess.Popen(
        argv,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        cwd=scene.folder,
        env={**os.environ, "STAND_IN_LOAD_S": "60"},
    )
    os.close(terminal)
    assert process.wait(timeout=30) == 0
    os.close(leader)
    time.sleep(0.5)
    assert len(running(scene.name)) == 2
    (entry,) = scene.shakedown("runs").document["runs"]
    assert entry["state"] == "open"
    assert scene.shakedown("stop", entry["id"]).code == 0
    assert eventually(scene.nothing_left, within_s=2)


def test_what_forbids_the_launch_is_said_at_once(scene: Scene, tmp_path: Path) -> None:
    said = scene.shakedown("run", "--detach", launch=[str(tmp_path / "missing")])
    assert (said.code, "no such program" in said.document["error"]) == (2, True)
    said = scene.detach("--dry-run")
    assert (said.code, "dry_run" in said.document) == (0, True)
    with held_port(scene.port):
        said = scene.detach()
    assert (said.code, said.document["verdict"], said.document["state"]) == (125, "undecided", "finished")
    assert eventually(scene.nothing_left, within_s=2)


def test_a_verdict_that_the_ledger_does_not_take_is_kept_beside_the_log(scene: Scene) -> None:
    trial = scene.detach(STAND_IN_LOAD_S="1", STAND_IN_FAULT="crash:").document["trial"]
    with contextlib.closing(sqlite3.connect(scene.ledger, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert eventually(scene.nothing_left, within_s=40)
    errors = scene.runs / trial / "watcher.err"
    assert "not recorded: the launch crashed" in errors.read_text()
    assert errors.stat().st_mode & 0o777 == 0o600
    assert scene.state(trial) == "interrupted"


@contextlib.contextmanager
def held_port(port: int) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", port)):
        yield
