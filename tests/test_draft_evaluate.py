"""`draft evaluate` and `draft export` on a tiny random target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from drafter_targets import save_llama

from shakedown.cli.main import cli
from shakedown.drafter.architecture import Drafter, DrafterConfig
from shakedown.drafter.capture import read_requests
from shakedown.drafter.capture_transformers import TransformersCapture
from shakedown.drafter.checkpoint import Checkpoint, save_checkpoint
from shakedown.drafter.export import export_drafter
from shakedown.drafter.manifest import Backend, StatesManifest
from shakedown.drafter.read import load_drafter
from shakedown.drafter.recipe import Recipe
from shakedown.drafter.rotary import Rope
from shakedown.drafter.samples import Finish, Sample, write_sample
from shakedown.drafter.states import StatesWriter
from shakedown.drafter.target import Target, read_target
from shakedown.jobs.draft_lint import shipped_surveys

DRAFT = 40


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A target in m, samples in samples.jsonl, a random drafter in d."""
    folder = tmp_path_factory.mktemp("made")
    torch.set_num_threads(1)
    save_llama(folder / "m")
    target = read_target(folder / "m")
    write_samples(folder / "samples.jsonl", target.vocab_size)
    export_random(folder / "d", target)
    return folder


def write_samples(file: Path, vocab: int) -> None:
    chance = torch.Generator().manual_seed(0)
    with file.open("wb") as out:
        for number in range(6):
            sample = Sample(
                id=str(number),
                messages=[{"role": "user", "content": "x"}],
                token_ids=torch.randint(vocab, (40 + number,), generator=chance).tolist(),
                mask=[(5, 20), (25, 40 + number)],
                model="m",
                template="0" * 64,
                sampling={"temperature": 0.0},
                finish=Finish.STOP,
            )
            write_sample(out, sample)


def drafter_for(target: Target, **changes: Any) -> tuple[Drafter, torch.Tensor]:
    torch.manual_seed(1)
    config = DrafterConfig(
        **{
            "hidden": target.hidden_size,
            "target_hidden": target.hidden_size,
            "intermediate": 24,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 8,
            "vocab": target.vocab_size,
            "draft_vocab": DRAFT,
            "rms_eps": 1e-5,
            "rope": Rope(theta=target.rope_theta),
            "max_positions": target.max_positions,
            "aux_inputs_of": target.aux_inputs_of,
            "target_layers": target.layers,
            "target_architecture": target.architecture,
            **changes,
        }
    )
    chosen = torch.randperm(target.vocab_size)[:DRAFT].sort().values
    return Drafter(config), chosen - torch.arange(DRAFT)


def export_random(folder: Path, target: Target, **changes: Any) -> None:
    drafter, d2t = drafter_for(target, **changes)
    export_drafter(folder, drafter.config, drafter.state_dict(), d2t, engines=shipped_surveys())


def capture_states(made: Path, folder: Path) -> Path:
    target = read_target(made / "m")
    manifest = StatesManifest(
        target=target.facts,
        backend=Backend(name="transformers", version="test"),
        aux_inputs_of=target.aux_inputs_of,
        samples_sha256="0" * 64,
    )
    requests = list(read_requests(made / "samples.jsonl"))
    with (
        TransformersCapture(target, device="cpu", dtype=torch.float32) as capture,
        StatesWriter(folder, manifest) as writer,
    ):
        for document in capture.capture(requests):
            writer.add(document)
        writer.finish()
    return folder


def run_draft(*words: str | Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(cli, ["draft", *map(str, words), "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_samples_and_their_states_give_the_same_expectation(made, tmp_path):
    words = ("evaluate", "--target", made / "m", "--drafter", made / "d", "--drafts", "2")
    code, by_samples = run_draft(*words, "--samples", made / "samples.jsonl")
    assert code == 0
    states = capture_states(made, tmp_path / "states")
    assert run_draft(*words, "--states", states)[1] == by_samples
    assert by_samples["documents"] == 6
    assert [row["position"] for row in by_samples["per_position"]] == [1, 2]
    tokens = by_samples["tokens_per_round"]
    assert 1 <= tokens["low"] <= tokens["value"] <= tokens["high"] <= 3
    assert "at_temperature" not in by_samples


def test_at_a_temperature_each_engines_rule_is_told(made):
    words = ("evaluate", "--target", made / "m", "--drafter", made / "d", "--temperature", "1")
    code, document = run_draft(*words, "--samples", made / "samples.jsonl", "--documents", "2")
    assert code == 0
    assert document["documents"] == 2
    found = document["at_temperature"]
    assert set(found) == {"temperature", "drafter_greedy", "drafter_sampled"}
    sampled = found["drafter_sampled"]["per_position"][0]["conditional"]["value"]
    assert 0 < sampled < 1


def test_the_answer_for_people_names_what_engines_do_not_reach(made):
    words = ["draft", "evaluate", "--target", str(made / "m"), "--drafter", str(made / "d")]
    result = CliRunner().invoke(cli, [*words, "--samples", str(made / "samples.jsonl")])
    assert result.exit_code == 0
    assert "tokens a round, with the bonus, at 3 drafts" in result.stdout
    assert "product of marginal accuracies" in result.stdout


def test_parts_that_do_not_belong_together_are_refused(made, tmp_path):
    target = read_target(made / "m")
    samples = made / "samples.jsonl"
    export_random(tmp_path / "layers", target, aux_inputs_of=(1, 3, 6))
    words = ("evaluate", "--target", made / "m", "--samples", samples)
    code, document = run_draft(*words, "--drafter", tmp_path / "layers")
    assert code == 2
    assert "inputs of layers [1, 3, 6]" in document["error"]
    export_random(tmp_path / "deep", target, target_layers=30, aux_inputs_of=(2, 15, 27))
    code, document = run_draft(*words, "--drafter", tmp_path / "deep")
    assert code == 2
    assert "another target" in document["error"]
    code, document = run_draft("evaluate", "--target", made / "m", "--drafter", made / "d")
    assert code == 2


def test_text_too_short_for_a_round_is_a_data_problem(made):
    words = ("evaluate", "--target", made / "m", "--drafter", made / "d", "--drafts", "15")
    code, document = run_draft(*words, "--samples", made / "samples.jsonl", "--documents", "1")
    assert code == 125
    assert "long enough" in document["error"]


def save_random_checkpoint(folder: Path, target: Target, **changes: Any) -> Drafter:
    drafter, d2t = drafter_for(target, **changes)
    checkpoint = Checkpoint(
        step=12,
        config=drafter.config,
        recipe=Recipe(),
        weights=drafter.state_dict(),
        moments={},
        d2t=d2t,
        provenance={"commit": "abc"},
    )
    save_checkpoint(folder, checkpoint)
    return drafter


def test_a_checkpoint_becomes_a_directory_that_evaluates_and_serves(made, tmp_path):
    target = read_target(made / "m")
    drafter = save_random_checkpoint(tmp_path / "c", target)
    words = ("export", "--target", made / "m", "--checkpoint", tmp_path / "c")
    code, document = run_draft(*words, "--out", tmp_path / "d")
    assert (code, document["verdict"]) == (0, "serves as trained")
    assert {row["verdict"] for row in document["engines"]} == {"serves as trained"}
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    assert config["shakedown"]["trained_with"]["commit"] == "abc"
    found = load_drafter(tmp_path / "d")[1]
    assert torch.equal(found.lm_head.weight, drafter.lm_head.weight.bfloat16().float())
    code, document = run_draft("lint", "--target", made / "m", tmp_path / "d")
    assert code == 0


def test_a_checkpoint_of_another_target_is_not_exported(made, tmp_path):
    save_random_checkpoint(tmp_path / "c", read_target(made / "m"), target_hidden=24)
    words = ("export", "--target", made / "m", "--checkpoint", tmp_path / "c")
    code, document = run_draft(*words, "--out", tmp_path / "d")
    assert code == 2
    assert "another target" in document["error"]
    assert not (tmp_path / "d").exists()
