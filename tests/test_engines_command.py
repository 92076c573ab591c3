"""How commands of real users read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import Command, FlagTable, Launch
from shakedown.engines import display, identify, parse, read_table, require_isolatable
from shakedown.errors import UsageError

TABLES = Path(__file__).parents[1] / "src/shakedown/engines/tables"


def table(name: str) -> FlagTable:
    found = read_table((TABLES / f"{name}.json").read_text(), engine=name, source="shipped")
    assert isinstance(found, FlagTable)
    return found


VLLM, SGLANG = table("vllm"), table("sglang")


def read(line: str | list[str], flags: FlagTable | None = VLLM, shebang: str | None = None) -> Command:
    argv = tuple(line.split() if isinstance(line, str) else line)
    launch = Launch(argv=argv, env={"PATH": "/bin", "A": "1"}, cwd=Path("/"))
    return parse(launch, flags, read_shebang=lambda program: shebang)


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("vllm serve M", "vllm"),
        ("/opt/venv/bin/vllm serve M", "vllm"),
        ("python -m vllm.entrypoints.openai.api_server --model M", "vllm"),
        ("python3.12 -u -X faulthandler -m vllm.entrypoints.cli.main serve M", "vllm"),
        ("python /opt/venv/bin/vllm serve M", "vllm"),
        ("/opt/bin/vllm-python -X dev -m vllm.entrypoints.openai.api_server --model M", "vllm"),
        ("pypy3 -m sglang.launch_server --model-path M", "sglang"),
        ("python vllm/entrypoints/openai/api_server.py --model M", "vllm"),
        ("uv run --with numpy vllm serve M", "vllm"),
        ("uv run -m sglang.launch_server --model-path M", "sglang"),
        ("sglang serve --model-path M", "sglang"),
        ("env -u FOO A=1 B=2 python -m sglang.launch_server --model-path M", "sglang"),
        ("nohup numactl -N 0 -m 0 nice -n 5 stdbuf -oL sglang serve --model-path M", "sglang"),
        ("timeout -k 5 2h taskset -c 0,1 time -v exec vllm serve M", "vllm"),
        ("sudo -E -u nobody vllm serve M", "vllm"),
        ("transformers serve M", "transformers"),
        ("python serve.py --model M", "generic"),
        ("vllm bench serve", "generic"),
        ("mpirun -m sglang.check_env", "generic"),
        ("bash start.sh", "generic"),
        ("docker run --gpus all image --model M", "generic"),
        ("env", "generic"),
    ],
)
def test_an_engine_is_recognised_through_what_stands_before_it(line, engine):
    assert identify(tuple(line.split())).name == engine
    assert read(line).engine.name == engine


@pytest.mark.parametrize(
    ("line", "shebang", "interpreter"),
    [
        ("python -m vllm.entrypoints.openai.api_server", None, "python -"),
        ("python3 -u -X dev -I -m sglang.launch_server", None, "python3 -u -X dev -I -"),
        ("/opt/vllm-python -u -m vllm.entrypoints.openai.api_server", None, "/opt/vllm-python -u -"),
        ("vllm serve M", "#!/opt/v/bin/python3\n", "/opt/v/bin/python3 -"),
        ("vllm serve M", "#!/usr/bin/env python3", "/usr/bin/env python3 -"),
        ("vllm serve M", "#!/bin/sh\n'''exec' /opt/long/python \"$0\" \"$@\"\n", "/opt/long/python -"),
        ("vllm serve M", None, ""),
        ("uv run --python 3.12 vllm serve M", None, "uv run --python 3.12 python -"),
        ("env A=1 nice python -m vllm.entrypoints.openai.api_server", None, "python -"),
        ("bash start.sh", "#!/bin/bash", ""),
    ],
)
def test_the_launches_own_interpreter_is_found(line, shebang, interpreter):
    assert read(line, shebang=shebang).interpreter == tuple(interpreter.split())


@pytest.mark.parametrize(
    ("given_as", "name", "value"),
    [
        ("--max-model-len 2048", "--max-model-len", "2048"),
        ("--max_model_len=2048", "--max-model-len", "2048"),
        ("-tp 2", "--tensor-parallel-size", "2"),
        ("-tp=2", "--tensor-parallel-size", "2"),
        ("--tensor-par 2", "--tensor-parallel-size", "2"),
        ("--seed -1", "--seed", "-1"),
        ("--no-enable-prefix-caching", "--enable-prefix-caching", ""),
        ("--compilation-config.mode 2", "--compilation-config", "2"),
        ("-cc.mode=2", "--compilation-config", "2"),
        ("-O3", "--optimization-level", "3"),
        ("-O.cudagraph_mode=NONE", "--compilation-config", "NONE"),
        ("--max-num-seqs 8 --max-num-seqs 16", "--max-num-seqs", "16"),
        ("--api-key a b c", "--api-key", "c"),
        ("--unheard-of 1", "--unheard-of", "1"),
    ],
)
def test_flags_read_as_the_engine_reads_them(given_as, name, value):
    command = read("vllm serve M " + given_as)
    assert command.value(name) == value
    assert command.value("--model") == "M"
    covered = [at for use in command.uses for at in use.positions]
    assert sorted(covered) == list(range(2, len(command.launch.argv)))


def test_a_bare_flag_leaves_the_model_alone():
    command = read("vllm serve --enforce-eager M --port 1")
    assert command.value("--model") == "M"
    assert command.value("--enforce-eager") == ""


def test_an_ambiguous_abbreviation_is_not_guessed():
    command = read("vllm serve M --max 5")
    assert [(use.name, use.known) for use in command.uses[1:]] == [("--max", False)]


def test_json_values_and_other_aliases():
    argv = [
        "sglang",
        "serve",
        "--model",
        "M",
        "--mem-fraction",
        "0.8",
        "--cuda-graph-bs",
        "1",
        "2",
        "--tp",
        "8",
    ]
    command = read(argv, SGLANG)
    assert command.value("--model-path") == "M"
    assert command.value("--mem-fraction-static") == "0.8"
    assert command.value("--tp-size", "--tp") == "8"
    argv = ["vllm", "serve", "M", "--speculative-config", '{"method": "ngram", "n": 4}']
    assert read(argv).value("--speculative-config") == '{"method": "ngram", "n": 4}'


def test_variables_of_wrappers_are_what_the_server_sees():
    command = read("env -u A --unset=PATH B=2 C=x=y vllm serve M")
    assert command.env == {"B": "2", "C": "x=y"}
    assert command.assigned == (("B", "2", 4), ("C", "x=y", 5))
    assert command.unset == (("A", (1, 2)), ("PATH", (3,)))


@pytest.mark.parametrize(
    "line",
    [
        "bash start.sh",
        "sh -c exec",
        "./start.sh",
        "docker exec container vllm serve M",
        "kubectl exec pod -- vllm serve M",
        "env -i vllm serve M",
        "sudo vllm serve M",
        "torchrun serve.py",
        "nohup",
    ],
)
def test_a_command_whose_flags_cannot_be_changed_is_refused_with_a_way_out(line):
    with pytest.raises(UsageError, match="cannot isolate"):
        require_isolatable(read(line))


@pytest.mark.parametrize(
    "line", ["vllm serve M", "sudo -E vllm serve M", "python serve.py", "env A=1 vllm serve M"]
)
def test_a_plain_command_can_be_isolated(line):
    require_isolatable(read(line))


def test_a_displayed_command_reads_back_in_a_shell():
    import shlex

    argv = ("vllm", "serve", "a b", '{"x": 1}', "it's")
    assert tuple(shlex.split(display(argv))) == argv
    assert display(("a", "b\nc'd")) == "a $'b\\nc\\'d'"


@given(st.lists(st.sampled_from(
    ["vllm", "serve", "env", "-u", "A=1", "python", "-m", "--", "-", "--port", "--port=1", "-1", "x y", "",
     "sudo", "-E", "timeout", "uv", "run", "-O", "-O.", "--a.b", "--api-key", "-tp", "numactl", "-c"]
)))  # fmt: skip
def test_any_tokens_are_read_without_an_error_and_never_twice(argv):
    command = read(argv)
    covered = [at for use in command.uses for at in use.positions]
    covered += [at for _, _, at in command.assigned]
    covered += [at for _, positions in command.unset for at in positions]
    assert len(covered) == len(set(covered))
    assert all(0 <= at < len(argv) for at in covered)
