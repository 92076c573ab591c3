"""Extract: what is captured is what the model computes, on the rows that are used, whatever interrupts it."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner
from drafter_targets import TARGETS, VOCABULARY, save_llama

from shakedown.cli.main import cli
from shakedown.drafter import extract as extracting
from shakedown.drafter.capture import all_finite, batches, read_requests
from shakedown.drafter.capture_transformers import TransformersCapture
from shakedown.drafter.extract import plan_extraction, refuse_full
from shakedown.drafter.manifest import Backend
from shakedown.drafter.origin import refuse_foreign
from shakedown.drafter.shards import Document
from shakedown.drafter.states import open_states, read_manifest
from shakedown.drafter.target import read_target
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError
from shakedown.jobs.draft_extract import ExtractRequest, extract_job
from shakedown.jobs.result import ExitCode


class Talk:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def progress(self, progress: Any) -> None:
        raise AssertionError


def write_samples(path: Path, count: int, *, longest: int = 30) -> list[dict[str, Any]]:
    """Samples of many lengths: a prompt, an answer, a question, an answer, and two tokens of the template."""
    random = torch.Generator().manual_seed(1)
    samples = []
    for number in range(count):
        length = 12 + number * 7 % (longest - 12)
        tokens = torch.randint(VOCABULARY, (length,), generator=random).tolist()
        samples.append(
            {
                "id": f"sample-{number}",
                "messages": [],
                "token_ids": tokens,
                "mask": [[3, 6], [8, length - 2]],
                "model": "tiny",
                "template": "0" * 64,
                "sampling": {},
                "finish": "stop",
            }
        )
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return samples


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("target")
    save_llama(folder)
    return folder


def run(target: Path, samples: Path, out: Path, **options: Any) -> Any:
    request = ExtractRequest(target=str(target), samples=samples, out=out, device="cpu", **options)
    return extract_job(request, Talk())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "deepseek_v3"])
def test_captured_states_are_those_of_transformers(tmp_path, name, streamed):
    """Batched and padded, against each sample alone."""
    TARGETS[name](tmp_path / "target")
    samples = write_samples(tmp_path / "samples.jsonl", 9)
    out = tmp_path / "states"
    options = {"batch_tokens": 64, "dtype": "float32", "streamed": streamed}
    result = run(tmp_path / "target", tmp_path / "samples.jsonl", out, **options)
    assert result.exit_code is ExitCode.GOOD
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "target", dtype=torch.float32).eval()
    states = open_states(out)
    assert states.manifest.backend == Backend(name="transformers", version=transformers.__version__)
    assert sorted(document.sample for document in states) == list(range(9))
    for document in states:
        sample = samples[document.sample]
        length = sample["mask"][-1][1]  # the template's last two tokens are used by no row
        assert document.tokens.tolist() == sample["token_ids"][:length]
        wanted = [row for start, stop in sample["mask"] for row in range(start - 1, stop - 1)]
        assert document.last_rows.tolist() == wanted
        with torch.no_grad():
            tokens = torch.tensor([sample["token_ids"][:length]])
            reference = model.model(tokens, output_hidden_states=True).hidden_states
        aux = torch.cat([reference[k][0] for k in (2, 4, 5)], dim=-1)
        torch.testing.assert_close(document.aux.float(), aux, rtol=0.01, atol=0.01)
        torch.testing.assert_close(document.last.float(), reference[-1][0, wanted], rtol=0.01, atol=0.01)


def test_a_published_kimi_is_captured_whole_and_streamed_alike(tmp_path):
    TARGETS["kimi"](tmp_path / "target")
    write_samples(tmp_path / "samples.jsonl", 6)
    found = {}
    for streamed in (False, True):
        out = tmp_path / f"states-{streamed}"
        run(tmp_path / "target", tmp_path / "samples.jsonl", out, streamed=streamed, batch_tokens=64)
        found[streamed] = open_states(out)
    assert found[True].manifest.target.architecture == "KimiK25ForConditionalGeneration"
    assert found[True].manifest.aux_inputs_of == (2, 4, 5)
    for whole, streamed in zip(found[False], found[True], strict=True):
        assert torch.equal(whole.aux, streamed.aux)
        assert torch.equal(whole.last, streamed.last)


def test_batches_are_of_like_length_and_hold_what_they_may(tmp_path):
    write_samples(tmp_path / "samples.jsonl", 40)
    requests = list(read_requests(tmp_path / "samples.jsonl"))
    found = list(batches(requests, 100))
    assert sorted(request.sample for batch in found for request in batch) == list(range(40))
    assert all(len(batch) * max(request.length for request in batch) <= 100 for batch in found)
    padded = sum(len(batch) * batch[0].length for batch in found)
    assert padded < 1.1 * sum(request.length for request in requests)
    assert [len(batch) for batch in batches(requests[:3], 1)] == [1, 1, 1]


def test_what_it_costs_is_said_first_and_is_what_it_costs(target, tmp_path):
    write_samples(tmp_path / "samples.jsonl", 20)
    talk = Talk()
    request = ExtractRequest(
        target=str(target), samples=tmp_path / "samples.jsonl", out=tmp_path / "states", device="cpu"
    )
    result = extract_job(request, talk)
    assert "of states" in talk.said[0]
    assert "free" in talk.said[0]
    assert any("tokens/s" in line for line in talk.said)
    written = sum(path.stat().st_size for path in (tmp_path / "states").glob("*.safetensors"))
    headers = 2000
    assert result.document["state_bytes"] <= written <= result.document["state_bytes"] + headers


def test_a_dry_run_only_says_what_it_would_cost(target, tmp_path):
    write_samples(tmp_path / "samples.jsonl", 20)
    result = run(target, tmp_path / "samples.jsonl", tmp_path / "states", dry_run=True)
    assert "20 samples" in result.lines[0]
    assert not (tmp_path / "states").exists()


def test_states_that_do_not_fit_the_disk_are_refused(target, tmp_path, monkeypatch):
    write_samples(tmp_path / "samples.jsonl", 20)
    plan = plan_extraction(tmp_path / "samples.jsonl", read_target(target))
    usage = type(extracting.shutil.disk_usage(tmp_path))
    monkeypatch.setattr(
        extracting.shutil, "disk_usage", lambda path: usage(10**9, 10**9, plan.state_bytes - 1)
    )
    with pytest.raises(EnvironmentProblem, match=r"20 samples, .* kB free"):
        refuse_full(plan, tmp_path / "not" / "yet" / "there")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            {"token_ids": [1, 2, 96, 4], "mask": [[2, 4]]},
            r"samples\.jsonl:2 \(s\): token 96 is beyond .* of 96",
        ),
        (
            {"token_ids": [1] * 129, "mask": [[2, 129]]},
            r"samples\.jsonl:2 \(s\): 129 tokens are more than the 128",
        ),
        ({"token_ids": [1, 2], "mask": [[0, 2]]}, r"samples\.jsonl:2 .*mask is full"),
        ({"token_ids": None, "mask": [[0, 2]]}, r"samples\.jsonl:2 is no sample"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused_with_its_line(target, tmp_path, spoil, said):
    samples = write_samples(tmp_path / "samples.jsonl", 3)
    samples[1] |= {"id": "s", **spoil}
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    with pytest.raises((UsageError, DataProblem), match=said):
        run(target, tmp_path / "samples.jsonl", tmp_path / "states")
    assert not (tmp_path / "states").exists()


def test_states_that_are_no_numbers_name_the_sample_and_lose_nothing(target, tmp_path):
    """A weight that overflows: from some layer on there are no numbers."""
    spoilt = tmp_path / "target"
    model = transformers.AutoModelForCausalLM.from_pretrained(target)
    with torch.no_grad():
        model.model.layers[3].mlp.down_proj.weight.fill_(torch.nan)
    model.save_pretrained(spoilt)
    write_samples(tmp_path / "samples.jsonl", 5)
    with pytest.raises(
        DataProblem, match=r"samples\.jsonl:\d \(sample-\d\): an aux state of token 0 is not finite"
    ):
        run(spoilt, tmp_path / "samples.jsonl", tmp_path / "states")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, -torch.nan, None])
def test_one_number_that_is_none_is_seen_wherever_it_lies(dtype, value):
    states = torch.randn(7, 24, generator=torch.Generator().manual_seed(0))
    states[0, :4] = torch.tensor([0.0, -0.0, torch.finfo(dtype).max, torch.finfo(dtype).min])
    states = states.to(dtype)
    assert all_finite(states[:, ::2])
    if value is not None:
        states[6, 22] = value
        assert not all_finite(states[:, ::2])
        assert all_finite(states[:, 1::2])


def test_given_again_it_goes_on_and_then_does_nothing(target, tmp_path):
    write_samples(tmp_path / "samples.jsonl", 30)
    out = tmp_path / "states"
    run(target, tmp_path / "samples.jsonl", out)
    states = open_states(out)
    shards = {path: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}
    result = run(target, tmp_path / "samples.jsonl", out)
    assert result.document["samples"] == 0
    assert "all there already" in result.lines[0]
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.safetensors")} == shards
    assert len(open_states(out)) == len(states) == 30


def test_other_samples_do_not_go_into_the_same_folder(target, tmp_path):
    write_samples(tmp_path / "samples.jsonl", 3)
    run(target, tmp_path / "samples.jsonl", tmp_path / "states")
    write_samples(tmp_path / "samples.jsonl", 4)
    with pytest.raises(UsageError, match="holds other states: its samples_sha256"):
        run(target, tmp_path / "samples.jsonl", tmp_path / "states")


SLOWLY = """
import sys, time
from pathlib import Path
from shakedown.drafter import capture_transformers, states
from shakedown.jobs import draft_extract
landed = capture_transformers.landed
def slowly(flight):
    time.sleep(0.05)
    return landed(flight)
capture_transformers.landed = slowly
states.StatesWriter.__init__.__kwdefaults__["shard_bytes"] = 20_000
class Talk:
    def say(self, text): print(text, flush=True)
target, samples, out = sys.argv[1:]
draft_extract.extract_job(
    draft_extract.ExtractRequest(
        target=target, samples=Path(samples), out=Path(out), device="cpu", batch_tokens=64
    ),
    Talk(),
)
"""


@pytest.mark.slow
def test_killed_while_it_captures_it_goes_on_where_it_was(target, tmp_path):
    write_samples(tmp_path / "samples.jsonl", 120)
    out = tmp_path / "states"
    script = [sys.executable, "-c", SLOWLY, str(target), str(tmp_path / "samples.jsonl"), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(script, stdout=subprocess.DEVNULL, env=environment)
    while process.poll() is None and not (out / "manifest.json").exists():
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before = read_manifest(out).samples
    assert 0 < before < 120
    result = run(target, tmp_path / "samples.jsonl", out)
    assert result.document["samples"] == 120 - before
    states = open_states(out)
    states.verify()
    assert sorted(document.sample for document in states) == list(range(120))


def test_a_disk_that_is_full_is_an_error_and_keeps_what_is_written(target, tmp_path):
    write_samples(tmp_path / "samples.jsonl", 60)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(EnvironmentProblem, match=r"states-00000\.safetensors .* could not be written"):
            run(target, tmp_path / "samples.jsonl", tmp_path / "states")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    run(target, tmp_path / "samples.jsonl", tmp_path / "states")
    assert len(open_states(tmp_path / "states")) == 60


def doc_of(tokens: list[int], states: torch.Tensor) -> Document:
    return Document(
        tokens=torch.tensor(tokens, dtype=torch.int32),
        mask=torch.ones(len(tokens), dtype=torch.uint8),
        aux=torch.zeros(len(tokens), 3 * states.shape[1]).bfloat16(),
        last=states.bfloat16(),
        last_rows=torch.arange(len(tokens) - 1),
    )


def test_samples_that_another_model_wrote_are_refused():
    """A target that is certain: of its own text it knows the next token, of the other's it is surprised."""
    head = torch.eye(96)
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(96, (100,), generator=random)
    knowing = 20 * head[tokens[1:]]
    refuse_foreign([doc_of(tokens.tolist(), knowing)], head, "samples.jsonl")
    other = (tokens + 1) % 96
    with pytest.raises(DataProblem, match=r"samples\.jsonl: this target did not write these samples"):
        refuse_foreign([doc_of(other.tolist(), knowing)], head, "samples.jsonl")
    guessing = torch.randn(99, 96, generator=random)  # as of random weights: it knows nothing and says so
    refuse_foreign([doc_of(other.tolist(), guessing)], head, "samples.jsonl")


class Faulty:
    """An engine that gives the reference's states, spoilt."""

    def __init__(self, inner: TransformersCapture, spoil: Any) -> None:
        self.inner, self.spoil = inner, spoil
        self.backend = Backend(name="faulty", version="1")
        self.window_tokens = self.first_tokens = 512

    def __enter__(self) -> "Faulty":
        self.inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.inner.__exit__(*error)

    def capture(self, requests: Sequence[Any]) -> Iterator[Document]:
        return map(self.spoil, self.inner.capture(requests))


def with_engine(monkeypatch, target: Path, samples: Path, out: Path, spoil: Any) -> Any:
    """The job with an engine of ours in the place of vLLM's."""
    from shakedown.jobs import draft_extract

    def engine(target: Any, **_: Any) -> Faulty:
        return Faulty(TransformersCapture(target, device="cpu"), spoil)

    monkeypatch.setitem(draft_extract.ENGINES, draft_extract.BackendName.VLLM, engine)
    return run(target, samples, out, backend="vllm", parity_sequences=8)


def test_a_healthy_engine_is_scanned_and_captured_and_its_parity_kept(target, tmp_path, monkeypatch):
    write_samples(tmp_path / "samples.jsonl", 12)
    result = with_engine(
        monkeypatch, target, tmp_path / "samples.jsonl", tmp_path / "states", lambda document: document
    )
    assert result.exit_code is ExitCode.GOOD
    assert result.document["verdict"] == "same"
    manifest = read_manifest(tmp_path / "states")
    assert manifest.complete
    assert manifest.parity is not None
    assert manifest.parity["fault"] == "same"
    assert manifest.parity["documents"] == 8
    assert [slot["expected"] for slot in manifest.parity["slots"]] == [2, 4, 5, 9]


def test_a_wrong_engine_is_stopped_at_once_and_its_pattern_named(target, tmp_path, monkeypatch):
    import dataclasses

    def permuted(document: Document) -> Document:
        slots = document.aux.view(len(document.tokens), 3, -1)
        return dataclasses.replace(document, aux=slots[:, [1, 0, 2]].flatten(1))

    write_samples(tmp_path / "samples.jsonl", 12)
    result = with_engine(monkeypatch, target, tmp_path / "samples.jsonl", tmp_path / "states", permuted)
    assert result.exit_code is ExitCode.BAD
    assert result.document["verdict"] == "permuted_slots"
    assert "nothing captured: permuted_slots" in result.lines[0]
    assert not list((tmp_path / "states").glob("*.safetensors"))


def test_the_command_prints_one_object(target, tmp_path):
    write_samples(tmp_path / "samples.jsonl", 3)
    words = ["draft", "extract", "--target", str(target), "--samples", str(tmp_path / "samples.jsonl")]
    done = CliRunner().invoke(cli, [*words, "--out", str(tmp_path / "states"), "--device", "cpu", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["command"] == "draft extract"
    assert found["samples"] == 3
    assert found["verdict"] is None


def test_a_target_that_is_nowhere_is_refused(tmp_path):
    write_samples(tmp_path / "samples.jsonl", 3)
    with pytest.raises(UsageError, match="neither a folder nor the name of a model"):
        run(Path("nobody/nothing"), tmp_path / "samples.jsonl", tmp_path / "states")
