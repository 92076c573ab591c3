"""How `docker run` and its kin read: whose option is whose, where the port leads, what is started of it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import Command, Container, Launch
from shakedown.engines import endable, parse, passing_on, require_isolatable
from shakedown.errors import UsageError
from shakedown.jobs.reading import port_of, target_of
from shakedown.jobs.request import LaunchRequest

VLLM = "docker run --gpus all -p 8001:8000 --ipc=host vllm/vllm-openai:v0.32.0"
SGLANG = "lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path M"
ID = Path("/run/container.id")


def launch(text: str, **env: str) -> Launch:
    return Launch(argv=tuple(shlex.split(text)), env=env, cwd=Path("/"))


def read(text: str, **env: str) -> Command:
    return parse(launch(text, **env), None)


def started(text: str) -> str:
    return shlex.join(endable(launch(text), ID).argv)


@pytest.mark.parametrize(
    ("text", "engine", "flags"),
    [
        (f"{VLLM} --model M --max-num-seqs 8", "vllm", {"--model": "M", "--max-num-seqs": "8"}),
        (f"{VLLM} M --max-num-seqs=8", "vllm", {"--model": "M", "--max-num-seqs": "8"}),
        (f"podman container run -it {SGLANG}", "sglang", {"--model-path": "M"}),
        ("docker run --entrypoint vllm an/image serve M -O3", "vllm", {"--model": "M", "-O3": ""}),
        ("nohup docker --log-level warn run --rm an/image env A=1 vllm serve M", "vllm", {"--model": "M"}),
        ("docker run an/image ./serve --port 80", "generic", {"--port": "80"}),
        ("docker run an/image --port 80", "generic", {"--port": "80"}),
    ],
)
def test_the_flags_after_the_image_are_the_servers(text: str, engine: str, flags: dict[str, str]) -> None:
    command = read(text)
    assert command.engine.name == engine
    assert {use.name: " ".join(use.values) for use in command.uses} == flags
    assert command.interpreter == ()
    require_isolatable(command)


def test_only_what_is_given_with_e_reaches_the_server() -> None:
    text = f"docker run -e VLLM_A=1 -eVLLM_B=2 --env=VLLM_C=x=y --env VLLM_D -e VLLM_E {SGLANG}"
    command = read(text, VLLM_D="4", VLLM_OUTSIDE="5", VLLM_A="of the shell")
    assert command.env == {"VLLM_A": "1", "VLLM_B": "2", "VLLM_C": "x=y", "VLLM_D": "4"}
    places = {name: [at for other, _, at in command.assigned if other == name] for name in command.env}
    argv = command.launch.argv
    assert [" ".join(argv[at] for at in found) for found in places.values()] == [
        "-e VLLM_A=1",
        "-eVLLM_B=2",
        "--env=VLLM_C=x=y",
        "--env VLLM_D",
    ]


@pytest.mark.parametrize(
    ("options", "flags", "url"),
    [
        ("-p 8000:30000", "", "http://127.0.0.1:8000"),
        ("-dp 127.0.0.2:8000:30000/tcp", "--host 0.0.0.0", "http://127.0.0.2:8000"),
        ("--publish=[::1]:8000:31000", "--port 31000", "http://[::1]:8000"),
        ("-p8000:30000 -p 9000:9000", "", "http://127.0.0.1:8000"),
        ("--network host", "--port 31000", "http://127.0.0.1:31000"),
        ("--net=host", "", "http://127.0.0.1:30000"),
        ("-p 8000:8000", "", None),
        ("-p 30000", "", None),  # on a port that nobody knows yet
        ("", "", None),
    ],
)
def test_the_published_port_is_the_one_that_is_asked(options: str, flags: str, url: str | None) -> None:
    command = read(f"docker run {options} {SGLANG} {flags}")
    request = LaunchRequest(launch=command.launch)
    target = target_of(command, request, port_of(command, request))
    assert (target.base_url if target else None) == url


@pytest.mark.parametrize(
    ("given", "begun"),
    [
        ("docker run -it i", "docker run --cidfile ID i"),
        ("docker run -d --name n -p 1:2 i", "docker run --cidfile ID --name n -p 1:2 i"),
        ("docker run -itp 1:2 i -it", "docker run --cidfile ID -p 1:2 i -it"),
        ("docker run -deKEY=did i", "docker run --cidfile ID -eKEY=did i"),
        ("docker run --detach --tty=true --rm --cidfile=x i", "docker run --cidfile ID --rm i"),
        ("podman run --cidfile x --detach-keys a i c", "podman run --cidfile ID i c"),
        ("vllm serve M -it", "vllm serve M -it"),
    ],
)
def test_it_is_started_in_the_foreground_with_its_id_written_down(given: str, begun: str) -> None:
    assert started(given) == begun.replace("ID", str(ID))


def test_what_an_experiment_sets_becomes_an_option() -> None:
    before = launch(f"docker run -p 1:30000 {SGLANG}", VLLM_X="of the shell", HOME="/root")
    after = launch(f"docker run -p 1:30000 {SGLANG} --tp 1", VLLM_Y="0", VLLM_X="1")
    told = passing_on(after, before)
    assert shlex.join(told.argv) == f"docker run -e VLLM_X=1 -e VLLM_Y=0 -p 1:30000 {SGLANG} --tp 1"
    assert told.env == before.env
    bare = launch("vllm serve M", VLLM_X="1")
    assert passing_on(bare, launch("vllm serve M")) == bare


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("docker exec -it c vllm serve M", "docker exec"),
        ("docker compose up", "docker compose"),
        ("docker", "`docker`"),
        ("kubectl exec pod -- vllm serve M", "kubectl"),
        ("docker --context away run i", "another machine"),
        ("docker run -it --rm", "names no image"),
        ("docker run i bash -c 'vllm serve M'", "shell script"),
        ("apptainer exec i.sif vllm serve M", "apptainer"),
    ],
)
def test_what_cannot_be_read_is_not_isolated(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        require_isolatable(read(text))
    assert refused.value.hints


WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=6)


@given(
    st.lists(st.one_of(WORD, st.sampled_from(["-it", "-e", "-p", "--rm", "--", "-dp1:2", "run"])), max_size=8)
)
def test_any_command_line_is_read_and_what_follows_the_image_stays(words: list[str]) -> None:
    whole = Launch(argv=("docker", "run", *words, "image", "a", "b"), env={}, cwd=Path("/"))
    begun = endable(whole, ID)
    assert isinstance(begun.container, Container | None)
    if begun.container:
        assert begun.argv[-2:] == ("a", "b")
        assert begun.argv[2:4] == ("--cidfile", str(ID))
