"""The benchmark of real faults, without an engine: rows, setups and odd disk are what they say they are."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shakedown.core import Phase, Verdict, Wait

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def setups():
    spec = importlib.util.spec_from_file_location("fault_setups", BENCHMARKS / "fault_setups.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fault_setups"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fault_setups"]


@pytest.fixture
def stage(setups, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    vocabulary = {"<s>": 0, "a": 1, "b": 2, "c": 3}
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": 0}]}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (model / "model.safetensors").write_bytes(os.urandom(300_000))
    work, cache = tmp_path / "work", tmp_path / "cache"
    work.mkdir()
    cache.mkdir()
    return setups.Stage(work=work, model=model, port=1, cache=cache, runs=work / "runs", env={})


def rows():
    return [json.loads(line) for line in (BENCHMARKS / "faults.jsonl").read_text().splitlines()]


def test_every_row_expects_what_the_program_can_say_and_names_setups_that_exist(setups):
    seen = set()
    for row in rows():
        expected = row["expected"]
        assert Verdict(expected["verdict"])
        assert Phase(expected["phase"])
        assert (expected["verdict"] == "hung") == ("wait" in expected), row["id"]
        assert "wait" not in expected or Wait(expected["wait"])
        if expected["verdict"] in {"crashed", "hung", "undecided"}:
            assert expected["words"], row["id"]
        assert set(row.get("setup", ())) <= setups.SETUPS.keys()
        assert row["id"] not in seen
        seen.add(row["id"])
    assert len(seen) >= 51


def test_a_rotated_tokenizer_changes_every_word_and_no_special_token(setups, stage):
    with setups.SETUPS["rotated_tokenizer"](stage):
        rotated = json.loads((stage.model / "tokenizer.json").read_text())["model"]["vocab"]
    assert rotated == {"<s>": 0, "a": 2, "b": 3, "c": 1}


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounting needs root and FUSE"
)
def test_what_hangs_on_a_dead_disk_is_freed_when_its_setup_ends(setups, stage):
    whole = (stage.model / "model.safetensors").read_bytes()
    with setups.odd_disk(stage, "--silent-after", "262144"):
        seen = stage.model / "model.safetensors"
        assert sorted(path.name for path in stage.model.iterdir()) == ["model.safetensors", "tokenizer.json"]
        assert seen.stat().st_size == len(whole)
        assert (stage.model / "tokenizer.json").read_text()
        reader = subprocess.Popen(["cat", str(seen)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(0.5)
    read, _ = reader.communicate(timeout=20)
    assert whole.startswith(read)
    assert len(read) < len(whole)
    assert not os.path.ismount(stage.work / "odd-disk")


def test_only_a_process_that_the_run_has_written_down_is_signalled(setups, stage):
    """A bystander of the same name lives on."""
    from shakedown.core import Launch
    from shakedown.host.local import LocalHost

    argv = ("sleep", "60")
    bystander = subprocess.Popen(argv)
    host = LocalHost()
    run = host.start(Launch(argv=argv, env=dict(os.environ), cwd=stage.work), stage.runs / "r")
    try:
        assert setups.strike(run.folder, "sleep", setups.signal.SIGKILL)
        assert bystander.poll() is None
    finally:
        host.end(run, grace_s=0.0)
        bystander.kill()
        bystander.wait()
