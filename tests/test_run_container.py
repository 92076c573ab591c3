"""`docker run …` in front of a server: asked where its port leads, its `-e` are factors, ended by its ID."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Shakedown
from container_engines import Engine, fake_docker
from stand_ins import begin, eventually, running, stand_in

pytestmark = pytest.mark.slow


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with fake_docker(tmp_path) as engine:
        yield engine


def boxed(name: str, port: int, *options: str) -> tuple[str, ...]:
    return ("docker", "run", "-d", "--network=host", *options, "an/image", *stand_in(name, port))


def test_a_container_that_serves_is_found_to_and_removed(
    engine: Engine, shakedown: Shakedown, port: int, tmp_path: Path
) -> None:
    said = shakedown("run", launch=boxed("boxed-serves", port, "--rm"), env=engine.env)
    assert (said.code, said.document["verdict"]) == (0, "serves"), said.document
    assert said.document["argv"] == list(boxed("boxed-serves", port, "--rm"))
    assert not running("boxed-serves")
    assert len(set(engine.asked("rm"))) == 1


def test_a_container_of_another_machine_is_found_to_and_removed(
    engine: Engine, shakedown: Shakedown, port: int
) -> None:
    launch = boxed("boxed-far", port, "--rm")
    said = shakedown("run", "--via", "env", launch=launch, env=engine.env)
    assert (said.code, said.document["verdict"]) == (0, "serves"), said.document
    assert not running("boxed-far")
    assert len(set(engine.asked("rm"))) == 1


def test_a_kept_container_stays_until_it_is_stopped(engine: Engine, shakedown: Shakedown, port: int) -> None:
    said = shakedown("run", "--keep", launch=boxed("boxed-keep", port), env=engine.env)
    assert said.code == 0, said.document
    assert len(running("boxed-keep")) == 2
    assert shakedown("stop", said.document["trial"], env=engine.env).code == 0
    assert not running("boxed-keep")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_or_a_kill_of_ours_ends_the_container(
    engine: Engine, port: int, tmp_path: Path, number: int
) -> None:
    name = f"boxed-interrupt-{number}"
    command = boxed(name, port, "-e", "STAND_IN_LOAD_S=60")
    words = ("run", "--ledger", str(tmp_path / "ledger.db"), "--json", "--", *command)
    process = begin(tmp_path, *words, env=engine.env)
    assert eventually(lambda: len(running(name)) == 2, within_s=30)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert eventually(lambda: not running(name), within_s=15)


def test_a_variable_of_a_container_is_found_to_be_the_cause(
    engine: Engine, shakedown: Shakedown, port: int
) -> None:
    options = ("-e", "VLLM_BAD=1", "-eVLLM_GOOD=2", "-e", "STAND_IN_FAULT=crash:VLLM_BAD")
    command = boxed("boxed-cause", port, *options)
    env = {**engine.env, "VLLM_OUTSIDE": "3"}
    said = shakedown("isolate", launch=(*command, "--alpha", "1"), env=env)
    assert said.code == 0, said.document
    assert [factor["name"] for factor in said.document["cause"]["factors"]] == ["VLLM_BAD=1"]
    kept = [word for word in (*command, "--alpha", "1") if word != "VLLM_BAD=1"]
    kept.remove("-e")
    assert said.document["workaround"]["argv"] == kept
    assert not running("boxed-cause")
