"""An exported drafter in vLLM on a CPU: it is read as it was trained, and what is said stays the target's."""

from __future__ import annotations

import json
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from overfitted import ANSWER_TOKENS, DRAFTS, Reference, learn_by_heart

from shakedown.acceptance.expect import expect
from shakedown.drafter.read import load_drafter
from shakedown.drafter.vocabulary import DraftVocabulary
from shakedown.drafter.walk import accept_matrices
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.serving import while_serving
from shakedown.probe import Target
from shakedown.provision import VLLM, prepare_engine, prepare_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

TIED = 1e-3  # nat, in fp32: of two tokens as likely either is the target's choice


def say(text: str) -> None:
    print(text, file=sys.stderr)


class Quiet:
    def say(self, text: str) -> None:
        say(text)

    def progress(self, progress: object) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    answers: list[list[int]]
    counters: dict[str, float]


@pytest.fixture(scope="module")
def python() -> Path:
    return prepare_engine(VLLM, say)


@pytest.fixture(scope="module")
def model(python: Path) -> Path:
    return prepare_model(python, say)


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


def ask(target: Target, path: str, body: dict[str, Any] | None = None) -> str:
    request = urllib.request.Request(
        target.url(path),
        data=json.dumps(body).encode() if body else None,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def serve(
    python: Path, model: Path, drafter: Path, prompts: list[list[int]], port: int, ledger: Path
) -> Served:
    speculation = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": DRAFTS}
    start = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    small = ["--max-model-len", "512", "--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1"]
    launch = [*start, *small, "--port", str(port), "--speculative-config", json.dumps(speculation)]

    def work(target: Target) -> Served:
        before = counters(ask(target, "/metrics"))
        answers = []
        for prompt in prompts:
            body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
            answer = json.loads(
                ask(target, "/v1/completions", {"model": target.model, **body, "return_token_ids": True})
            )
            answers.append(prompt + answer["choices"][0]["token_ids"])
        after = counters(ask(target, "/metrics"))
        return Served(answers=answers, counters={name: after[name] - before[name] for name in after})

    return while_serving(LaunchRequest.here(tuple(launch), ledger=ledger, port=port), Quiet(), work)


def counters(text: str) -> dict[str, float]:
    """vLLM's sums over all requests: rounds, tokens drafted, tokens accepted."""
    found = {"num_drafts": 0.0, "num_draft_tokens": 0.0, "num_accepted_tokens": 0.0}
    for line in text.splitlines():
        for name in found:
            if line.startswith(f"vllm:spec_decode_{name}_total{{"):
                found[name] += float(line.rsplit(" ", 1)[1])
    return found


def test_an_exported_drafter_is_accepted_as_expected_and_changes_no_word(
    python, model, reference, port, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    drafter = tmp_path / "drafter"
    learnt = learn_by_heart(reference, drafter)
    assert learnt.hits[0] > 0.9
    prompts = [tokens[:start] for tokens, start in learnt.answers]
    served = serve(python, model, drafter, prompts, port, tmp_path / "ledger.db")

    for tokens, prompt in zip(served.answers, prompts, strict=True):
        assert max(reference.regrets(tokens, len(prompt))) < TIED

    config, found, d2t = load_drafter(drafter)
    found.attach_embedding(reference.target.embedding().float())
    texts = [reference.document(t, len(p)) for t, p in zip(served.answers, prompts, strict=True)]
    vocabulary = DraftVocabulary(d2t=d2t, vocab=config.vocab)
    expected = expect(list(accept_matrices(found, vocabulary, texts, drafts=DRAFTS)))
    measured = 1 + served.counters["num_accepted_tokens"] / served.counters["num_drafts"]
    assert expected.tokens_per_round.value > 3  # it knows these answers by heart
    # the engine also counts each request's last rounds, which the end of the text cuts short
    assert measured == pytest.approx(expected.tokens_per_round.value, abs=0.4), served.counters
