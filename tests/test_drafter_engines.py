"""Capture from an engine: files in, documents out, and every way in which an engine lets us down."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from drafter_targets import save_llama

from shakedown.drafter.capture import Request
from shakedown.drafter.capture_engine import SglangCapture, VllmCapture
from shakedown.drafter.engine_process import installed_version
from shakedown.drafter.target import Target, read_target
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError

ENGINE = Path(__file__).parent / "bad_servers" / "states_engine.py"


class OurEngine(VllmCapture):
    """vLLM's reader with a program of ours in the place of vLLM."""

    module = "numpy"
    script = str(ENGINE)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Target:
    folder = tmp_path_factory.mktemp("target")
    save_llama(folder)
    return read_target(folder)


def make_requests(count: int) -> list[Request]:
    made = []
    for sample in range(count):
        length = 5 + sample % 9
        made.append(
            Request(
                sample=sample,
                place=f"samples.jsonl:{sample + 1} (s{sample})",
                tokens=torch.arange(sample, sample + length, dtype=torch.int32) % 90,
                mask=torch.ones(length, dtype=torch.uint8),
                rows=torch.arange(1, length - 1),
            )
        )
    return made


def engine(target: Target, folder: Path, mode: str = "", **options: str) -> OurEngine:
    return OurEngine(
        target,
        python=Path(sys.executable),
        folder=folder,
        longest=13,
        options={"mode": mode, **options},
    )


def test_documents_hold_what_the_engine_wrote_and_nothing_is_left(target, tmp_path):
    requests = make_requests(40)
    (tmp_path / ".spool-killed").mkdir()
    capture = engine(target, tmp_path)
    capture._chunk_tokens = capture._most_tokens = 60  # several chunks, two at a time under way
    with capture:
        documents = {document.sample: document for document in capture.capture(requests)}
        left = sorted(path.suffix for path in capture._spool.iterdir())
    assert set(left) == {".json"}
    assert not list(tmp_path.iterdir())
    assert sorted(documents) == list(range(40))
    for request in requests:
        document = documents[request.sample]
        rows = request.tokens.float()[:, None]
        wanted = torch.cat([(rows + slot).expand(-1, 32) for slot in range(3)], dim=1)
        assert torch.equal(document.aux.float(), wanted)
        assert document.last.shape == (len(request.rows), 32)
        # The fourth slot is the last layer's output, equal everywhere: the norm makes it one.
        torch.testing.assert_close(document.last.float(), torch.ones(len(request.rows), 32))


@pytest.mark.parametrize(
    ("mode", "kind", "said"),
    [
        ("dies loading", EnvironmentProblem, "numpy ended with exit code 3 while loading"),
        ("dies computing", EnvironmentProblem, "numpy ended with exit code 1 while computing 3 samples"),
        ("other tokens", DataProblem, r"samples\.jsonl:1 \(s0\): numpy gave the states of 5 other tokens"),
        ("torn file", DataProblem, r"samples\.jsonl:1 \(s0\): numpy's file .* cannot be read"),
        ("a file less", DataProblem, "numpy gave 2 files for 3 samples"),
    ],
)
def test_an_engine_that_lets_us_down_is_an_error_with_its_last_words(target, tmp_path, mode, kind, said):
    with pytest.raises(kind, match=said) as failed, engine(target, tmp_path, mode) as capture:
        list(capture.capture(make_requests(3)))
    hints = "\n".join(failed.value.hints)
    if mode == "dies loading":
        assert "CUDA out of memory" in hints
        assert "hf_abc" not in hints
    if mode == "dies computing":
        assert "illegal memory access" in hints
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("hangs loading", r"numpy has given no answer for \d+ s while loading: it hangs"),
        ("hangs computing", r"numpy has given no answer for \d+ s while computing \d+ samples: it hangs"),
    ],
)
def test_an_engine_that_hangs_is_an_error_and_is_ended_with_its_workers(
    target, tmp_path, monkeypatch, mode, said
):
    monkeypatch.setattr("shakedown.drafter.engine_process.ENDING_S", 3.0)
    monkeypatch.setattr("shakedown.drafter.capture_engine.PATIENCE", 0)  # whatever a loaded machine's pace is
    pid = tmp_path / "pid"
    capture = engine(target, tmp_path / "states", mode, pid=str(pid))
    capture.shortest_patience_s = 0.5
    if mode == "hangs loading":
        capture.compiling_s = 10.0
    capture._chunk_tokens = capture._most_tokens = 60
    with pytest.raises(EnvironmentProblem, match=said) as failed, capture:
        list(capture.capture(make_requests(40)))
    assert "waiting for rank 1" in failed.value.hints
    for file in (pid, pid.with_name("pid.worker")):
        assert ended(int(file.read_text()))


def test_a_file_that_is_never_written_to_its_end_is_an_error(target, tmp_path):
    capture = engine(target, tmp_path, "never written")
    capture.shortest_patience_s = 0.1
    with pytest.raises(EnvironmentProblem, match=r"has not written .* to its end"), capture:
        list(capture.capture(make_requests(3)))


def test_an_engine_ends_when_whoever_asked_it_is_killed(tmp_path):
    pid = tmp_path / "pid"
    code = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from shakedown.drafter.engine_process import EngineProcess
        settings = {{"options": {{"pid": {str(pid)!r}}}, "spool": {str(tmp_path)!r}}}
        python, engine = Path({sys.executable!r}), {str(ENGINE)!r}
        with EngineProcess(python, engine, settings, name="x", say=print, loading_s=60):
            print("ready", flush=True)
            time.sleep(600)
    """)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert ended(int(pid.read_text()))


def ended(pid: int) -> bool:
    until_s = time.monotonic() + 30
    while alive(pid) and time.monotonic() < until_s:
        time.sleep(0.05)
    return not alive(pid)


def alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def fake_python(folder: Path, version: str) -> Path:
    """An interpreter that answers only the question for a version."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


def test_an_sglang_that_gives_only_its_last_state_is_refused_with_that_reason(target, tmp_path):
    python = fake_python(tmp_path, "0.5.14")
    with pytest.raises(
        UsageError, match=r"SGLang 0\.5\.14 gives only its last hidden state.* needs 0\.5\.23"
    ):
        SglangCapture(target, python=python, folder=tmp_path, longest=8)
    newer = SglangCapture(target, python=fake_python(tmp_path, "0.5.23.post1"), folder=tmp_path, longest=8)
    assert newer.layers() == [1, 3, 4]
    assert VllmCapture(target, python=python, folder=tmp_path, longest=8).layers() == [2, 4, 5, 8]


def test_an_interpreter_without_the_engine_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has no sglang"):
        installed_version(Path(sys.executable), "sglang")
    with pytest.raises(UsageError, match="cannot be run"):
        installed_version(tmp_path / "nothing", "vllm")
    assert installed_version(Path(sys.executable), "numpy") == json.loads(
        subprocess.check_output(
            [sys.executable, "-c", "import numpy, json; print(json.dumps(numpy.__version__))"]
        )
    )


@pytest.mark.engine
def test_vllm_captures_the_states_of_the_reference(tmp_path, monkeypatch):
    """The real engine on the real model: prefill states of every slot, held against transformers'."""
    from test_drafter_extract import Talk, write_samples

    from shakedown.jobs.draft_extract import ExtractRequest, extract_job
    from shakedown.provision import VLLM, prepare_engine, prepare_model

    python = prepare_engine(VLLM, print)
    write_samples(tmp_path / "samples.jsonl", 6)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    request = ExtractRequest(
        target=str(prepare_model(python, print)),
        samples=tmp_path / "samples.jsonl",
        out=tmp_path / "states",
        backend="vllm",
        engine_python=python,
    )
    result = extract_job(request, Talk())
    assert result.document["verdict"] == "same", result.lines
    assert result.document["samples"] == 6
