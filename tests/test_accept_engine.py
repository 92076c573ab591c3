"""`accept` on vLLM 0.32 and SmolLM2, on a CPU: the engine counts what the walk of its text expects."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from accept_engines import asked, install_plant, look, measure_alone, vllm_argv
from overfitted import EIGHT_QUESTIONS, Reference, learn_by_heart

from shakedown.acceptance.lookup import Lookup
from shakedown.acceptance.replay import Standing
from shakedown.acceptance.rounds import Source
from shakedown.acceptance.verdict import Blame, Shown
from shakedown.drafter.architecture import Drafter
from shakedown.drafter.export import export_drafter
from shakedown.drafter.read import load_drafter
from shakedown.jobs.accept_expect import expect_lookup
from shakedown.jobs.draft_lint import shipped_surveys
from shakedown.provision import VLLM, prepare_engine, prepare_model

pytestmark = pytest.mark.engine

TOKENS = 32


def say(text: str) -> None:
    print(text, file=sys.stderr)


@pytest.fixture(scope="module")
def python() -> Path:
    return prepare_engine(VLLM, say)


@pytest.fixture(scope="module")
def model(python: Path) -> Path:
    return prepare_model(python, say)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("drafters") / "trained"
    learn_by_heart(Reference(model), out, questions=EIGHT_QUESTIONS, tokens=TOKENS, steps=45)
    return out


@pytest.fixture(scope="module")
def untrained(trained: Path, tmp_path_factory) -> Path:
    """The same head over random weights."""
    config, known, d2t = load_drafter(trained)
    torch.manual_seed(0)
    drafter = Drafter(config)
    drafter.lm_head.load_state_dict(known.lm_head.state_dict())
    out = tmp_path_factory.mktemp("drafters") / "untrained"
    export_drafter(out, config, drafter.state_dict(), d2t, engines=shipped_surveys())
    return out


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in EIGHT_QUESTIONS))
    return file


def test_heads_are_accepted_as_expected_and_change_no_word(
    shakedown, python, model, trained, untrained, prompts, port
):
    options = ("--prompts", str(prompts), "--tokens", str(TOKENS))
    heads = ("--drafter", str(trained), "--drafter", str(untrained))
    found = shakedown("accept", *heads, *options, launch=vllm_argv(python, model, port)).document
    good, bad = found["drafters"]
    for entry in (good, bad):
        assert entry["source"] == "every round of each request"
        assert entry["comparison"]["standing"] == "equal", entry["comparison"]
        assert entry["comparison"]["rounds_alike"] > 0.95
        assert entry["text"]["altered"] == 0
        assert entry["text"]["compared"] == len(EIGHT_QUESTIONS)
    assert good["tokens_per_round"]["value"] > 1.8  # the walk of these answers gives 2.5
    assert good["verdict"] == "serves as trained"
    assert bad["tokens_per_round"]["value"] < 1.1
    assert (bad["verdict"], bad["blame"]) == ("serves as trained", "drafter")


def test_prompt_lookup_is_accepted_as_the_text_says(python, model, port, tmp_path):
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    argv = [*vllm_argv(python, model, port), "--speculative-config", json.dumps(config)]
    measured = measure_alone(argv, asked(EIGHT_QUESTIONS), tmp_path, drafts=3, tokens=64)
    lookup = Lookup(shortest=1, longest=3, drafts=3)
    shown = expect_lookup(lookup, measured.answers, Shown(measured=None, margin=0.2))
    assert measured.source is Source.ROUNDS
    assert shown.reference is not None
    assert shown.reference.standing is Standing.EQUAL, shown.reference
    assert shown.reference.alike == 1.0
    assert shown.reference.expected.value > 1.1


def test_states_that_are_a_step_late_in_decode_are_found_in_the_engine_itself(
    python, model, trained, port, tmp_path
):
    argv = vllm_argv(python, model, port)
    env = install_plant(tmp_path / "plant", "late")
    looked = look(argv, model, trained, asked(EIGHT_QUESTIONS), tmp_path, env=env, tokens=TOKENS)
    assert looked.faults["prefill"] == "same"
    assert looked.faults["verification"] in {"stale", "token_shift"}
    assert looked.finding.blame is Blame.CAPTURE
    reference = looked.shown.reference
    assert reference is not None
    assert reference.standing is Standing.BELOW
