"""Commands on another machine, over a real sshd on loopback: as they are here, and nothing left there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from far_machines import SSHD, Box, sshd
from stand_ins import begin, eventually, running, stand_in

from shakedown.host.reach import free_port
from shakedown.jobs.demo import two_node_recipe
from shakedown.provision import VLLM, prepare_engine, prepare_model

pytestmark = [
    pytest.mark.skipif(SSHD is None, reason="no sshd: apt-get install openssh-server"),
    pytest.mark.timeout(180),
    pytest.mark.slow,
]
SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with sshd(tmp_path_factory.mktemp("box")) as box:
        yield box


Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def logs(ledger: Path) -> str:
    return "".join(path.read_text() for path in (ledger.parent / "runs").rglob("launch.log"))


def connections(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ssh programs that a command of ours started."""
    try:
        return [it for it in psutil.Process(process.pid).children() if it.name() == "ssh"]
    except psutil.NoSuchProcess:
        return []


def test_a_server_is_run_judged_and_ended_there_and_its_log_comes_home(box, shakedown, ledger):
    port, json_flag = free_port(), '{"a b": "c\'d", "e": [1, "$HOME"]}'
    code = f"import os, sys; print('told', sys.argv[1:], os.environ['HF_TOKEN'], {SECRET!r})"
    said = shakedown("run", "--host", "box", launch=(sys.executable, "-c", code, json_flag), env=box.env)
    assert said.document["verdict"] == "crashed"
    assert said.document["facts"]["over_ssh"] == "box"
    assert f"told [{json_flag!r}] [redacted] [redacted]" in logs(ledger)
    said = shakedown("run", "--host", "box", launch=stand_in("far-run", port), env=box.env)
    assert said.code == 0, said.stderr
    assert said.document["verdict"] == "serves"
    assert "10 min" in said.stderr  # how long it goes on without us
    assert running("far-run") == []
    assert eventually(lambda: box.left() == [], within_s=10)
    assert SECRET not in ledger.read_bytes().decode(errors="replace") + logs(ledger) + said.stderr


def test_a_connection_cut_ten_times_changes_neither_verdict_nor_log(box, tmp_path, ledger):
    """The launch prints a numbered line every twentieth of a second until it is told to fail."""
    fail = tmp_path / "fail"
    code = (
        "import itertools, os, time\n"
        "for n in itertools.count():\n"
        "    print('line', n, flush=True); time.sleep(0.05)\n"
        f"    if os.path.exists({str(fail)!r}): raise RuntimeError(f'failed after line {{n}}')\n"
    )
    words = ["run", "--host", "box", "--ledger", str(ledger), "--json", "--", sys.executable, "-c", code]
    with (tmp_path / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "shakedown", *words],
            env={**os.environ, **box.env},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    said = (tmp_path / "stderr").read_text
    assert eventually(lambda: "line 0" in logs(ledger), within_s=60), said()
    for cut in range(1, 11):
        for connection in connections(process):
            connection.kill()
        assert eventually(lambda cut=cut: said().count("again after") == cut, within_s=60), said()
    fail.touch()
    out, _ = process.communicate(timeout=100)
    document = json.loads(out)
    assert document["verdict"] == "crashed", said()
    last = int(document["cause"].rpartition(" ")[2])
    lines = [line for line in logs(ledger).splitlines() if line.startswith("line")]
    assert lines == [f"line {n}" for n in range(last + 1)]
    assert sum(it["kind"] == "gap" for it in document["evidence"]) == 10
    assert eventually(lambda: box.left() == [], within_s=10)


def test_the_cause_is_isolated_there(box, shakedown):
    port = free_port()
    launch = stand_in("far-isolate", port, "--speculative-config", '{"k v": 1}', "--max-num-seqs", "8")
    launch = ("env", "STAND_IN_FAULT=crash:--speculative-config", *launch)
    said = shakedown("isolate", "--host", "box", launch=launch, env=box.env)
    assert said.code == 0, said.stderr
    assert [it["name"] for it in said.document["cause"]["factors"]] == ['--speculative-config {"k v": 1}']
    assert running("far-isolate") == []
    assert eventually(lambda: box.left() == [], within_s=10)


def test_a_running_server_of_that_machine_is_attached_to_and_stopped(box, shakedown, tmp_path, ledger):
    port = free_port()
    with (tmp_path / "server.log").open("wb") as log:
        argv = stand_in("far-attach", port)
        server = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    try:
        for where in (f"http://127.0.0.1:{port}", str(server.pid)):
            said = shakedown("attach", "--host", "box", where, env=box.env)
            assert said.document["verdict"] == "serves", said.stderr
            assert said.document["attached"]["url"] == f"http://127.0.0.1:{port}"
        shown = shakedown("stop", "--host", "box", "--pid", str(server.pid), env=box.env)
        assert shown.document["tree"][0]["pid"] == server.pid
        assert server.poll() is None
        ended = shakedown("stop", "--host", "box", "--pid", str(server.pid), "--yes", env=box.env)
        assert ended.document["left"] == []
        assert server.wait(10) is not None
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
    assert eventually(lambda: box.left() == [], within_s=10)


def test_what_was_kept_is_found_again_by_its_id_and_ended(box, shakedown):
    port = free_port()
    said = shakedown("run", "--host", "box", "--keep", launch=stand_in("far-kept", port), env=box.env)
    assert said.document["verdict"] == "serves", said.stderr
    assert running("far-kept") != []
    stopped = shakedown("stop", said.document["trial"], env=box.env)
    assert "ended" in stopped.document["trials"][0]["said"]
    assert running("far-kept") == []
    assert eventually(lambda: box.left() == [], within_s=10)


def test_an_interrupt_here_ends_the_run_there(box, tmp_path, ledger):
    port = free_port()
    launch = ["env", "STAND_IN_FAULT=hang:", *stand_in("far-interrupt", port)]
    words = ["run", "--host", "box", "--ledger", str(ledger), "--", *launch]
    process = begin(tmp_path, *words, env={**os.environ, **box.env})
    assert eventually(lambda: running("far-interrupt"), within_s=60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert running("far-interrupt") == []
    assert eventually(lambda: box.left() == [], within_s=10)


def test_a_killed_command_leaves_its_run_to_whoever_comes_back(box, shakedown, tmp_path, ledger):
    port = free_port()
    launch = ["env", "STAND_IN_FAULT=hang:", *stand_in("far-killed", port)]
    words = ["run", "--host", "box", "--ledger", str(ledger), "--", *launch]
    process = begin(tmp_path, *words, env={**os.environ, **box.env})
    assert eventually(lambda: running("far-killed"), within_s=60)
    process.kill()
    process.communicate()
    time.sleep(1.0)
    assert running("far-killed") != []
    listed = shakedown("runs").document["runs"]
    stopped = shakedown("stop", listed[0]["id"], env=box.env)
    assert "ended" in stopped.document["trials"][0]["said"], stopped.stderr
    assert running("far-killed") == []
    assert eventually(lambda: box.left() == [], within_s=10)


def test_the_machine_is_checked_there(box, shakedown):
    said = shakedown_without_ledger(shakedown, box, "check", "--host", "box", "--json")
    assert said["command"] == "check"
    assert any(it["rule"] for it in said["findings"])


def shakedown_without_ledger(shakedown: Any, box: Box, *words: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "shakedown", *words]
    done = subprocess.run(argv, env={**os.environ, **box.env}, capture_output=True, text=True, timeout=120)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize(
    ("host", "said_of_it"),
    [
        ("locked", "refuses your key"),
        ("stranger", "host key of stranger is not known"),
        ("closed", "nothing takes ssh connections"),
        ("no-such-host.invalid", "there is no host"),
        ("-oProxyCommand=true", "is no host"),
    ],
)
def test_a_machine_that_cannot_be_reached_is_told_in_words_with_a_way_out(box, shakedown, host, said_of_it):
    said = shakedown("run", "--host", host, launch=("true",), env=box.env)
    assert said.code in (2, 125)
    assert said_of_it in said.document["error"]
    assert said.document["hints"]


@pytest.mark.engine
@pytest.mark.timeout(1800)
def test_the_hang_of_the_demo_is_seen_there(box, shakedown):
    """The engine waits for a node that is not there; its stacks are taken there, by the py-spy we lend."""
    python = prepare_engine(VLLM, print)
    launch = two_node_recipe(python, prepare_model(python, print))
    of_engines = ("VLLM_", "HF_", "OMP_", "GLOO_")  # sshd starts with none of ours
    changed = [f"{name}={value}" for name, value in launch.env.items() if name.startswith(of_engines)]
    said = shakedown("run", "--host", "box", launch=("env", *changed, *launch.argv), env=box.env)
    found = said.document
    assert (found["verdict"], found["phase"], said.code) == ("hung", "dist_init", 1), said.stderr
    assert "_create_c10d_store" in found["cause"]
    assert not any(name.startswith("shakedown") for name in box.left())  # what is the engine's stays
