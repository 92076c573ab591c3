"""A search on a real local Ray cluster: nothing lost by a death, and nothing left."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from stand_ins import STAND_IN, begin, eventually, running, stand_in, supervisors, words_of

from shakedown.core import Launch
from shakedown.host.local import LocalHost
from shakedown.jobs.apart import apart_of
from shakedown.jobs.ray_cluster import Home
from shakedown.jobs.ray_task import Assignment, Returned, travelling, unpack, work
from shakedown.jobs.reading import read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.trials import subject_of
from shakedown.ledger import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FLAGS = ("--alpha", "--delta", "--eps", "5")
ON_RAY = ("--executor", "ray", "--workers", "2")


class Search:
    """One search on a cluster of its own, in the background."""

    def __init__(self, folder: Path, name: str, port: int, *options: str, **env: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.name = folder, name
        self.ledger = folder / "ledger.db"
        told = {**os.environ, "STAND_IN_FAULT": "crash:--delta", **env}
        launch = stand_in(name, port, *FLAGS)
        words = ("isolate", *options, "--ledger", str(self.ledger), "--json", "--", *launch)
        self.process: subprocess.Popen[str] = begin(folder, *words, env=told)

    def found(self) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=200)
        assert self.process.returncode == 0, err
        return dict(json.loads(out))

    def rows(self, query: str) -> list[str]:
        if not self.ledger.exists():
            return []
        with closing(sqlite3.connect(self.ledger)) as connection:
            try:
                return [row[0] for row in connection.execute(query)]
            except sqlite3.OperationalError:  # not even made
                return []

    def finished(self) -> list[str]:
        return self.rows("SELECT entry_id FROM event WHERE kind = 'closed' ORDER BY seq")

    def beside(self) -> set[str]:
        """The trials that were begun together with another."""
        records = map(json.loads, self.rows("SELECT record FROM entry WHERE kind = 'trial'"))
        return {record["id"] for record in records if "beside" in dict(record["facts"])}

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def at_work(self) -> list[psutil.Process]:
        """Ray workers of this very search that run a trial."""
        return [each for each in self.family() if words_of(each)[:1] == ["ray::work"]]

    def nothing_left(self, ray: list[psutil.Process], within_s: float) -> bool:
        def gone() -> bool:
            return (
                not running(self.name)
                and not supervisors(self.folder / "runs")
                and not any(map(words_of, ray))
            )

        return eventually(gone, within_s=within_s)


def blamed(found: dict[str, Any]) -> list[str]:
    return [factor["name"] for factor in found["cause"]["factors"]]


def test_a_worker_killed_in_the_middle_costs_one_launch_and_no_finished_one(
    tmp_path: Path, port: int
) -> None:
    name = f"ray-{port}"
    search = Search(tmp_path, name, port, *ON_RAY, STAND_IN_LOAD_S="1")
    assert eventually(lambda: len(search.at_work()) == 2 and running(name), within_s=90)
    ray = search.family()
    search.at_work()[0].kill()  # a worker of this cluster, which this test began
    found = search.found()
    assert blamed(found) == ["--delta"]
    assert all(check["value"] for check in found["certificate"].values())
    assert [trial["state"] for trial in found["trials"]].count("interrupted") == 1
    done = [trial for trial in found["trials"] if trial["state"] == "finished"]
    asked = Counter((tuple(trial["kept"]), trial["repeat"]) for trial in done)
    assert max(asked.values()) == 1
    assert {trial["id"] for trial in done} == set(search.finished())
    beside = search.beside()
    assert beside, "nothing ran at once"
    for check in found["certificate"].values():
        assert set(check["trials"]) - beside, "a proof that never ran alone"
    assert search.nothing_left(ray, within_s=0)


def test_a_killed_search_leaves_nothing_and_goes_on_locally(tmp_path: Path, port: int) -> None:
    name = f"ray-{port}"
    search = Search(tmp_path, name, port, *ON_RAY, STAND_IN_LOAD_S="2")
    assert eventually(lambda: len(running(name)) >= 4, within_s=90)
    ray = search.family()
    search.process.kill()
    search.process.communicate()
    assert search.nothing_left(ray, within_s=15), [words_of(each) for each in ray]
    before = search.finished()
    (record,) = search.rows("SELECT id FROM entry WHERE kind = 'search'")
    words = ("isolate", "--resume", record, "--ledger", str(search.ledger), "--json")
    env = {**os.environ, "STAND_IN_FAULT": "crash:--delta"}
    out, err = begin(tmp_path, *words, env=env).communicate(timeout=120)
    found = json.loads(out)
    assert blamed(found) == ["--delta"], err
    assert set(before) <= {trial["id"] for trial in found["trials"] if trial["state"] == "finished"}


def test_an_interrupt_ends_all_that_is_under_way(tmp_path: Path, port: int) -> None:
    name = f"ray-{port}"
    search = Search(tmp_path, name, port, *ON_RAY, STAND_IN_LOAD_S="60", STAND_IN_DEAF="1")
    assert eventually(lambda: len(running(name)) >= 4, within_s=90)
    ray = search.family()
    search.process.send_signal(signal.SIGINT)
    out, err = search.process.communicate(timeout=90)
    assert search.process.returncode == 130, err
    assert "--resume" in json.loads(out)["hints"][0]
    assert "Traceback" not in err
    assert search.nothing_left(ray, within_s=0)


def test_a_cluster_that_is_not_there_is_said(tmp_path: Path, port: int) -> None:
    search = Search(tmp_path, f"ray-{port}", port, *ON_RAY, "--ray-address", f"127.0.0.1:{port}")
    out, err = search.process.communicate(timeout=100)
    assert search.process.returncode == 125, err
    assert "no Ray cluster answers" in json.loads(out)["error"]


def test_launches_on_a_running_cluster_get_a_gpu_each_and_leave_it_running(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is told of two GPUs, which is all that its bookkeeping needs."""
    seen = tmp_path / "seen"
    server = tmp_path / "server.py"
    server.write_text(
        "import os, runpy, sys\n"
        f"print(os.environ['CUDA_VISIBLE_DEVICES'], file=open({str(seen)!r}, 'a'))\n"
        f"sys.path.insert(0, {str(STAND_IN.parent)!r})\n"
        f"runpy.run_path({str(STAND_IN)!r}, run_name='__main__')\n"
    )
    cluster = Home(2)
    cluster.launch = replace(cluster.launch, argv=(*cluster.launch.argv, "--num-gpus=2"))
    cluster.begin()
    try:
        for name, value in cluster.private.items():
            monkeypatch.setenv(name, value)
        options = ("--executor", "ray", "--ray-address", cluster.address, "--ledger", str(tmp_path / "l.db"))
        launch = (sys.executable, str(server), "--model", "x", "--port", str(port), "--alpha")
        for count, code in (("1", 3), ("3", 2)):
            words = ("isolate", *options, "--gpus-per-launch", count, "--json", "--", *launch)
            process = begin(tmp_path, *words, env={**os.environ, "STAND_IN_LOAD_S": "2"})
            out, err = process.communicate(timeout=90)
            assert process.returncode == code, err
        assert "no node of the Ray cluster has more than 2" in json.loads(out)["error"]
        with socket.create_connection(("127.0.0.1", cluster.port)):
            pass
    finally:
        cluster.end()
    assert sorted(seen.read_text().split())[:2] == ["0", "1"]


class Silent:
    def say(self, text: str) -> None: ...
    def progress(self, progress: object) -> None: ...


def test_a_trial_on_another_machine_sends_its_log_home(tmp_path: Path, port: int) -> None:
    """What travels is packed and unpacked as between nodes; the port asked for is held: it has its own."""
    launch = Launch(argv=stand_in(f"ray-{port}", port, "--alpha"), env=dict(os.environ), cwd=tmp_path)
    request = LaunchRequest(launch=launch)
    reading = read_request(request, LocalHost(), Silent(), live=False)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        subject = subject_of(reading, request, ledger, title="away", deadline_s=None)
    home = tmp_path / "home"
    assignment = Assignment(
        subject=travelling(subject),
        command=reading.command,
        folder=home,
        boot_id="of another machine",
        gpus=0,
        scratch=tmp_path,
        apart=apart_of(reading, ()),
        beside=1,
    )
    with socket.create_server(("127.0.0.1", port)):
        returned: Returned = pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(assignment)))))
    assert returned.result is not None, returned.refused
    assert returned.result.judgement.serves
    assert not home.exists()
    assert not list(tmp_path.glob("sd-*"))
    home.mkdir()
    unpack(returned.files, home)
    assert "state.json" in {path.name for path in home.iterdir()}
    assert any(b"Application startup" in path.read_bytes() for path in home.iterdir())
