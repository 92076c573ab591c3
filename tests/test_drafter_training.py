"""Training learns, goes on after a kill to the bit, adds up over processes, and names what is broken."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drafter_targets import save_llama, save_qwen2
from safetensors.torch import save_file

from shakedown.drafter.checkpoint import (
    checkpoint_path,
    last_checkpoint,
    load_checkpoint,
    save_checkpoint,
    steps_saved,
)
from shakedown.drafter.plan import defaults_for
from shakedown.drafter.recipe import Recipe
from shakedown.drafter.states import Backend, Document, StatesManifest, StatesWriter, teacher_rows
from shakedown.drafter.target import Target, read_target
from shakedown.drafter.training import Rhythm
from shakedown.errors import DataProblem, EnvironmentProblem, ShakedownError, UsageError
from shakedown.jobs.draft_train import TrainRequest, shared_out, train_job

DOCUMENTS, DRAFT_VOCAB = 40, 60
RECIPE = Recipe(steps=3, epochs=4, pack_rows=128, learning_rate=5e-3, held_out=0.1)
RHYTHM = Rhythm(evaluate_steps=4, checkpoint_steps=3)


class Quiet:
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)

    def progress(self, progress):
        raise AssertionError(progress)


def document(target: Target, number: int) -> Document:
    """A text in which each token follows from the one before, as the target's last state says."""
    vocab, hidden = target.vocab_size, target.hidden_size
    follows = torch.randperm(vocab, generator=torch.Generator().manual_seed(0))
    random = torch.Generator().manual_seed(number + 1)
    length, prompt = int(torch.randint(18, 30, (1,), generator=random)), 5
    tokens = torch.randint(vocab, (length,), generator=random)
    for place in range(prompt, length):
        tokens[place] = follows[tokens[place - 1]]
    mask = (torch.arange(length) >= prompt).to(torch.uint8)
    rows = teacher_rows(mask)
    head = target.head().float()
    unit = head / head.norm(dim=1, keepdim=True)
    aux = torch.randn(vocab, 3 * hidden, generator=torch.Generator().manual_seed(5))[tokens]
    return Document(
        tokens=tokens.int(),
        mask=mask,
        aux=aux.bfloat16(),
        last=(unit[follows[tokens[rows]]] * 30).bfloat16(),
        last_rows=rows,
        sample=100 + number,
    )


def write_states(folder: Path, target: Target, documents: list[Document]) -> Path:
    manifest = StatesManifest(
        target=target.facts,
        backend=Backend(name="transformers", version="5"),
        aux_inputs_of=target.aux_inputs_of,
        samples_sha256="1" * 64,
    )
    with StatesWriter(folder, manifest, shard_bytes=60_000) as writer:
        for one in documents:
            writer.add(one)
        writer.finish()
    return folder


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Before any training of this module: sums in another order are not equal to the bit."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def setting(tmp_path_factory) -> TrainRequest:
    folder = tmp_path_factory.mktemp("setting")
    save_llama(folder / "target")
    target = read_target(folder / "target")
    documents = [document(target, number) for number in range(DOCUMENTS)]
    states = write_states(folder / "states", target, documents)
    return TrainRequest(
        target=str(folder / "target"),
        states=states,
        out=folder / "unused",
        draft_vocab=DRAFT_VOCAB,
        recipe=RECIPE,
        rhythm=RHYTHM,
    )


@pytest.fixture(scope="module")
def trained(setting, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "out"
    train_job(replace(setting, out=out), Quiet())
    return out


def curves(folder: Path, event: str) -> list[dict]:
    lines = map(json.loads, (folder / "curves.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k != "rows_per_s"} for line in lines if line["event"] == event]


def assert_same_training(one: Path, other: Path) -> None:
    """To the bit: losses, gradient norms, weights and moments."""
    assert curves(one, "step") == curves(other, "step")
    assert curves(one, "held_out") == curves(other, "held_out")
    first, second = load_checkpoint(one), load_checkpoint(other)
    assert first.step == second.step
    for name, tensor in {**first.weights, **first.moments}.items():
        assert torch.equal(tensor, {**second.weights, **second.moments}[name]), name


def test_it_learns_a_text_that_can_be_learnt(trained):
    steps, looks = curves(trained, "step"), curves(trained, "held_out")
    assert steps[-1]["loss_by_step"][0] < 0.5 * steps[0]["loss_by_step"][0]
    assert looks[-1]["by_step"][0] > 0.5 > looks[0]["by_step"][0]
    assert looks[-1]["tokens_per_round"] > 1.4


def test_a_checkpoint_carries_what_made_it(trained, setting):
    found = load_checkpoint(trained)
    assert found.recipe == RECIPE
    assert found.config.draft_vocab == DRAFT_VOCAB
    assert found.provenance["torch"] == torch.__version__
    assert set(found.provenance) >= {"shakedown", "commit", "transformers", "states", "device"}
    assert len(steps_saved(trained)) == 2  # the last two are kept
    ids = torch.arange(DRAFT_VOCAB) + found.d2t
    assert (ids.diff() > 0).all()


def command(request: TrainRequest, *more: str) -> list[str]:
    recipe, rhythm = request.recipe, request.rhythm
    options = {
        "target": request.target,
        "states": request.states,
        "out": request.out,
        "steps": recipe.steps,
        "epochs": recipe.epochs,
        "pack-rows": recipe.pack_rows,
        "learning-rate": recipe.learning_rate,
        "teacher-temperature": recipe.teacher_temperature,
        "held-out": recipe.held_out,
        "draft-vocab": request.draft_vocab,
        "evaluate-steps": rhythm.evaluate_steps,
        "checkpoint-steps": rhythm.checkpoint_steps,
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return ["-m", "shakedown", "draft", "train", *flags, *more]


ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_killed_training_goes_on_to_the_bit(setting, trained, tmp_path):
    request = replace(setting, out=tmp_path / "killed")
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, *command(request)], env=ALONE, stdout=log, stderr=subprocess.STDOUT
        )
        file = request.out / "curves.jsonl"
        while process.poll() is None:
            if file.exists() and file.read_text().count("\n") > 7 and steps_saved(request.out):
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.005)
        assert process.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
    killed_after = steps_saved(request.out)[-1]
    talk = Quiet()
    train_job(request, talk)
    assert f"goes on after step {killed_after}" in "\n".join(talk.said)
    assert_same_training(trained, request.out)


def test_a_training_that_is_over_is_not_trained_again(setting, trained, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(trained, out)
    before = last_checkpoint(out).stat().st_mtime_ns
    train_job(replace(setting, out=out), Quiet())
    assert last_checkpoint(out).stat().st_mtime_ns == before


# What torchrun does, with torch loaded once for both processes.
TWO = """
import os, socket, sys
from click.testing import CliRunner
from shakedown.cli.main import cli
import shakedown.jobs.draft_train
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0"}
child = os.fork()
if child == 0:
    os.environ["RANK"] = "1"
done = CliRunner().invoke(cli, sys.argv[1:])
if child == 0:
    os._exit(done.exit_code or len(done.stdout))
print(done.stdout)
print(done.stderr, file=sys.stderr)
sys.exit(done.exit_code or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_processes_train_as_one_does(setting, tmp_path):
    recipe = replace(RECIPE, epochs=1)
    alone = replace(setting, out=tmp_path / "alone", recipe=recipe, batch_packs=2)
    train_job(alone, Quiet())
    both = replace(alone, out=tmp_path / "both")
    words = [*command(both)[2:], "--batch-packs", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", TWO, *words], env=ALONE, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr  # the second process said nothing
    assert json.loads(done.stdout)["processes"] == 2
    for one, other in zip(curves(alone.out, "step"), curves(both.out, "step"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-5)
    assert curves(alone.out, "held_out") == curves(both.out, "held_out")


def without_the_last_checkpoint(finished: Path, folder: Path) -> Path:
    shutil.copytree(finished, folder)
    shutil.rmtree(last_checkpoint(folder))
    return folder


@pytest.mark.slow
def test_a_training_with_a_colder_teacher_goes_on_to_the_bit(setting, tmp_path):
    recipe = replace(RECIPE, epochs=2, teacher_temperature=0.5)
    whole = replace(setting, out=tmp_path / "whole", recipe=recipe)
    train_job(whole, Quiet())
    assert load_checkpoint(whole.out).recipe.teacher_temperature == 0.5
    cut = without_the_last_checkpoint(whole.out, tmp_path / "cut")
    train_job(replace(whole, out=cut), Quiet())
    assert_same_training(whole.out, cut)


def test_a_checkpoint_from_before_teachers_had_a_temperature_goes_on_with_its_own(setting, trained, tmp_path):
    out = without_the_last_checkpoint(trained, tmp_path / "older")
    for facts in out.glob("step-*/checkpoint.json"):
        found = json.loads(facts.read_text())
        assert found["recipe"].pop("teacher_temperature") == 1.0
        facts.write_text(json.dumps(found))
    train_job(replace(setting, out=out), Quiet())
    assert_same_training(trained, out)
    colder = replace(setting, out=out, recipe=replace(RECIPE, teacher_temperature=0.5))
    with pytest.raises(UsageError, match="another training: teacher temperature differ"):
        train_job(colder, Quiet())


def test_a_batch_that_does_not_divide_among_processes_is_refused(setting):
    with pytest.raises(UsageError, match="a batch of 4 packs does not divide among 3 processes"):
        shared_out(replace(setting, batch_packs=4), processes=3)


def test_a_batch_is_as_large_on_any_number_of_processes(setting):
    for processes in (1, 2, 8):
        recipe = shared_out(setting, processes)
        assert recipe.pack_rows * recipe.batch_packs == setting.recipe.pack_rows
        assert recipe.batch_packs == processes


def test_another_recipe_in_the_same_folder_is_refused(setting, trained):
    other = replace(setting, out=trained, recipe=replace(RECIPE, decay=0.7))
    with pytest.raises(UsageError, match=r"another training: decay differ"):
        train_job(other, Quiet())


def test_a_frozen_head_stays_as_the_targets(setting, tmp_path):
    request = replace(setting, out=tmp_path / "out", recipe=replace(RECIPE, epochs=1, freeze_head=True))
    train_job(request, Quiet())
    found = load_checkpoint(request.out)
    head = read_target(Path(setting.target)).head().float()
    assert torch.equal(found.weights["lm_head.weight"], head[torch.arange(DRAFT_VOCAB) + found.d2t])
    assert "lm_head.weight.first" not in found.moments


def test_states_that_are_not_finite_are_named(setting, tmp_path):
    target = read_target(Path(setting.target))
    documents = [document(target, number) for number in range(8)]
    documents[5].aux[9, 3] = float("nan")
    documents[5].aux[11, 0] = float("inf")
    states = write_states(tmp_path / "states", target, documents)
    with pytest.raises(DataProblem) as raised:
        train_job(replace(setting, states=states, out=tmp_path / "out"), Quiet())
    assert "states-0000" in raised.value.message
    assert "(sample 105): aux row 9 is not finite (2 of its" in raised.value.message


def test_a_damaged_shard_is_named_while_training_runs(setting, tmp_path):
    target = read_target(Path(setting.target))
    states = write_states(tmp_path / "states", target, [document(target, n) for n in range(8)])
    shard = states / "states-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataProblem, match=r"states-00000.safetensors is damaged"):
        train_job(replace(setting, states=states, out=tmp_path / "out"), Quiet())


def test_tokens_that_the_target_does_not_have_are_named(setting, tmp_path):
    target = read_target(Path(setting.target))
    documents = [document(target, number) for number in range(4)]
    documents[2].tokens[7] = target.vocab_size
    states = write_states(tmp_path / "states", target, documents)
    with pytest.raises(DataProblem, match=rf"sample 102\) holds tokens \d+ to {target.vocab_size}"):
        train_job(replace(setting, states=states, out=tmp_path / "out"), Quiet())


def test_states_of_another_target_are_refused(setting, tmp_path):
    save_qwen2(tmp_path / "other")
    with pytest.raises(UsageError, match=r"other weights"):
        train_job(replace(setting, target=str(tmp_path / "other"), out=tmp_path / "out"), Quiet())


def test_texts_without_two_generated_tokens_in_a_row_are_refused(setting, tmp_path):
    target = read_target(Path(setting.target))
    documents = []
    for one in (document(target, number) for number in range(3)):
        mask = torch.zeros_like(one.mask)
        mask[6] = 1
        rows = teacher_rows(mask)
        documents.append(replace(one, mask=mask, last=one.last[: len(rows)], last_rows=rows))
    states = write_states(tmp_path / "states", target, documents)
    with pytest.raises(DataProblem, match=r"none of 2 documents has two generated tokens in a row"):
        train_job(replace(setting, states=states, out=tmp_path / "out"), Quiet())


def eagle_folder(trained: Path, folder: Path) -> Path:
    """A checkpoint as anybody's EAGLE-3 directory."""
    found = load_checkpoint(trained)
    config = found.config
    folder.mkdir()
    save_file({**found.weights, "d2t": found.d2t}, folder / "model.safetensors")
    facts = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "draft_vocab_size": config.draft_vocab,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": config.max_positions,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_inputs_of),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [n - 1 for n in config.aux_inputs_of]},
    }
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


def test_a_warm_start_begins_where_the_other_drafter_ended(setting, trained, tmp_path):
    start = eagle_folder(trained, tmp_path / "public")
    request = replace(
        setting, start=start, draft_vocab=None, out=tmp_path / "out", recipe=replace(RECIPE, epochs=1)
    )
    train_job(request, Quiet())
    assert curves(request.out, "step")[0]["loss"] < 0.6 * curves(trained, "step")[0]["loss"]
    assert torch.equal(load_checkpoint(request.out).d2t, load_checkpoint(trained).d2t)


def test_a_warm_start_with_another_vocabulary_carries_the_rows_it_knows(setting, trained, tmp_path):
    start = eagle_folder(trained, tmp_path / "public")
    frozen = replace(RECIPE, epochs=1, freeze_head=True)
    request = replace(setting, start=start, draft_vocab=DRAFT_VOCAB + 20, out=tmp_path / "out", recipe=frozen)
    train_job(request, Quiet())
    old, new = load_checkpoint(trained), load_checkpoint(request.out)
    assert new.config.draft_vocab == DRAFT_VOCAB + 20
    target_head = read_target(Path(setting.target)).head().float()
    rows = dict(
        zip((torch.arange(DRAFT_VOCAB) + old.d2t).tolist(), old.weights["lm_head.weight"], strict=True)
    )
    new_ids = (torch.arange(DRAFT_VOCAB + 20) + new.d2t).tolist()
    for token, row in zip(new_ids, new.weights["lm_head.weight"], strict=True):
        assert torch.equal(row, rows.get(token, target_head[token]))


def test_a_fresh_drafter_may_have_a_wider_mlp_than_its_target(setting, trained, tmp_path):
    brief = replace(setting, out=tmp_path / "wide", intermediate=96, recipe=replace(RECIPE, epochs=1))
    train_job(brief, Quiet())
    found = load_checkpoint(brief.out)
    assert found.config.intermediate == 96 != load_checkpoint(trained).config.intermediate
    assert found.weights["midlayer.mlp.down_proj.weight"].shape[1] == 96
    start = eagle_folder(trained, tmp_path / "public")
    with pytest.raises(UsageError, match="cannot become 96"):
        train_job(replace(brief, start=start, draft_vocab=None, out=tmp_path / "out"), Quiet())


@contextmanager
def small_files(largest_bytes: int):
    """As a disk that is full: no file grows beyond this."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_refuses_leaves_the_checkpoint_before(trained, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(trained, out)
    before, found = steps_saved(out), load_checkpoint(out)
    with small_files(5_000), pytest.raises(EnvironmentProblem, match=r"could not be written"):
        save_checkpoint(out, replace(found, step=found.step + 1))
    assert steps_saved(out) == before
    assert not list(out.glob("*.part"))
    load_checkpoint(out)


def test_a_checkpoint_that_was_killed_mid_write_is_none(trained, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(trained, out)
    last = last_checkpoint(out)
    shutil.copytree(last, out / "step-00009999.part")
    assert last_checkpoint(out) == last
    (last / "optimiser.safetensors").write_bytes(b"cut")
    with pytest.raises(ShakedownError, match=str(last)) as caught:
        load_checkpoint(out)
    assert caught.value.hints[0].startswith(f"remove {last}: then the one before it")
    shutil.rmtree(last)
    before = load_checkpoint(out)
    assert before.step == steps_saved(out)[-1]
    (checkpoint_path(out, before.step) / "checkpoint.json").write_text("[]")
    with pytest.raises(ShakedownError, match="is no checkpoint of"):
        load_checkpoint(out)


def test_left_out_numbers_are_those_of_a_build_for_this_target(setting: TrainRequest):
    width = read_target(Path(setting.target)).hidden_size
    asked = TrainRequest.asked(
        target=setting.target,
        states=setting.states,
        out=setting.out,
        evaluate_steps=10,
        checkpoint_steps=10,
        epochs=2,
        learning_rate=None,
        pack_rows=None,
        teacher_temperature=None,
    )
    built = TrainRequest.of(setting.target, setting.states, setting.out, defaults_for(width).train)
    assert asked.recipe == replace(built.recipe, epochs=2)
    assert asked.recipe != replace(Recipe(), epochs=2)
