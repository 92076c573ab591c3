"""A build from a recipe to a drafter that serves: each stage done once, gone on with after a kill."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from byte_model import byte_model
from drafter_targets import save
from probe_servers import serving
from stand_ins import eventually

from shakedown.core import Launch
from shakedown.drafter.checkpoint import last_checkpoint
from shakedown.drafter.plan import Plan, TrainPlan
from shakedown.drafter.samples import Finish, Sample, write_sample
from shakedown.errors import DataProblem, UsageError
from shakedown.host import reach
from shakedown.jobs.draft_build import BuildRequest, build_job, extract_stage, synth_stage, train_stage
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import JobResult, Progress
from shakedown.jobs.stages import Done
from shakedown.provision import VLLM, prepare_engine, prepare_model

RECIPE = """
[synth]
samples = 24
concurrency = 4

[questions]
samples = 12
max_tokens = 64

[train]
epochs = 2
steps = 3
draft_vocab = 128
pack_rows = 256
"""


class Silent:
    def say(self, text: str) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass


STAGES = ("synth", "extract", "train", "export", "evaluate")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with the tokenizer of bytes."""
    folder = byte_model(tmp_path_factory.mktemp("target") / "bytes")
    sizes = {
        "vocab_size": 264,
        "max_position_embeddings": 1024,
        "num_key_value_heads": 2,
        "initializer_range": 0.05,
    }
    save("Llama", folder, **sizes, eos_token_id=257, bos_token_id=None, pad_token_id=None)
    return folder


def recipe(tmp_path: Path, text: str = RECIPE) -> Path:
    (tmp_path / "recipe.toml").write_text(text)
    return tmp_path / "recipe.toml"


def build(target: Path, tmp_path: Path, url: str | None, text: str = RECIPE) -> JobResult:
    request = BuildRequest(
        target=str(target), out=tmp_path / "built", recipe=recipe(tmp_path, text), server=url
    )
    nothing = LaunchRequest(launch=Launch(argv=(), env={}, cwd=tmp_path))
    return build_job(request, nothing, Silent())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_build_ends_in_a_directory_that_serves_and_is_not_done_twice(target: Path, tmp_path: Path):
    with serving("chat_tokens.py", "vllm") as server:
        found = build(target, tmp_path, server.base_url).document
    assert [each["stage"] for each in found["stages"]] == list(STAGES)
    assert found["samples"] == 24
    assert found["tokens_per_round"]["value"] >= 1
    assert found["speed_up"]["vllm"]["value"] == found["tokens_per_round"]["value"] / 1.6
    drafter = tmp_path / "built" / "drafter"
    assert json.loads((drafter / "config.json").read_text())["draft_vocab_size"] == 128
    page = (tmp_path / "built" / "build.md").read_text()
    assert "tokens a round" in page
    assert "| 24 |" in page
    again = build(target, tmp_path, "http://127.0.0.1:9")  # nobody is asked any more
    assert again.document == found
    longer = build(target, tmp_path, "http://127.0.0.1:9", RECIPE.replace("epochs = 2", "epochs = 3"))
    kept = {each["stage"]: each for each in longer.document["stages"]}
    assert kept["extract"] == found["stages"][1]
    assert kept["train"]["folder"] != found["stages"][2]["folder"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_build_that_is_killed_goes_on(target: Path, tmp_path: Path):
    """And trains in two processes, as it would on two GPUs."""
    with serving("chat_tokens.py", "vllm") as server:
        argv = [sys.executable, "-m", "shakedown", "draft", "build", "--target", str(target)]
        argv += [
            "--server",
            server.base_url,
            "--recipe",
            str(recipe(tmp_path, RECIPE + "processes = 2\n")),
            "--json",
        ]
        argv += ["--out", str(tmp_path / "built")]
        folder = tmp_path / "built" / "work"
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            assert eventually(lambda: list(folder.glob("extract-*")), within_s=120)
            process.send_signal(signal.SIGKILL)
        asked = os.path.getmtime(next(folder.glob("synth-*")) / "train" / "samples.jsonl")
        done = subprocess.run(argv, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "synth: done before" in done.stderr
    assert os.path.getmtime(next(folder.glob("synth-*")) / "train" / "samples.jsonl") == asked


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_removed_of_a_build_is_made_again_also_from_another_working_directory(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A shard, as the error of a damaged one says; a drafter of a checkpoint at a relative path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    with serving("chat_tokens.py", "vllm") as server:
        first = build(target, Path(), server.base_url).document
    work = tmp_path / "built" / "work"
    shard = next(work.glob("extract-*/states-*.safetensors"))
    for folder in [*work.glob("train-*"), *work.glob("export-*"), *work.glob("evaluate-*")]:
        shutil.rmtree(folder)
    raw = bytearray(shard.read_bytes())
    raw[-5] ^= 1
    shard.write_bytes(raw)
    nobody = "http://127.0.0.1:9"
    with pytest.raises(DataProblem, match="is damaged") as caught:
        build(target, Path(), nobody)
    assert "remove the shard and give the command again" in caught.value.hints[0]
    shard.unlink()
    build(target, Path(), nobody)
    next(work.glob("extract-*/done.json")).unlink()  # as a kill leaves it just before the note
    again = build(target, Path(), nobody).document
    for key in ("tokens_per_round", "samples", "tokens", "state_bytes"):
        assert again[key] == first[key]
    next(work.glob("export-*/done.json")).unlink()  # likewise
    monkeypatch.chdir(tmp_path / "sub")
    assert build(target, Path(".."), nobody).document["tokens_per_round"] == first["tokens_per_round"]
    (folder,) = work.glob("train-*")
    shutil.rmtree(last_checkpoint(folder))  # the one before it is there still
    assert build(target, Path(".."), nobody).document["tokens_per_round"] == first["tokens_per_round"]


def test_nothing_of_the_target_is_held_where_training_begins(target: Path, tmp_path: Path):
    """Its first process works on the same device."""
    samples = tmp_path / "train" / "samples.jsonl"
    samples.parent.mkdir()
    with samples.open("wb") as out:
        sample = Sample(
            id="1",
            messages=[],
            token_ids=list(range(40)),
            mask=[(8, 40)],
            model="m",
            template="t",
            sampling={},
            finish=Finish.LENGTH,
        )
        write_sample(out, sample)
    data = Done(name="synth", folder=tmp_path, seconds=0.0, document={})
    request = BuildRequest(target=str(target), out=tmp_path / "built")
    model = torch.nn.Linear(2, 2)
    model.own = [model]  # as a model's hooks hold it
    held = weakref.ref(model)
    gc.disable()
    try:
        del model
        extract_stage(request, Plan(), data, Silent()).work(tmp_path / "states")
        assert held() is None
        assert not torch.cuda.is_available() or torch.cuda.memory_reserved() == 0
    finally:
        gc.enable()


def test_a_build_looks_at_the_target_and_at_the_head_it_goes_on_from(target: Path, tmp_path: Path):
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "samples.jsonl").write_text("")
    done = Done(name="", folder=tmp_path, seconds=0.0, document={})
    request = BuildRequest(target=str(target), out=tmp_path / "built", server="http://127.0.0.1:9")
    plan = Plan(train=TrainPlan(start=str(tmp_path / "head")))
    launch = LaunchRequest(launch=Launch(argv=(), env={}, cwd=tmp_path))
    assert synth_stage(request, plan, launch, Silent()).models == [target]
    assert extract_stage(request, plan, done, Silent()).models == [target]
    assert train_stage(request, plan, done, Silent()).models == [tmp_path / "head"]
    assert train_stage(request, Plan(), done, Silent()).models == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[train]\nepoch = 3", "[train] has no 'epoch'"),
        ('[synth]\nprompts = "built-in"', "[synth] and [questions] both ask built-in"),
        ("[synth]\nsamples = 20", "it is not said where the target is served"),
    ],
)
def test_a_recipe_that_cannot_be_built_is_refused_before_anything_starts(
    target: Path, tmp_path: Path, text: str, what: str
):
    with pytest.raises(UsageError) as caught:
        build(target, tmp_path, None, text)
    assert what in caught.value.message
    assert not (tmp_path / "built").exists()


@pytest.mark.engine
def test_a_toy_recipe_is_built_on_a_real_engine_on_the_cpu(tmp_path: Path, port: int):
    """The recipe of examples/, with a port that is free here."""
    python = prepare_engine(VLLM, print)
    model = prepare_model(python, print)
    text = (Path(__file__).parents[1] / "examples" / "smollm2-on-a-cpu.toml").read_text()
    found = build(model, tmp_path, None, text.replace("--port 18321", f"--port {port}")).document
    assert [each["stage"] for each in found["stages"]] == list(STAGES)
    assert found["samples"] >= 16
    assert 1 <= found["tokens_per_round"]["value"] < 4
    assert {each["verdict"] for each in found["engines"]} >= {"serves as trained"}
    assert not reach.is_listening(port)
