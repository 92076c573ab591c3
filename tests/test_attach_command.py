"""`attach` on servers that we did not start: judged by a canary, /proc and the log, and left alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest
from conftest import Shakedown
from foreign_servers import children, foreign_server, is_up, stop_for_a_while

from shakedown.host.local import LocalHost
from shakedown.host.reach import free_port
from shakedown.jobs.running import AttachRequest, find_server

READY = "Application startup complete"


def evidence(document: dict, kind: str) -> list[str]:
    return [each["text"] for each in document["evidence"] if each["kind"] == kind]


@pytest.mark.parametrize("by", ["pid", "url"])
def test_a_healthy_server_serves_and_goes_on(
    by: str, shakedown: Shakedown, port: int, tmp_path: Path
) -> None:
    with foreign_server(tmp_path, "stand_in.py", "--model", "foo", "--port", port, up=READY) as server:
        said = shakedown("attach", str(server.pid) if by == "pid" else f"http://127.0.0.1:{port}/v1")
        assert is_up(server)
        assert len(children(server.pid)) == 1
    found = said.document
    assert (said.code, found["command"], found["verdict"]) == (0, "attach", "serves")
    assert found["attached"]["pid"] == server.pid
    assert found["attached"]["port"] == port
    assert found["facts"]["attached"] == "1"
    assert "--model" in found["argv"]
    assert "not asked for" in evidence(found, "canary numeric")[0]
    assert shakedown("show", found["trial"]).document["verdict"] == "serves"
    assert READY in Path(found["folder"], "launch.log").read_text()


def test_log_probabilities_are_asked_for_only_on_request(
    shakedown: Shakedown, port: int, tmp_path: Path
) -> None:
    with foreign_server(tmp_path, "stand_in.py", "--model", "foo", "--port", port, up=READY) as server:
        said = shakedown("attach", str(server.pid), "--numeric")
        assert is_up(server)
    assert said.code == 0
    assert not evidence(said.document, "canary numeric")
    assert evidence(said.document, "canary nll")


@pytest.mark.parametrize("who", ["leader", "worker"])
def test_a_stopped_process_is_said_at_once_and_left_stopped(
    who: str, shakedown: Shakedown, port: int, tmp_path: Path
) -> None:
    with foreign_server(tmp_path, "http_worker.py", port, up="up") as server:
        worker = children(server.pid)[0].pid
        assert shakedown("attach", f"127.0.0.1:{port}").document["verdict"] == "serves"
        pid = server.pid if who == "leader" else worker
        stop_for_a_while(pid)
        said = shakedown("attach", f"127.0.0.1:{port}")
        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    found = said.document
    assert (said.code, found["verdict"], found["wait"]) == (1, "hung", "stopped")
    assert found["suspect"]["pid"] == pid
    assert found["phase"] in ("ready", "serving")  # whether its first answer is seen before it is stopped


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_server_that_takes_requests_and_never_answers_is_hung_with_its_frame(
    shakedown: Shakedown, tmp_path: Path
) -> None:
    with foreign_server(tmp_path, "http_model.py", "--fault", "silent", up="\n") as server:
        port = int((tmp_path / "server.log").read_text())
        said = shakedown("attach", f"http://127.0.0.1:{port}")
        assert is_up(server)
    found = said.document
    assert (said.code, found["verdict"], found["wait"]) == (1, "hung", "waiting"), said.stderr
    assert found["suspect"]["pid"] == server.pid
    assert found["suspect"]["frame"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_hang_before_ready_is_found_in_the_worker(shakedown: Shakedown, port: int, tmp_path: Path) -> None:
    faults = {"STAND_IN_FAULT": "hang:"}
    with foreign_server(
        tmp_path, "stand_in.py", "--model", "foo", "--port", port, env=faults, up="Capturing"
    ) as server:
        worker = children(server.pid)[0].pid
        said = shakedown("attach", str(server.pid))
        assert is_up(server)
    found = said.document
    assert (said.code, found["verdict"], found["wait"]) == (1, "hung", "waiting"), said.stderr
    assert found["suspect"]["pid"] == worker
    assert "capture_graphs" in found["suspect"]["frame"]


def test_a_deadline_cuts_a_server_that_is_still_silent(
    shakedown: Shakedown, port: int, tmp_path: Path
) -> None:
    faults = {"STAND_IN_FAULT": "hang:"}
    with foreign_server(
        tmp_path, "stand_in.py", "--model", "foo", "--port", port, env=faults, up="Capturing"
    ) as server:
        said = shakedown("attach", str(server.pid), "--deadline", "2s")
        assert is_up(server)
    assert said.document["verdict"] in {"slow", "undecided"}
    assert "deadline" in said.document["cause"]


def test_a_wiped_command_line_is_said_and_the_title_names_the_engine(
    shakedown: Shakedown, port: int, tmp_path: Path
) -> None:
    with foreign_server(tmp_path, "proc_titled.py", "VLLM::APIServer", port, up="up") as server:
        said = shakedown("attach", str(server.pid))
        assert is_up(server)
        refused = shakedown("isolate", "--pid", str(server.pid))
    assert (said.code, said.document["verdict"], said.document["engine"]) == (0, "serves", "vllm")
    notes = "\n".join(said.document["attached"]["notes"])
    assert "setproctitle" in notes
    assert "its environment" in notes
    assert refused.code == 2
    assert "its command line" in refused.document["error"]
    assert "isolate -- CMD" in refused.document["hints"][0]


def test_secrets_of_the_server_reach_neither_ledger_nor_log(
    shakedown: Shakedown, port: int, tmp_path: Path
) -> None:
    secret = "canary-9f8e7d6c5b4a3210"
    with foreign_server(
        tmp_path,
        "stand_in.py", "--model", secret + "/x", "--port", port, "--api-key", secret,
        env={"SOME_TOKEN": secret},
        up=READY,
    ) as server:  # fmt: skip
        with (tmp_path / "server.log").open("a") as log:
            log.write(f"the key is {secret}\n")
        said = shakedown("attach", str(server.pid))
    assert said.code == 0
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "server.log":
            assert secret.encode() not in path.read_bytes(), path
    assert secret not in said.stderr + str(said.document)


def test_of_two_servers_of_one_script_the_asked_one_is_judged_and_sent_its_own_key(
    shakedown: Shakedown, port: int, tmp_path: Path
) -> None:
    other = free_port()
    with foreign_server(tmp_path, "proc_pair.py", tmp_path, port, other, up="up") as script:
        first, second = (process.pid for process in children(script.pid))
        stop_for_a_while(first)
        said = shakedown("attach", f"127.0.0.1:{other}")
        sent = (tmp_path / str(other)).read_text()
    assert (said.code, said.document["verdict"]) == (0, "serves"), said.document["cause"]
    assert said.document["attached"]["pid"] == second
    assert set(sent.split()) == {"Bearer", f"key-of-{other}"}


def test_a_server_is_judged_with_what_started_it_alone(tmp_path: Path, port: int) -> None:
    """The parent of one server is part of it: its other children may be the workers."""
    with foreign_server(tmp_path, "proc_pair.py", tmp_path, port, up="up") as script:
        found = find_server(asking_for(f"http://127.0.0.1:{port}"), LocalHost())
    assert found.process is not None
    assert found.process.identity.pid == script.pid
    assert (found.command.engine.name, found.target.api_key) == ("vllm", f"key-of-{port}")


def asking_for(where: str) -> AttachRequest:
    return AttachRequest(where=where, log=None, numeric=False, engine=None, deadline_s=None, ledger=None)


def test_what_is_no_server_is_refused(shakedown: Shakedown, port: int) -> None:
    gone = shakedown("attach", "4194303")
    assert (gone.code, "no process" in gone.document["error"]) == (2, True)
    nobody = shakedown("attach", f"http://127.0.0.1:{port}")
    assert (nobody.code, "nobody listens" in nobody.document["error"]) == (125, True)
    assert shakedown("attach", "not a url").code == 2
    assert shakedown("attach", "ftp://127.0.0.1/").code == 2
    assert shakedown("runs").document["runs"] == []


def test_the_environments_proxy_leads_to_other_machines_only() -> None:
    def by_proxy(where: str) -> bool:
        target = find_server(asking_for(where), LocalHost()).target
        assert target is not None
        return target.by_proxy

    with socket.create_server(("0.0.0.0", 0)) as listening:
        port = listening.getsockname()[1]
        assert not by_proxy(f"http://127.0.0.1:{port}")
        assert not by_proxy(str(os.getpid()))
    assert by_proxy("http://192.0.2.7:8000")
