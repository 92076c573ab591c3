"""States on disk: what is written is read, a kill loses one shard at most, damage is named."""

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shakedown.drafter.states import (
    Backend,
    Document,
    StatesManifest,
    StatesWriter,
    TargetFacts,
    open_states,
    read_manifest,
    teacher_rows,
)
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError

HIDDEN = 8
MANIFEST = StatesManifest(
    target=TargetFacts(
        path="tiny",
        architecture="LlamaForCausalLM",
        hidden_size=HIDDEN,
        layers=8,
        vocab_size=50,
        weights_sha256="0" * 64,
    ),
    backend=Backend(name="transformers", version="5"),
    aux_inputs_of=(2, 4, 5),
    samples_sha256="1" * 64,
)


def document(sample: int) -> Document:
    """A document whose length, mask and states all follow from its number."""
    random = torch.Generator().manual_seed(sample)
    length = 5 + sample % 7
    mask = torch.zeros(length, dtype=torch.uint8)
    mask[3:] = 1
    rows = teacher_rows(mask)
    return Document(
        tokens=torch.randint(50, (length,), generator=random, dtype=torch.int32),
        mask=mask,
        aux=torch.randn(length, 3 * HIDDEN, generator=random).bfloat16(),
        last=torch.randn(len(rows), HIDDEN, generator=random).bfloat16(),
        last_rows=rows,
        sample=sample,
    )


def equal(left: Document, right: Document) -> bool:
    names = ("tokens", "mask", "aux", "last", "last_rows")
    return left.sample == right.sample and all(
        torch.equal(getattr(left, name), getattr(right, name)) for name in names
    )


def write(folder: Path, samples: range, shard_bytes: int = 1000) -> None:
    with StatesWriter(folder, MANIFEST, shard_bytes=shard_bytes) as writer:
        for sample in samples:
            if sample not in writer.done:
                writer.add(document(sample))
        writer.finish()


def test_documents_come_back_as_they_went_in(tmp_path):
    write(tmp_path, range(20))
    states = open_states(tmp_path)
    states.verify()
    assert len(states) == 20
    assert len(states.manifest.shards) > 3
    assert all(equal(states.documents()[i], document(i)) for i in range(20))
    assert equal(states[-1], document(19))
    assert states.manifest == read_manifest(tmp_path)
    assert states.manifest.tokens == sum(5 + i % 7 for i in range(20))


def test_only_rows_whose_next_token_was_generated_are_teachers():
    mask = torch.tensor([0, 0, 1, 1, 0, 1], dtype=torch.uint8)
    assert teacher_rows(mask).tolist() == [1, 2, 4]


def test_a_shard_is_mapped_not_read(tmp_path):
    """64 MiB of states, of which one row is looked at: the process does not grow by them."""
    width = 2**19
    manifest = replace(MANIFEST, target=replace(MANIFEST.target, hidden_size=width // 3))
    hidden = manifest.target.hidden_size
    with StatesWriter(tmp_path, manifest) as writer:
        writer.add(
            Document(
                tokens=torch.zeros(64, dtype=torch.int32),
                mask=torch.ones(64, dtype=torch.uint8),
                aux=torch.zeros(64, 3 * hidden, dtype=torch.bfloat16),
                last=torch.zeros(0, hidden, dtype=torch.bfloat16),
                last_rows=torch.zeros(0, dtype=torch.int64),
            )
        )
        writer.finish()
    states = open_states(tmp_path, verify=False)
    before = resident_bytes()
    assert states[0].aux[17].sum() == 0
    assert resident_bytes() - before < 16 * 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_flipped_bit_is_an_error_that_names_the_shard(tmp_path):
    write(tmp_path, range(20))
    damaged = tmp_path / "states-00001.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-5] ^= 4
    damaged.write_bytes(content)
    states = open_states(tmp_path)
    assert equal(states[0], document(0))
    with pytest.raises(DataProblem, match=r"states-00001\.safetensors is damaged"):
        list(states)
    with pytest.raises(DataProblem, match=r"states-00001\.safetensors is damaged"):
        states.verify()


def test_a_removed_shard_is_captured_anew(tmp_path):
    write(tmp_path, range(20))
    (tmp_path / "states-00001.safetensors").unlink()
    with pytest.raises(DataProblem, match="states-00001"):
        list(open_states(tmp_path))
    write(tmp_path, range(20))
    assert sorted(found.sample for found in open_states(tmp_path)) == list(range(20))
    assert all(equal(found, document(found.sample)) for found in open_states(tmp_path))


def test_a_folder_that_is_not_complete_is_refused_and_gone_on_with(tmp_path):
    with StatesWriter(tmp_path, MANIFEST, shard_bytes=1000) as writer:
        for sample in range(7):
            writer.add(document(sample))
    with pytest.raises(DataProblem, match="not complete: it holds 7 samples"):
        open_states(tmp_path)
    with StatesWriter(tmp_path, MANIFEST) as writer:
        assert writer.done == frozenset(range(7))
        writer.add(document(7))
        writer.finish()
    assert len(open_states(tmp_path)) == 8


def test_the_same_target_at_another_place_is_gone_on_with(tmp_path):
    with StatesWriter(tmp_path, MANIFEST) as writer:
        writer.add(document(0))
    moved = replace(MANIFEST, target=replace(MANIFEST.target, path="./moved/"))
    with StatesWriter(tmp_path, moved) as writer:
        assert writer.done == frozenset({0})


def test_an_error_of_the_capture_loses_nothing_that_was_gathered(tmp_path):
    def broken() -> None:
        with StatesWriter(tmp_path, MANIFEST) as writer:
            writer.add(document(0))
            raise KeyError("the capture broke")

    with pytest.raises(KeyError, match="the capture broke"):
        broken()
    assert read_manifest(tmp_path).samples == 1


@pytest.mark.parametrize(
    "other",
    [
        {"samples_sha256": "2" * 64},
        {"aux_inputs_of": (3, 4, 5)},
        {"backend": Backend(name="vllm", version="0.32.0")},
        {"target": replace(MANIFEST.target, weights_sha256="3" * 64)},
    ],
)
def test_a_folder_with_other_states_is_not_written_into(tmp_path, other):
    write(tmp_path, range(3))
    with pytest.raises(UsageError, match=f"holds other states: its {next(iter(other))} is"):
        StatesWriter(tmp_path, replace(MANIFEST, **other))
    write(tmp_path, range(3))  # and it is not held by who was refused


def test_two_writers_are_refused(tmp_path):
    with StatesWriter(tmp_path, MANIFEST), pytest.raises(UsageError, match="another process is writing"):
        StatesWriter(tmp_path, MANIFEST)


def test_states_of_a_wrong_shape_or_type_never_reach_a_shard(tmp_path):
    with StatesWriter(tmp_path, MANIFEST) as writer:
        with pytest.raises(DataProblem, match=r"sample 3: aux is torch\.float32"):
            writer.add(replace(document(3), aux=document(3).aux.float()))
        with pytest.raises(DataProblem, match="sample 3: last is"):
            writer.add(replace(document(3), last=document(3).last[1:]))


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "shakedown-states/9"}', "{not json"])
def test_a_broken_manifest_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DataProblem, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_a_manifest_that_names_another_file_is_refused(tmp_path):
    write(tmp_path, range(3))
    found = json.loads((tmp_path / "manifest.json").read_text())
    found["shards"][0]["file"] = "../elsewhere"
    (tmp_path / "manifest.json").write_text(json.dumps(found))
    (tmp_path.parent / "elsewhere").write_bytes(b"x")
    with pytest.raises(DataProblem, match="elsewhere"):
        open_states(tmp_path)[0]


def test_a_disk_that_is_full_keeps_what_was_written(tmp_path):
    """A limit on the size of a file stands in for a full disk: the kernel refuses the write alike."""
    write(tmp_path, range(4), shard_bytes=1000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = read_manifest(tmp_path)

    def fill() -> None:
        with StatesWriter(tmp_path, MANIFEST, shard_bytes=20_000) as writer:
            resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, limits[1]))
            for sample in range(4, 400):
                writer.add(document(sample))

    try:
        with pytest.raises(EnvironmentProblem, match=r"states-\d{5}\.safetensors \(samples 4 to \d+"):
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_manifest(tmp_path).shards == before.shards
    assert not list(tmp_path.glob("*.part"))
    write(tmp_path, range(40))
    assert len(open_states(tmp_path)) == 40


def test_killed_mid_write_nothing_that_was_finished_is_lost(tmp_path):
    """The writer is killed at the worst moment: a shard renamed, the manifest not yet written."""
    script = textwrap.dedent(f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        import shakedown.drafter.states as states
        from test_drafter_states import MANIFEST, document
        entered = []
        enter = states.write_manifest
        def enter_or_die(folder, manifest):
            if len(manifest.shards) == 3:
                (folder / "states-00007.safetensors.part").write_bytes(b"torn")
                os.kill(os.getpid(), signal.SIGKILL)
            enter(folder, manifest)
        states.write_manifest = enter_or_die
        with states.StatesWriter(Path({str(tmp_path)!r}), MANIFEST, shard_bytes=1000) as writer:
            for sample in range(40):
                writer.add(document(sample))
    """)
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == -signal.SIGKILL
    assert len(read_manifest(tmp_path).shards) == 2
    write(tmp_path, range(40))
    states = open_states(tmp_path)
    assert sorted(found.sample for found in states) == list(range(40))
    assert all(equal(found, document(found.sample)) for found in states)
    assert not list(tmp_path.glob("*.part"))
