"""Causes outside the command line: config files, the model's config, what was compiled earlier."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Shakedown
from test_isolate_costs import ENGINE_LIKE
from test_isolate_factors import SGLANG, VLLM, VLLM_CPU, read, trial

from shakedown.core import Command, FactorKind, Mark, RecordState, TrialRecord
from shakedown.engines import parse
from shakedown.engines.config_file import read_entries, write_out
from shakedown.engines.overrides import with_overrides
from shakedown.host.local import LocalHost
from shakedown.isolate.factors import apply, describe_changes, factors_of
from shakedown.isolate.outside import Filled, Outside, config_changes, overridden
from shakedown.jobs.isolate import clear_work
from shakedown.jobs.outside import changed_model, model_folder, outside_of, override_config, weight_bytes
from shakedown.jobs.reading import Reading
from shakedown.jobs.request import LaunchRequest
from shakedown.ledger import Ledger

CONFIG = {
    "hidden_size": 64,
    "rms_norm_eps": 0.5,
    "rope_parameters": {"rope_theta": 3.0, "rope_type": "default"},
    "sliding_window": 4096,
    "use_sliding_window": False,
    "dtype": "float32",
}


def model(folder: Path, config: dict = CONFIG) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_text("weights")
    return folder


def found(command: Command, tmp_path: Path, *marks: Mark) -> Outside:
    reading = Reading(command=command, table=VLLM, port=None, target=None)
    return outside_of(reading, LaunchRequest(launch=command.launch), tmp_path / "fresh")


# --- config files


def test_a_config_file_is_written_out_before_what_the_command_line_says():
    command = read("vllm serve M --config c.yaml --seed 1")
    entries = read_entries(
        "noise\n=== shakedown flag table ===\n"
        '[["max-num-seqs", 8], ["enforce_eager", true], ["enable-prefix-caching", false], '
        '["compilation-config", {"mode": 3}], ["kv-cache-dtype-skip-layers", ["a", "b"]], '
        '["disable-log-stats", false]]'
    )
    launch = write_out(command, entries, VLLM)
    assert launch.argv == (
        *("vllm", "serve", "M", "--max-num-seqs", "8", "--enforce-eager", "--no-enable-prefix-caching"),
        *("--compilation-config", '{"mode": 3}', "--kv-cache-dtype-skip-layers", "a", "b", "--seed", "1"),
    )
    names = {factor.name for factor in factors_of(parse(launch, VLLM), VLLM)}
    assert {"--max-num-seqs 8", "--kv-cache-dtype-skip-layers a b", "--seed 1"} <= names


def test_sglang_spells_false_out_where_a_flag_takes_a_value():
    command = read("python -m sglang.launch_server --config c.yaml", {}, SGLANG)
    argv = write_out(command, (("trust_remote_code", True), ("stream-interval", 4)), SGLANG).argv
    assert argv[3:] == ("--trust-remote-code", "--stream-interval", "4")


@pytest.mark.parametrize("printed", ["", "Traceback", "=== shakedown flag table ===\n[1]"])
def test_what_is_no_config_file_is_no_entry(printed: str):
    assert read_entries(printed) is None


# --- the model's config


def test_unusual_values_of_the_models_config_are_factors_and_usual_ones_are_none(tmp_path: Path):
    command = read(f"vllm serve {model(tmp_path / 'm')}")
    outside = found(command, tmp_path)
    config = {f.name: f for f in factors_of(command, VLLM, outside) if f.kind is FactorKind.CONFIG}
    assert set(config) == {
        "config.json rms_norm_eps",
        "config.json rope_parameters.rope_theta",
        "config.json dtype",
    }
    assert config["config.json rms_norm_eps"].was == "rms_norm_eps: 0.5 in config.json"


def test_a_changed_value_goes_in_by_the_engines_own_flag_beside_the_users(tmp_path: Path):
    folder = model(tmp_path / "m")
    command = read(["vllm", "serve", str(folder), "--hf-overrides", '{"a": 1}', "--seed", "1"])
    factors = factors_of(command, VLLM, found(command, tmp_path))
    kept = {f.name for f in factors if "rope_theta" not in f.name}
    changes = config_changes(factors, trial(kept))
    launch = override_config(command, changes, tmp_path / "work", lambda it: apply(it, factors, trial(kept)))
    assert launch.argv[:5] == ("vllm", "serve", str(folder), "--seed", "1")
    assert launch.argv[5] == "--hf-overrides"
    assert json.loads(launch.argv[6]) == {
        "a": 1,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    assert describe_changes(factors, kept) == (
        "config.json rope_parameters.rope_theta: overridden by 10000.0",
    )


def test_without_such_a_flag_a_changed_config_lies_beside_links_and_the_users_files_stay(tmp_path: Path):
    folder = model(tmp_path / "m")
    before = {path.name: path.read_text() for path in folder.iterdir()}
    command = read(f"transformers serve {folder} --port 8000", {}, None)
    launch = override_config(command, {"rms_norm_eps": 1e-5}, tmp_path / "work", lambda it: it)
    copy = Path(launch.argv[2])
    assert copy.name == "m"
    assert json.loads((copy / "config.json").read_text()) == {**CONFIG, "rms_norm_eps": 1e-5}
    assert (copy / "model.safetensors").is_symlink()
    assert (copy / "model.safetensors").read_text() == "weights"
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    assert changed_model(folder, {"rms_norm_eps": 1e-5}, tmp_path / "work") == copy  # again: the same


@pytest.mark.parametrize(
    "given", ["--force-model={}", "--force-model {}", "{}"], ids=["joined", "two", "bare"]
)
def test_the_changed_model_stands_where_the_model_was_named_and_nowhere_else(tmp_path: Path, given: str):
    """The joined form was left as it was, and judged as if the value had been changed."""
    folder = model(tmp_path / "m")
    words = given.format(folder).split()
    line = [
        "env",
        f"HF_HOME={folder}",
        "transformers",
        "serve",
        "--dtype",
        "float32",
        *words,
        "--tag",
        str(folder),
    ]
    command = read(line, {}, None)
    factors = factors_of(command, None, found(command, tmp_path))
    kept = {factor.name for factor in factors if not {"--dtype"} & set(factor.was.split())}
    launch = override_config(
        command, {"rms_norm_eps": 1e-5}, tmp_path / "work", lambda it: apply(it, factors, trial(kept))
    )
    copies = [word for word in launch.argv if str(tmp_path / "work") in word]
    assert len(copies) == 1
    copy = copies[0].removeprefix("--force-model=")
    assert json.loads((Path(copy) / "config.json").read_text())["rms_norm_eps"] == 1e-5
    untouched = [word.replace(copy, str(folder)) for word in launch.argv]
    assert untouched == [word for word in line if word not in ("--dtype", "float32")]


def test_a_model_named_as_on_the_hub_is_found_in_its_cache(tmp_path: Path):
    cached = tmp_path / "hub" / "models--org--name"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc\n")
    (cached / "snapshots").mkdir()
    snapshot = model(cached / "snapshots" / "abc")
    command = read("vllm serve org/name", {"HF_HOME": str(tmp_path)})
    assert model_folder(command) == snapshot
    assert model_folder(read("vllm serve other/name", {"HF_HOME": str(tmp_path)})) is None


def test_keys_inside_an_object_are_changed_one_by_one():
    config = {"rope": {"theta": 1, "type": "x"}, "eps": 2}
    assert overridden(config, {"rope.theta": 5, "rope.type": "y"}) == {"rope": {"theta": 5, "type": "y"}}
    assert overridden({}, {"rope.theta": 5}) == {"rope": {"theta": 5}}
    assert with_overrides(("x", "--o={}", "--o", "no"), "--o", {"a": None}) == (
        "x",
        "--o={}",
        "--o",
        "no",
        "--o",
        '{"a": null}',
    )


@pytest.mark.parametrize("named", [True, False])
def test_what_a_launch_of_the_search_names_stays_on_another_machine_and_caches_go(
    tmp_path: Path, named: bool
):
    """The command handed back there names the model with the changed config, as a rung does its script."""
    there = tmp_path / "there" / "s1"
    copy = changed_model(model(tmp_path / "m"), {"rms_norm_eps": 1e-5}, there)
    (there / "caches" / "X").mkdir(parents=True)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        record = TrialRecord(
            id="t1",
            search_id="s1",
            experiment=trial(set()),
            engine="transformers",
            argv=("transformers", "serve", str(copy) if named else "m"),
            env=(),
            cwd="/",
            folder=tmp_path,
            started_at="2026-01-01T00:00:00Z",
            state=RecordState.OPEN,
        )
        ledger.open_trial(record)
        clear_work(LocalHost(), ledger, "s1", there / "caches")
    assert (copy / "config.json").is_file() is named
    assert not (there / "caches").exists()


# --- caches


def test_a_cache_that_holds_something_is_a_factor_while_its_feature_is_on(tmp_path: Path):
    cached = tmp_path / "root" / "torch_compile_cache" / "x"
    cached.mkdir(parents=True)
    env = {"VLLM_CACHE_ROOT": str(tmp_path / "root"), "HOME": str(tmp_path)}
    command = read("vllm serve M", env, VLLM_CPU)
    assert not found(command, tmp_path).filled
    (cached / "a.lock").write_text("1")
    assert not found(command, tmp_path).filled
    (cached / "code.py").write_text("compiled")
    outside = found(command, tmp_path)
    (factor,) = [f for f in factors_of(command, VLLM_CPU, outside) if f.kind is FactorKind.CACHE]
    assert factor.needs == {"compilation and CUDA graphs"}
    assert factor.was == "compiled earlier, in ~/root/torch_compile_cache"
    kept = {f.name for f in factors_of(command, VLLM_CPU, outside)} - {factor.name}
    launch = apply(command.launch, factors_of(command, VLLM_CPU, outside), trial(kept))
    assert launch.env["VLLM_CACHE_ROOT"] == str(tmp_path / "fresh" / "VLLM_CACHE_ROOT")
    eager = read("vllm serve M --enforce-eager", env, VLLM_CPU)
    assert not [f for f in factors_of(eager, VLLM_CPU, outside) if f.kind is FactorKind.CACHE]


def test_a_cache_named_by_a_wrapper_is_replaced_there(tmp_path: Path):
    command = read("env VLLM_CACHE_ROOT=/c vllm serve M", {}, VLLM_CPU)
    (cache,) = [c for c in command.engine.caches if c.variable == "VLLM_CACHE_ROOT"]
    outside = Outside(filled=(Filled(cache=cache, folder="/c", fresh="/fresh"),))
    factors = factors_of(command, VLLM_CPU, outside)
    launch = apply(command.launch, factors, trial(set()))
    assert launch.argv[:3] == ("env", "vllm", "serve")
    assert launch.env["VLLM_CACHE_ROOT"] == "/fresh"


# --- marks


def test_what_a_mark_is_measured_by_is_no_factor():
    line = (
        "python -m sglang.launch_server --model-path M --speculative-algorithm EAGLE3 "
        "--speculative-draft-model-path D --speculative-num-steps 9"
    )
    command = read(line, {}, SGLANG)
    plain = [f for f in factors_of(command, SGLANG) if f.kind is FactorKind.GROUP]
    assert [f.was.count("--speculative") for f in plain] == [3]
    measured = replace(Outside(), marks=frozenset({Mark.ACCEPT_LENGTH}))
    left = [f.was for f in factors_of(command, SGLANG, measured) if "speculative" in f.was]
    assert left == ["--speculative-num-steps 9"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_launch_that_fails_by_what_was_cached_is_handed_back_with_an_empty_cache(
    shakedown: Shakedown, tmp_path: Path, port: int
) -> None:
    cached = tmp_path / ".cache" / "vllm" / "torch_compile_cache"
    cached.mkdir(parents=True)
    (cached / "artifact").write_text("compiled by another version")
    when = ["!VLLM_CACHE_ROOT", "!--enforce-eager"]  # only what compiles reads it
    fault = {"kind": "crash", "phase": "graph_capture", "when": when, "text": "stale artifact"}
    env = {"LIKE_FAULTS": json.dumps([fault]), "HOME": str(tmp_path)}
    launch = (sys.executable, str(ENGINE_LIKE), "--model", "m", "--port", str(port), "--seed", "1")
    said = shakedown("isolate", "--engine", "vllm", launch=launch, env=env)
    document = said.document
    assert said.code == 0, said.stderr
    assert [factor["kind"] for factor in document["cause"]["factors"]] == ["cache"]
    assert list(document["workaround"]["env"]) == ["VLLM_CACHE_ROOT"]
    assert "--enforce-eager" not in document["workaround"]["argv"]
    assert (cached / "artifact").read_text() == "compiled by another version"


def test_weights_that_lie_there_twice_are_counted_once(tmp_path):
    (tmp_path / "consolidated.safetensors").write_bytes(b"x" * 10)
    assert weight_bytes(tmp_path) == 10
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(b"x" * 10)
    assert weight_bytes(tmp_path) == 10
