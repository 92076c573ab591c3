"""`draft evaluate`: the tokens a round that a drafter gives on the target's own text, counted as engines do.

It generates nothing: the text is what the target wrote, from states on disk or computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from shakedown.acceptance.expect import Expectation, Floats, expect
from shakedown.acceptance.statistics import Interval
from shakedown.drafter.architecture import DrafterConfig
from shakedown.drafter.capture import read_requests
from shakedown.drafter.capture_transformers import TransformersCapture
from shakedown.drafter.memory import choose_device
from shakedown.drafter.read import load_drafter
from shakedown.drafter.shards import Document
from shakedown.drafter.states import open_states
from shakedown.drafter.target import Target, find_checkpoint, read_target
from shakedown.drafter.vocabulary import DraftVocabulary
from shakedown.drafter.walk import Judge, Rule, accept_matrices
from shakedown.errors import DataProblem, UsageError
from shakedown.jobs.result import ExitCode, JobResult, Talk

WINDOW = 64  # documents whose states are held at once


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateRequest:
    """`drafts`: the k of the engine; `temperature` 0: greedy decoding. One of `states` and `samples`."""

    target: str
    drafter: Path
    states: Path | None = None
    samples: Path | None = None
    drafts: int = 3
    temperature: float = 0.0
    documents: int | None = None
    device: str | None = None


def evaluate_job(request: EvaluateRequest, talk: Talk) -> JobResult:
    """Raises UsageError for parts that do not belong together, DataProblem for text without a round."""
    if (request.states is None) == (request.samples is None):
        raise UsageError("say which text: --states DIR of extract, or --samples FILE of synth")
    target = read_target(find_checkpoint(request.target))
    device = request.device or choose_device()
    config, drafter, d2t = load_drafter(
        request.drafter, target_layers=target.layers, target_architecture=target.architecture
    )
    refuse_other_target(config, target, request.drafter)
    if not len(drafter.embedding):
        drafter.attach_embedding(target.embedding().float())
    vocabulary = DraftVocabulary(d2t=d2t, vocab=config.vocab)
    found: dict[Rule, list[list[Floats]]] = {rule: [] for rule in rules_of(request.temperature)}
    drafter = drafter.to(device)
    head = target.head().to(device) if request.temperature else None
    for window in windows(request, config, target, device):
        for rule, matrices in found.items():
            judge = Judge(rule=rule, head=head, temperature=request.temperature or 1.0)
            matrices += accept_matrices(
                drafter, vocabulary, window, drafts=request.drafts, judge=judge, dtype=dtype_on(device)
            )
        talk.say(f"evaluate: {len(found[Rule.MATCH]):,} documents walked")
    try:
        expected = {rule: expect(matrices) for rule, matrices in found.items()}
    except ValueError as problem:
        raise DataProblem(
            f"{problem}: a round of {request.drafts} drafts needs as many tokens and two"
        ) from None
    return JobResult(
        document=document_of(request, expected), lines=list(told(request, expected)), exit_code=ExitCode.GOOD
    )


def rules_of(temperature: float) -> tuple[Rule, ...]:
    return (Rule.MATCH, Rule.PROBABILITY, Rule.OVERLAP) if temperature else (Rule.MATCH,)


def dtype_on(device: str) -> torch.dtype:
    return torch.float32 if device == "cpu" else torch.bfloat16


def refuse_other_target(config: DrafterConfig, target: Target, folder: Path) -> None:
    for what, own, theirs in (
        ("states", config.target_hidden, target.hidden_size),
        ("tokens", config.vocab, target.vocab_size),
        ("layers", config.target_layers, target.layers),
    ):
        if own != theirs:
            raise UsageError(
                f"{folder} drafts for another target: {own} as {what}, where {target.path} has {theirs}",
                "give the --target that the drafter was trained for",
            )


def windows(
    request: EvaluateRequest, config: DrafterConfig, target: Target, device: str
) -> Iterator[Sequence[Document]]:
    """The documents, some at a time. Raises UsageError for states of other layers or another target."""
    if request.states is not None:
        states = open_states(request.states)
        known = states.manifest
        if known.aux_inputs_of != config.aux_inputs_of or known.target.hidden_size != config.target_hidden:
            raise UsageError(
                f"{request.states} holds the inputs of layers {list(known.aux_inputs_of)}, width"
                f" {known.target.hidden_size}; the drafter was trained on {list(config.aux_inputs_of)}, width"
                f" {config.target_hidden}"
            )
        yield from gathered(islice(states, request.documents))
        return
    assert request.samples is not None
    if config.aux_inputs_of != target.aux_inputs_of:
        raise UsageError(
            f"the drafter was trained on the inputs of layers {list(config.aux_inputs_of)}; only those of"
            f" {list(target.aux_inputs_of)} are computed here",
            "capture them with the engine and give --states",
        )
    requests = islice(read_requests(request.samples), request.documents)
    with TransformersCapture(target, device=device, dtype=dtype_on(device)) as capture:
        for part in gathered(requests):
            yield list(capture.capture(part))


def gathered(items: Iterator[Any] | Any) -> Iterator[list[Any]]:
    iterator = iter(items)
    while part := list(islice(iterator, WINDOW)):
        yield part


def document_of(request: EvaluateRequest, expected: dict[Rule, Expectation]) -> dict[str, Any]:
    """The match rule's numbers on top; at a temperature each engine rule's below `at_temperature`."""
    document = {
        "schema": "shakedown/1",
        "command": "draft evaluate",
        "verdict": None,
        "drafter": str(request.drafter),
        "drafts": request.drafts,
        **expectation_document(expected[Rule.MATCH]),
    }
    if request.temperature:
        document["at_temperature"] = {
            "temperature": request.temperature,
            "drafter_greedy": expectation_document(expected[Rule.PROBABILITY]),
            "drafter_sampled": expectation_document(expected[Rule.OVERLAP]),
        }
    return document


def expectation_document(found: Expectation) -> dict[str, Any]:
    positions = enumerate(zip(found.conditional, found.unconditional, strict=True), 1)
    return {
        "tokens_per_round": interval_document(found.tokens_per_round),
        "per_position": [
            {"position": position, "conditional": interval_document(c), "unconditional": interval_document(u)}
            for position, (c, u) in positions
        ],
        "product_of_marginals": found.product_of_marginals,
        "uniform_joint": found.uniform_joint,
        "rounds": found.rounds,
        "documents": found.documents,
    }


def interval_document(interval: Interval) -> dict[str, float | None]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def told(request: EvaluateRequest, expected: dict[Rule, Expectation]) -> Iterator[str]:
    found = expected[Rule.MATCH]
    yield f"{shown(found.tokens_per_round)} tokens a round, with the bonus, at {request.drafts} drafts"
    yield f"{found.rounds:,.0f} rounds in {found.documents:,} documents; intervals of 95 % by document"
    yield ""
    yield "draft   accepted once tried      of all rounds"
    for position, (conditional, unconditional) in enumerate(
        zip(found.conditional, found.unconditional, strict=True), 1
    ):
        yield f"{position:>5}   {shown(conditional):<22}   {shown(unconditional)}"
    yield ""
    yield "what trainers print for the same text, with the bonus, and no engine reaches:"
    yield f"  product of marginal accuracies     {found.product_of_marginals:.2f}"
    yield f"  every token as a round's start     {found.uniform_joint:.2f}"
    if request.temperature:
        yield ""
        yield f"at temperature {request.temperature:g}, on the contexts of this text:"
        yield f"  drafter proposes its likeliest token   {shown(expected[Rule.PROBABILITY].tokens_per_round)}"
        yield f"  drafter samples (probabilistic modes)  {shown(expected[Rule.OVERLAP].tokens_per_round)}"


def shown(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.value:.2f} (no interval)"
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"
