"""`draft lint` on directories on disk: files read without torch, verdicts, exit codes, a live engine."""

from __future__ import annotations

import json
import math
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from eagle3_directories import (
    DRAFT,
    HIDDEN,
    VOCAB,
    drafted_tokens,
    flags,
    floats,
    head_rows,
    healthy_config,
    healthy_shapes,
    integers,
    marks,
    offsets,
    write_drafter,
    write_target,
    write_tensors,
)

from shakedown.cli.main import cli
from shakedown.jobs.pickled import PickleRefused, read_pickled_tensors


def run_lint(*words: str | Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(cli, ["draft", "lint", "--json", *map(str, words)])
    return result.exit_code, json.loads(result.stdout)


def change_config(folder: Path, **changes: Any) -> None:
    config = {**healthy_config(), **changes}
    (folder / "config.json").write_text(json.dumps(config))


def errors(document: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in document["findings"] if finding["level"] == "error"}


def test_a_healthy_directory_serves_everywhere(tmp_path):
    drafter, target = write_drafter(tmp_path / "d"), write_target(tmp_path / "m")
    code, document = run_lint("--target", target, drafter)
    assert (code, document["verdict"], errors(document)) == (0, "serves as trained", set())
    assert {row["verdict"] for row in document["engines"]} == {"serves as trained"}
    assert any(f["rule"] == "d2t-offset" and "mean cosine" in f["evidence"] for f in document["findings"])


def test_a_faulty_one_fails_only_where_asked(tmp_path):
    drafter = write_drafter(tmp_path)
    change_config(drafter, norm_before_residual=True)
    code, document = run_lint("--engine", "sglang", "--engine-version", "0.5.14", drafter)
    assert (code, document["verdict"]) == (1, "loads but drafts wrongly")
    (finding,) = [f for f in document["findings"] if f["level"] == "error"]
    wanted = {"rule", "level", "engine", "version", "what", "evidence", "mend"}
    assert wanted <= set(finding)
    assert (finding["engine"], finding["version"]) == ("sglang", "0.5.14")
    assert run_lint("--engine", "vllm", drafter)[0] == 0


def test_the_answer_for_people_says_each_finding_once(tmp_path):
    drafter = write_drafter(tmp_path)
    change_config(drafter, num_hidden_layers=4)
    result = CliRunner().invoke(cli, ["draft", "lint", str(drafter)])
    assert result.exit_code == 1
    assert result.stdout.count("tensors-missing") == 2  # SGLang and vLLM name their later layers' norms apart
    assert "SGLang 0.5.14" in result.stdout
    assert "no --target: what depends on it was not judged" in result.stdout


def test_absolute_token_ids_are_told_from_offsets_by_the_targets_head(tmp_path):
    drafter, target = write_drafter(tmp_path / "d"), write_target(tmp_path / "m")
    tokens = [2 * i for i in range(DRAFT)]  # taken as offsets they would be the tokens 3 * i: also possible
    tensors = {name: floats(shape, 3) for name, shape in healthy_shapes().items()}
    tensors |= {"lm_head.weight": head_rows(tokens), "d2t": integers(tokens)}
    write_tensors(drafter / "model.safetensors", tensors)
    code, document = run_lint(drafter)
    assert (code, errors(document)) == (0, set())
    assert any(finding["rule"] == "d2t-undecided" for finding in document["findings"])
    code, document = run_lint("--target", target, drafter)
    assert (code, errors(document)) == (1, {"d2t-absolute"})


def test_a_map_of_another_head_is_warned_of_though_both_maps_agree(tmp_path):
    drafter, target = write_drafter(tmp_path / "d"), write_target(tmp_path / "m")
    tensors = {name: floats(shape, 3) for name, shape in healthy_shapes().items()}
    other = drafted_tokens(seed=9)
    tensors |= {"lm_head.weight": head_rows(drafted_tokens()), "d2t": integers(offsets(other))}
    for t2d in ({}, {"t2d": flags(marks(other))}):
        write_tensors(drafter / "model.safetensors", tensors | t2d)
        found = [
            f for f in run_lint("--target", target, drafter)[1]["findings"] if f["rule"] == "d2t-undecided"
        ]
        assert {(f["level"], f["what"]) for f in found} == {
            ("warning", "the head fits neither reading of d2t: the map may be that of another head")
        }


@pytest.mark.parametrize("name", ["lm_head.weight", "fc.weight", "midlayer.mlp.down_proj.weight"])
@pytest.mark.parametrize(("value", "words"), [(math.nan, "no finite number"), (0.0, "are all 0")])
def test_weights_that_are_no_numbers_or_all_0_draft_wrongly(tmp_path, name, value, words):
    drafter, target = write_drafter(tmp_path / "d"), write_target(tmp_path / "m")
    tensors = {each: floats(shape, 3) for each, shape in healthy_shapes().items()}
    tensors |= {"d2t": integers(offsets(drafted_tokens()))}
    kind, shape, raw = tensors[name]
    item = len(raw) // math.prod(shape)
    tensors[name] = (kind, shape, struct.pack("<f", value)[-item:] * math.prod(shape))
    write_tensors(drafter / "model.safetensors", tensors)
    code, document = run_lint("--target", target, drafter)
    assert (code, document["verdict"], errors(document)) == (1, "loads but drafts wrongly", {"weights-dead"})
    assert all(
        f["evidence"].startswith(f"{name}: ") and words in f["evidence"]
        for f in document["findings"]
        if f["rule"] == "weights-dead"
    )


def test_an_embedding_of_its_own_is_compared_with_the_targets(tmp_path):
    drafter, target = write_drafter(tmp_path / "d"), write_target(tmp_path / "m")
    tokens = drafted_tokens()
    tensors = {name: floats(shape, 3) for name, shape in healthy_shapes().items()}
    tensors |= {"lm_head.weight": head_rows(tokens), "d2t": integers(offsets(tokens))}
    for seed, found in ((1, set()), (9, {"embedding-replaced"})):
        tensors["embed_tokens.weight"] = floats((VOCAB, HIDDEN), seed)
        write_tensors(drafter / "model.safetensors", tensors)
        assert errors(run_lint("--target", target, drafter)[1]) == found


def test_a_file_that_ends_too_early_is_named(tmp_path):
    drafter = write_drafter(tmp_path)
    file = drafter / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    code, document = run_lint(drafter)
    assert (code, document["verdict"]) == (1, "does not load")
    assert "ends 10 bytes before t2d does" in json.dumps(document)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x10\0\0\0\0\0\0\0not json at all!"])
def test_a_file_that_is_no_safetensors_file_is_named(tmp_path, content):
    drafter = write_drafter(tmp_path)
    (drafter / "model.safetensors").write_bytes(content)
    code, document = run_lint(drafter)
    assert (code, document["verdict"]) == (1, "does not load")


def reheaded(edit: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def change(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        text = json.dumps(edit(header) or header).encode()
        return len(text).to_bytes(8, "little") + text + raw[8 + length :]

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: raw + bytes(4096), "holds 4096 bytes more than its header says"),
        (reheaded(lambda h: h["fc.weight"]["shape"].__setitem__(0, 31)), "fc.weight has"),
        (reheaded(lambda h: h.update({"norm.weight": h["midlayer.hidden_norm.weight"]})), "comes next"),
        (reheaded(lambda h: h["fc.weight"].pop("data_offsets") and None), "data_offsets None"),
        (reheaded(lambda h: h["fc.weight"].update(data_offsets=[-8, 8])), "data_offsets [-8, 8]"),
        (reheaded(lambda h: h.update({"fc.weight": 3})), "no place and shape of fc.weight"),
        (reheaded(lambda h: [1]), "no JSON object but a list"),
        (lambda raw: (10**5).to_bytes(8, "little") + b"[" * 10**5, "is not JSON"),
    ],
)
def test_a_file_that_the_engines_reader_refuses_does_not_load(tmp_path, change, why):
    drafter = write_drafter(tmp_path)
    file = drafter / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))
    code, document = run_lint(drafter)
    assert (code, document["verdict"]) == (1, "does not load")
    evidence = [f["evidence"] for f in document["findings"] if f["rule"] == "weights-unreadable"]
    assert all(why in each for each in evidence)
    assert evidence
    torch_reader = pytest.importorskip("safetensors")
    with pytest.raises(torch_reader.SafetensorError), torch_reader.safe_open(file, "np"):
        pass


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json.dumps({**healthy_config(), "max_position_embeddings": "8k"}), "'8k', which is no number"),
        (json.dumps({**healthy_config(), "hidden_size": [32]}), "hidden_size is [32], which is no number"),
        (json.dumps({**healthy_config(), "architectures": 3}), "architectures is 3, which is no list"),
        ("[" * 10**5, "is not JSON"),
    ],
)
def test_a_config_that_is_none_is_a_usage_error(tmp_path, text, why):
    drafter = write_drafter(tmp_path)
    (drafter / "config.json").write_text(text)
    code, document = run_lint(drafter)
    assert code == 2
    assert why in document["error"]


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_that_is_no_drafter_is_a_usage_error(tmp_path, missing):
    drafter = write_drafter(tmp_path)
    (drafter / missing).unlink()
    code, document = run_lint(drafter)
    assert code == 2
    assert document["error"]


def test_tensors_saved_by_torch_are_read_without_running_a_pickle(tmp_path):
    torch = pytest.importorskip("torch")
    drafter = write_drafter(tmp_path)
    (drafter / "model.safetensors").unlink()
    tokens = drafted_tokens()
    state = {n: torch.ones(s, dtype=torch.bfloat16) for n, s in healthy_shapes().items()}
    state["d2t"] = torch.tensor(offsets(tokens))
    state["t2d"] = torch.tensor(marks(tokens))
    torch.save(state, drafter / "pytorch_model.bin")
    code, document = run_lint(drafter)
    assert (code, errors(document)) == (0, set())
    state["d2t"] = torch.tensor(tokens)
    torch.save(state, drafter / "pytorch_model.bin")
    assert errors(run_lint(drafter)[1]) == {"d2t-absolute"}


def test_a_pickle_that_asks_for_more_is_refused_and_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    drafter = write_drafter(tmp_path / "d")
    (drafter / "model.safetensors").unlink()
    file = drafter / "pytorch_model.bin"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"fc.weight": Evil()}))
    with pytest.raises(PickleRefused, match="asks for"):
        read_pickled_tensors(file)
    code, document = run_lint(drafter)
    assert (code, document["verdict"]) == (1, "does not load")
    assert not (tmp_path / "ran").exists()


def test_an_engine_is_read_where_its_interpreter_is_given(tmp_path, monkeypatch):
    drafter = write_drafter(tmp_path / "d")
    models = tmp_path / "site" / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (tmp_path / "site" / "sglang" / "__init__.py").write_text("raise SystemExit('it is not to be imported')")
    (models / "llama_eagle3.py").write_text(
        'class LlamaForCausalLMEagle3: x = "fc_norm"\nEntryClass = [LlamaForCausalLMEagle3]\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    code, document = run_lint("--engine-python", sys.executable, drafter)
    assert code == 0
    assert [(row["engine"], row["source"]) for row in document["engines"]] == [("sglang", "live")]


def test_an_interpreter_without_an_engine_is_said(tmp_path):
    code, document = run_lint("--engine-python", sys.executable, write_drafter(tmp_path))
    assert code == 125
    assert "no module" in document["error"]


def test_linting_loads_no_torch(tmp_path):
    code = (
        "import sys; from click.testing import CliRunner; from shakedown.cli.main import cli;"
        f"print(CliRunner().invoke(cli, ['draft', 'lint', {str(write_drafter(tmp_path))!r}]).exit_code,"
        "*[m for m in ('torch', 'numpy', 'httpx', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]
