"""An exported directory reads back as it was trained, serves by every engine's rules, and hides no fault."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drafter_texts import DRAFT_VOCAB, HIDDEN, VOCAB, small_config, small_drafter, small_vocabulary
from safetensors.torch import load_file, save_file

from shakedown.drafter.export import export_drafter
from shakedown.drafter.read import load_drafter
from shakedown.drafter.rotary import Rope
from shakedown.engines.lint import Serving, TargetConfig, lint
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError
from shakedown.jobs.draft_lint import shipped_surveys
from shakedown.jobs.drafter_facts import read_drafter_facts

ENGINES = shipped_surveys()


def target_of(config) -> TargetConfig:
    return TargetConfig(
        config={
            "architectures": [config.target_architecture],
            "num_hidden_layers": config.target_layers,
            "hidden_size": config.target_hidden,
            "vocab_size": config.vocab,
            "max_position_embeddings": config.max_positions,
            "rope_theta": config.rope.theta,
            "rope_scaling": config.rope.scaling,
        }
    )


def exported(folder, **changes):
    changes = {"target_hidden": HIDDEN, "aux_inputs_of": (2, 4, 5), "target_layers": 8, **changes}
    drafter = small_drafter(**changes)
    config = drafter.config
    full = config.draft_vocab == VOCAB
    d2t = torch.zeros(VOCAB, dtype=torch.int64) if full else small_vocabulary().d2t
    embedding = drafter.embedding if config.hidden != config.target_hidden else None
    export_drafter(folder, config, drafter.state_dict(), d2t, engines=ENGINES, embedding=embedding)
    return config, drafter, d2t


KINDS = {
    "plain": {},
    "whole vocabulary": {"draft_vocab": VOCAB},
    "another width": {"target_hidden": 20},
    "yarn": {
        "rope": Rope(
            theta=5e5, scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
        )
    },
    "kimi": {
        "target_architecture": "KimiK25ForConditionalGeneration",
        "target_layers": 61,
        "aux_inputs_of": (2, 30, 58),
    },
    "gpt-oss": {
        "target_architecture": "GptOssForCausalLM",
        "target_layers": 36,
        "aux_inputs_of": (2, 18, 33),
    },
}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_an_export_reads_back_and_serves_in_every_engine(tmp_path, changes):
    config, drafter, d2t = exported(tmp_path / "d", **changes)
    found_config, found, found_d2t = load_drafter(tmp_path / "d")
    assert replace(found_config, rope=config.rope) == config
    assert torch.equal(found_d2t, d2t)
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor.bfloat16().float()), name
    facts = read_drafter_facts(tmp_path / "d", None)
    for profile in ENGINES:
        report = lint(facts, target_of(config), profile, ENGINES)
        assert report.verdict is Serving.AS_TRAINED, (profile.title, report.findings)


def test_both_engines_numbers_are_written(tmp_path):
    exported(tmp_path / "llama")
    exported(tmp_path / "kimi", **KINDS["kimi"])
    for name, top, nested in (("llama", [2, 4, 5], [1, 3, 4]), ("kimi", [2, 30, 58], [1, 29, 57])):
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["eagle_aux_hidden_state_layer_ids"] == top
        assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == nested
    odd = {**KINDS["kimi"], "aux_inputs_of": (3, 30, 58)}
    exported(tmp_path / "odd", **odd)
    config = json.loads((tmp_path / "odd" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [3, 30, 58]


def test_layers_that_no_numbers_can_say_are_refused(tmp_path):
    changes = {**KINDS["kimi"], "aux_inputs_of": (1, 30, 58)}
    with pytest.raises(UsageError, match="no numbers"):
        exported(tmp_path / "d", **changes)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        exported(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_lies_beside_it_is_left_alone_and_an_empty_working_directory_is_filled(tmp_path, monkeypatch):
    mine = tmp_path / "d.part" / "mine"
    mine.parent.mkdir()
    mine.write_text("precious")
    exported(tmp_path / "d")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    exported(Path())
    for folder in (tmp_path / "d", Path()):
        assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
        assert folder.stat().st_mode == mine.parent.stat().st_mode
    assert mine.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "d.part", "here"]


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path, there):
    """A limit on the size of a file stands in for a full disk: the kernel refuses the write alike."""
    out = tmp_path / "d"
    if there:
        out.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, limits[1]))
        with pytest.raises(EnvironmentProblem, match="could not be written"):
            exported(out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.rglob("*")) == ([out] if there else [])


def test_another_width_needs_its_embedding(tmp_path):
    config = small_config(target_hidden=20)
    with pytest.raises(DataProblem, match="embedding"):
        export_drafter(
            tmp_path / "d", config, small_drafter().state_dict(), small_vocabulary().d2t, engines=ENGINES
        )
    assert not list(tmp_path.iterdir())


def change(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.pop("midlayer.hidden_norm.weight"), "missing: midlayer.hidden_norm.weight"),
        (lambda t: t.update(odd=torch.zeros(2)), "without a place: odd"),
        (lambda t: t.update({"fc.weight": torch.zeros(HIDDEN, 2)}), "fc.weight is"),
        (lambda t: t["norm.weight"].fill_(float("nan")), "not finite: norm.weight"),
        (lambda t: t.pop("d2t"), "no d2t"),
        (lambda t: t.update(d2t=t["d2t"] + torch.arange(DRAFT_VOCAB)), "d2t"),
        (lambda t: t.update(t2d=torch.ones(VOCAB, dtype=torch.bool)), "different tokens"),
    ],
)
def test_a_damaged_directory_is_refused_by_name(tmp_path, edit, words):
    exported(tmp_path / "d")
    change(tmp_path / "d", edit)
    with pytest.raises(DataProblem, match=words):
        load_drafter(tmp_path / "d")


@pytest.mark.parametrize("prefix", ["layers.0.", "model.layers.0.", "model.midlayer."])
def test_names_of_other_trainers_are_read(tmp_path, prefix):
    _, drafter, _ = exported(tmp_path / "d")

    def rename(tensors):
        for name in [n for n in tensors if n.startswith("midlayer.")]:
            tensors[name.replace("midlayer.", prefix)] = tensors.pop(name)

    change(tmp_path / "d", rename)
    _, found, _ = load_drafter(tmp_path / "d")
    assert torch.equal(found.fc.weight, drafter.fc.weight.bfloat16().float())


def test_a_foreign_directory_says_its_layers_as_its_trainer_wrote_them(tmp_path):
    exported(tmp_path / "d", target_layers=30, aux_inputs_of=(2, 15, 27))
    file = tmp_path / "d" / "config.json"
    config = json.loads(file.read_text())
    del config["shakedown"], config["eagle_aux_hidden_state_layer_ids"]
    file.write_text(json.dumps(config))
    assert load_drafter(tmp_path / "d")[0].aux_inputs_of == (2, 15, 27)
    del config["eagle_config"]
    file.write_text(json.dumps(config))
    with pytest.raises(UsageError, match="which three layers"):
        load_drafter(tmp_path / "d")
    assert load_drafter(tmp_path / "d", target_layers=40)[0].aux_inputs_of == (2, 20, 37)


@pytest.mark.parametrize("key", ["norm_before_residual", "fc_norm", "norm_output", "speculators_config"])
def test_a_drafter_of_another_kind_is_refused(tmp_path, key):
    exported(tmp_path / "d")
    file = tmp_path / "d" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: True}))
    with pytest.raises(UsageError, match="another kind"):
        load_drafter(tmp_path / "d")


def test_weights_of_torch_save_are_read(tmp_path):
    _, drafter, _ = exported(tmp_path / "d")
    torch.save(load_file(tmp_path / "d" / "model.safetensors"), tmp_path / "d" / "pytorch_model.bin")
    (tmp_path / "d" / "model.safetensors").unlink()
    _, found, _ = load_drafter(tmp_path / "d")
    assert torch.equal(found.lm_head.weight, drafter.lm_head.weight.bfloat16().float())
