"""What a kill, an interrupt, a second search or a bad ledger does to a search: no finished launch is lost or
repeated, nothing is left running, and a bystander that looks the same lives on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Shakedown
from stand_ins import begin, eventually, running, stand_in, supervisors, words_of

from shakedown.host.reach import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FAULT = "crash:--alpha"
FLAGS = ("--alpha", "--beta", "3")
SEED = 20260729
PROMPT_S = 10.0  # a killed tool's run is gone in 1 s; 2.1 s was the longest of 100 on a starved machine


class Scene:
    """One ledger, one command under one name, and a bystander of that very name, command and user."""

    def __init__(self, folder: Path, port: int, name: str) -> None:
        self.folder, self.port, self.name = folder, port, name
        self.ledger = folder / "ledger.db"
        self.runs = folder / "runs"
        self.env = {**os.environ, "STAND_IN_FAULT": FAULT, "STAND_IN_STARTS": str(folder / "starts")}
        self.bystanders: set[int] = set()

    def begin(self, *words: str, port: int | None = None, **env: str) -> subprocess.Popen[str]:
        launch = stand_in(self.name, port or self.port, *FLAGS)
        options = ("--ledger", str(self.ledger), "--json", "--", *launch)
        return begin(self.folder, *words, *options, env={**self.env, **env})

    def resume(self, search: str) -> dict[str, Any]:
        words = ("isolate", "--resume", search, "--ledger", str(self.ledger), "--json")
        process = begin(self.folder, *words, env=self.env)
        out, err = process.communicate(timeout=120)
        assert process.returncode in (0, 3), err
        return dict(json.loads(out))

    def searches(self) -> list[str]:
        return self.rows("SELECT id FROM entry WHERE kind = 'search' ORDER BY seq")

    def finished(self) -> list[str]:
        return self.rows("SELECT entry_id FROM event WHERE kind = 'closed' ORDER BY seq")

    def rows(self, query: str) -> list[str]:
        if not self.ledger.exists():
            return []
        with contextlib.closing(sqlite3.connect(self.ledger)) as connection:
            try:
                return [row[0] for row in connection.execute(query)]
            except sqlite3.OperationalError:  # not even made
                return []

    def ours(self) -> list[psutil.Process]:
        return [process for process in running(self.name) if process.pid not in self.bystanders]

    def nothing_left(self, within_s: float) -> bool:
        return eventually(lambda: not self.ours() and not supervisors(self.runs), within_s=within_s)


@pytest.fixture
def scene(tmp_path: Path, port: int, request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(tmp_path, port, f"{request.node.name}-{port}")
    command = stand_in(scene.name, free_port(), *FLAGS)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as bystander:
        try:
            assert eventually(lambda: len(running(scene.name)) == 2, within_s=20)
            scene.bystanders = {process.pid for process in running(scene.name)}
            yield scene
            assert scene.bystanders <= {process.pid for process in running(scene.name)}
        finally:
            bystander.kill()


@pytest.mark.timeout(900)
def test_killed_at_twenty_moments_it_loses_and_repeats_nothing(scene: Scene) -> None:
    moments = random.Random(SEED)
    search, done, struck = "", [], 0
    process = scene.begin("isolate")
    while struck < 20:
        time.sleep(moments.uniform(0.2, 5.0))
        over = process.poll() is not None
        process.kill()
        process.communicate()
        struck += 1
        assert scene.nothing_left(within_s=PROMPT_S), [words_of(each) for each in scene.ours()]
        assert scene.finished()[: len(done)] == done
        done = scene.finished()
        found = scene.searches()
        if over or not found:  # it came to its end, or had not begun: another one
            process = scene.begin("isolate")
            continue
        search = found[-1]
        resume = ("isolate", "--resume", search, "--ledger", str(scene.ledger), "--json")
        process = begin(scene.folder, *resume, env=scene.env)
    process.kill()
    process.communicate()
    assert scene.nothing_left(within_s=PROMPT_S)

    for search in scene.searches():
        found = scene.resume(search)
        assert [f["name"] for f in found["cause"]["factors"]] == ["--alpha"]
        assert all(check["value"] for check in found["certificate"].values())
        finished = [trial for trial in found["trials"] if trial["state"] == "finished"]
        asked = Counter((tuple(trial["kept"]), trial["repeat"]) for trial in finished)
        assert max(asked.values()) == 1, "a finished launch was repeated"
        assert {trial["state"] for trial in found["trials"]} <= {"finished", "interrupted"}
    assert set(done) <= set(scene.finished())
    assert scene.nothing_left(within_s=5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("command", ["run", "isolate"])
def test_an_interrupt_cleans_up_first(scene: Scene, number: int, times: int, command: str) -> None:
    process = scene.begin(command, STAND_IN_LOAD_S="60", STAND_IN_DEAF="1")
    assert eventually(lambda: len(scene.ours()) == 2, within_s=30)
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.05)
    out, err = process.communicate(timeout=60)
    assert scene.nothing_left(within_s=0), err
    assert process.returncode == 130, err
    assert json.loads(out)["error"].startswith("interrupted")
    assert "Traceback" not in err
    if command == "isolate":
        assert f"--resume {scene.searches()[-1]}" in json.loads(out)["hints"][0]


def test_an_interrupt_in_mid_start_leaves_nothing_once_it_has_exited(scene: Scene) -> None:
    moments = random.Random(SEED)
    for begun in range(1, 11):
        process = scene.begin("run", STAND_IN_LOAD_S="60", STAND_IN_DEAF="1")
        assert eventually(lambda n=begun: len(list(scene.runs.glob("*/supervisor.err"))) == n, within_s=30)
        time.sleep(moments.uniform(0.0, 0.3))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode in (130, -signal.SIGINT), err
        assert scene.nothing_left(within_s=0), err


def test_an_interrupt_ends_the_patience_with_a_healthy_server_but_not_the_clean_up(scene: Scene) -> None:
    process = scene.begin("run", STAND_IN_FAULT="", STAND_IN_DEAF="1")
    assert eventually(lambda: scene.ours(), within_s=30)
    leader = scene.ours()[0]
    assert eventually(lambda: not leader.is_running(), within_s=60)  # asked to end; its worker is deaf
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert scene.nothing_left(within_s=0)


def test_an_interrupted_search_goes_on_where_it_was(scene: Scene) -> None:
    process = scene.begin("isolate")
    assert eventually(lambda: len(scene.finished()) == 1 and scene.ours(), within_s=60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    before = scene.finished()
    found = scene.resume(scene.searches()[-1])
    assert [f["name"] for f in found["cause"]["factors"]] == ["--alpha"]
    assert set(before) <= {trial["id"] for trial in found["trials"] if trial["state"] == "finished"}


def test_variables_of_today_do_not_leak_into_a_search_of_yesterday(scene: Scene) -> None:
    process = scene.begin("isolate", STAND_IN_FAULT="crash:--alpha;crash:VLLM_NEW")
    assert eventually(lambda: len(scene.finished()) == 1 and scene.ours(), within_s=60)
    process.kill()
    process.communicate()
    scene.env.update(STAND_IN_FAULT="crash:--alpha;crash:VLLM_NEW", VLLM_NEW="1")
    found = scene.resume(scene.searches()[-1])
    assert [f["name"] for f in found["cause"]["factors"]] == ["--alpha"]


def test_a_search_still_going_on_is_neither_resumed_nor_stopped(scene: Scene, shakedown: Shakedown) -> None:
    process = scene.begin("isolate", STAND_IN_LOAD_S="60")
    assert eventually(lambda: len(scene.ours()) == 2, within_s=30)
    said = shakedown("isolate", "--resume", scene.searches()[-1])
    assert said.code == 2
    assert "still going on" in said.document["error"]
    said = shakedown("stop", scene.searches()[-1])
    assert (said.code, "still watched" in said.document["trials"][0]["said"]) == (1, True)
    assert len(scene.ours()) == 2
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_two_searches_share_a_ledger(scene: Scene) -> None:
    both = [scene.begin("isolate"), scene.begin("isolate", port=free_port())]
    for process in both:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        found = json.loads(out)
        assert [f["name"] for f in found["cause"]["factors"]] == ["--alpha"]
        assert found["launches"] == len(found["trials"])
    assert scene.nothing_left(within_s=2)


def refused(scene: Scene) -> str:
    """What `run` and `isolate` say of this ledger; they must start nothing."""
    said = ""
    for command in ("run", "isolate"):
        process = scene.begin(command)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 125, err
        assert "Traceback" not in err
        document = json.loads(out)
        assert (document["command"], document["verdict"]) == (command, None)
        assert document["hints"]
        said = document["error"]
        assert str(scene.ledger) in said
    starts = (scene.folder / "starts").read_text() if (scene.folder / "starts").exists() else ""
    assert not starts
    return said


def test_a_ledger_held_by_another_writer_starts_nothing(scene: Scene) -> None:
    with contextlib.closing(sqlite3.connect(scene.ledger, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        scene.ledger.chmod(0o600)
        assert "another process has locked it" in refused(scene)


def test_a_corrupt_ledger_starts_nothing(scene: Scene) -> None:
    scene.ledger.write_bytes(b"no database, surely" * 1000)
    scene.ledger.chmod(0o600)
    assert "not an SQLite file" in refused(scene)


def test_a_ledger_of_a_newer_version_starts_nothing(scene: Scene, shakedown: Shakedown) -> None:
    assert shakedown("runs").code == 0
    with contextlib.closing(sqlite3.connect(scene.ledger)) as connection:
        connection.execute("PRAGMA user_version = 999")
        connection.commit()
    assert "newer" in refused(scene)


def test_a_ledger_locked_in_mid_search_ends_the_search_cleanly(scene: Scene) -> None:
    process = scene.begin("isolate", STAND_IN_LOAD_S="1")
    assert eventually(lambda: len(scene.ours()) == 2, within_s=30)
    with contextlib.closing(sqlite3.connect(scene.ledger, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        out, err = process.communicate(timeout=60)
    assert process.returncode == 125, err
    assert "locked" in json.loads(out)["error"]
    assert scene.nothing_left(within_s=2)
    found = scene.resume(scene.searches()[-1])
    assert [f["name"] for f in found["cause"]["factors"]] == ["--alpha"]


# --- launches that stay ----------------------------------------------------------------------------------


def test_a_kept_server_stays_until_it_is_stopped(scene: Scene, shakedown: Shakedown) -> None:
    process = scene.begin("run", "--keep", STAND_IN_FAULT="")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["kept_running"] is True
    assert len(scene.ours()) == 2
    assert len(supervisors(scene.runs)) == 1
    listed = shakedown("runs").document["runs"]
    assert [(entry["id"], entry["kept_running"]) for entry in listed] == [(found["trial"], True)]
    assert shakedown("stop", found["trial"], "--dry-run").code == 0
    assert len(scene.ours()) == 2

    said = shakedown("stop", found["trial"])
    assert said.code == 0
    assert said.document["trials"][0]["left"] == []
    assert scene.nothing_left(within_s=0)
    assert shakedown("runs").document["runs"][0]["kept_running"] is False
    again = shakedown("stop", found["trial"])
    assert (again.code, "nothing of it is running" in again.document["trials"][0]["said"]) == (0, True)


def test_what_does_not_serve_is_not_kept(scene: Scene) -> None:
    process = scene.begin("run", "--keep")
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert scene.nothing_left(within_s=0)


def test_a_kill_before_the_verdict_ends_what_was_to_be_kept(scene: Scene) -> None:
    process = scene.begin("run", "--keep", STAND_IN_FAULT="", STAND_IN_LOAD_S="60")
    assert eventually(lambda: len(scene.ours()) == 2, within_s=30)
    process.kill()
    process.communicate()
    assert scene.nothing_left(within_s=PROMPT_S)


def test_a_kill_after_the_verdict_leaves_it_running_and_stop_ends_it(
    scene: Scene, shakedown: Shakedown
) -> None:
    process = scene.begin("run", "--keep", STAND_IN_FAULT="")
    assert eventually(
        lambda: any(is_disarmed(state) for state in scene.runs.glob("*/state.json")), within_s=60
    )
    process.kill()
    process.communicate()
    time.sleep(1.0)
    assert len(scene.ours()) == 2
    (entry,) = shakedown("runs").document["runs"]
    assert shakedown("stop", entry["id"]).code == 0
    assert scene.nothing_left(within_s=0)


def is_disarmed(state: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return json.loads(state.read_text())["armed"] is False
    return False
