"""`isolate --pid`: the launch of a server that we did not start is tried anew, and that server left alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import Shakedown
from foreign_servers import foreign_server, is_up

READY = "Application startup complete"
SECRET = "canary-0a1b2c3d4e5f6789"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_cause_is_proven_on_another_port_beside_the_living_server(
    shakedown: Shakedown, port: int, tmp_path: Path
) -> None:
    flags = ("--model", "foo", "--port", port, "--alpha", "--beta", 3)
    env = {"STAND_IN_FAULT": "die:--alpha", "HF_TOKEN": SECRET, "VLLM_Y": "2"}
    with foreign_server(tmp_path, "stand_in.py", *flags, env=env, up=READY) as server:
        said = shakedown("isolate", "--pid", str(server.pid))
        assert is_up(server)
    found = said.document
    assert said.code == 0, said.stderr
    assert [factor["name"] for factor in found["cause"]["factors"]] == ["--alpha"]
    assert found["facts"]["from_pid"] == str(server.pid)
    assert found["facts"]["port_was"] == str(port)
    assert str(port) not in found["workaround"]["argv"]
    assert found["workaround"]["argv"][-2:] == ["--beta", "3"]
    assert f"port {port} is held by" in said.stderr
    assert SECRET not in said.stderr + str(found)


def test_a_dry_run_shows_the_launch_without_its_secrets_and_starts_nothing(
    shakedown: Shakedown, port: int, tmp_path: Path
) -> None:
    flags = ("--model", "foo", f"--port={port}", "--api-key", SECRET, "--alpha")
    env = {"STAND_IN_STARTS": str(tmp_path / "starts"), "VLLM_X": "1", "HF_TOKEN": SECRET}
    with foreign_server(tmp_path, "stand_in.py", *flags, env=env, up="stand-in") as server:
        said = shakedown("isolate", "--pid", str(server.pid), "--dry-run")
        assert is_up(server)
    plan = "\n".join(said.document["dry_run"])
    assert said.code == 0
    assert "VLLM_X=1" in plan
    assert "--alpha" in plan
    assert SECRET not in plan + said.stderr
    assert len((tmp_path / "starts").read_text().splitlines()) == 1


def test_a_shell_in_front_is_no_launch_and_the_server_behind_it_is_named(
    shakedown: Shakedown, tmp_path: Path
) -> None:
    script = tmp_path / "start.sh"
    script.write_text("sleep 60 & wait\n")
    with subprocess.Popen(["sh", str(script)]) as shell:
        try:
            said = shakedown("isolate", "--pid", str(shell.pid))
            assert said.code == 2
            assert "shell" in said.document["error"]
        finally:
            shakedown("stop", "--pid", str(shell.pid), "--yes", "--grace", "1s")
            shell.kill()


def test_what_cannot_be_repeated_is_refused(shakedown: Shakedown) -> None:
    gone = shakedown("isolate", "--pid", "4194303")
    assert (gone.code, "no process" in gone.document["error"]) == (2, True)
    both = shakedown("isolate", "--pid", "1", launch=["true"])
    assert (both.code, "--pid" in both.document["error"]) == (2, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act for another user")
def test_a_process_of_another_user_is_repeated_as_that_user(shakedown: Shakedown) -> None:
    with subprocess.Popen(["sleep", "60"], user=65534, cwd="/") as other:
        try:
            said = shakedown("isolate", "--pid", str(other.pid))
            assert (said.code, "sudo -u" in said.document["hints"][0]) == (2, True)
        finally:
            other.kill()
