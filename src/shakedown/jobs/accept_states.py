"""The states that an engine hands its drafter, seen in a launch of its own and held against the reference.

It measures no speed: what writes states down is slower.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from shakedown.acceptance.replay import FEWEST_REQUESTS, Comparison
from shakedown.acceptance.verdict import StatesFinding
from shakedown.drafter.capture import Request
from shakedown.drafter.ladders import build_ladders
from shakedown.drafter.memory import give_back
from shakedown.drafter.parity import ParityFinding, compare_states
from shakedown.drafter.patterns import Fault
from shakedown.drafter.rungs import Ladder, distance, kept_rows
from shakedown.drafter.shards import Document
from shakedown.drafter.tapped import Stage, Tapped, assemble, install_plugin, read_steps, rows_of
from shakedown.drafter.threads import one_thread
from shakedown.errors import EnvironmentProblem
from shakedown.jobs.accept_answers import Answered
from shakedown.jobs.accept_enough import block_size
from shakedown.jobs.accept_expect import (
    ReferenceDrafter,
    expect_drafter,
    on_other_states,
    requests_of,
    told_tokens,
)
from shakedown.jobs.accept_launches import Contender
from shakedown.jobs.accept_measure import Measurement, Plan, measure_server
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Talk
from shakedown.jobs.serving import while_serving
from shakedown.probe import Target

Serve = Callable[[LaunchRequest, Talk, Callable[[Target], Measurement]], Measurement]
SEQUENCES = 24  # texts whose states are compared; all that were asked for are walked
FEWEST_TOKENS = 24  # of a stage, below which nothing is said of it


@dataclass(frozen=True, slots=True, kw_only=True)
class StatesSeen:
    """`findings`, `parity` and `scan` by stage, the last being each slot's median distance from every rung.

    `cell`: the reference drafter on the engine's states, against the engine in that launch, whose `answers`
    these are; `cost`: against it on its own states.
    """

    answers: tuple[Answered, ...]
    findings: tuple[StatesFinding, ...]
    parity: dict[str, ParityFinding]
    scan: dict[str, dict[str, Any]]
    cell: Comparison | None
    cost: Comparison | None


def see_states(
    launch: LaunchRequest,
    contender: Contender,
    reference: ReferenceDrafter,
    plan: Plan,
    talk: Talk,
    *,
    concurrency: int,
    serve: Serve = while_serving,
) -> StatesSeen:
    """Launches the contender once more with the plug-in. Raises EnvironmentProblem where it shows nothing.

    `concurrency` is the judged one: a fault may show in batches alone. `serve` launches it, and hands what
    `work` returns through.
    """
    talk.say(f"accept: the states that {contender.name} is handed")
    with tempfile.TemporaryDirectory(prefix="shakedown-tap-") as place:
        plugin, steps = Path(place) / "plugin", Path(place) / "steps"
        plugin.mkdir()
        steps.mkdir()
        added = install_plugin(plugin, contender.launch.env, steps, contender.engine)
        env = {**contender.launch.env, **added}
        own = replace(launch, launch=replace(contender.launch, env=env))
        number = asked_at(concurrency)
        give_back()  # what computed the reference: an engine counts what is free
        measured = serve(
            own,
            talk,
            lambda target: measure_server(target, plan, concurrency=concurrency, number=number, talk=talk),
        )
        answers = told_tokens(measured)
        texts = [[*each.prompt, *each.generated.tokens] for each in answers]
        tapped = assemble(list(read_steps(steps)), texts)
    seen = [(each, found) for each, found in zip(answers, tapped, strict=True) if found is not None]
    if not seen:
        raise EnvironmentProblem("the engine's plug-in wrote no states of the answers")
    return judge_states(reference, [a for a, _ in seen], [t for _, t in seen], plan, talk)


def asked_at(concurrency: int) -> int:
    """How many questions: where only sums of a block are told, blocks enough to compare."""
    return SEQUENCES if concurrency == 1 else max(SEQUENCES, FEWEST_REQUESTS * block_size(concurrency))


def judge_states(
    reference: ReferenceDrafter,
    answers: Sequence[Answered],
    tapped: Sequence[Tapped],
    plan: Plan,
    talk: Talk,
) -> StatesSeen:
    requests = [short(request) for request in requests_of(answers)]
    ladders = build_ladders(
        reference.target,
        requests[:SEQUENCES],
        device=reference.device,
        branches=reference.config.aux_inputs_of,
        say=talk.say,
    )
    parity: dict[str, ParityFinding] = {}
    scan: dict[str, dict[str, Any]] = {}
    for stage in Stage:
        compared = list(zip(ladders, answers, tapped, strict=False))  # ladders are the fewest
        parts = [rows_of(ladder, found.stages(len(a.prompt))[stage]) for ladder, a, found in compared]
        held = [(part, found) for part, (_, _, found) in zip(parts, compared, strict=True) if len(part.rows)]
        if sum(len(part.rows) for part, _ in held) < FEWEST_TOKENS:
            continue
        states = [found.aux[:, part.rows] for part, found in held]
        inputs, parts = reference.config.aux_inputs_of, [part for part, _ in held]
        parity[stage.value] = compare_states(states, parts, inputs)
        scan[stage.value] = {"expected": list(inputs), "errors": scanned(states, parts)}
    documents = [document_of(request, found) for request, found in zip(requests, tapped, strict=True)]
    return StatesSeen(
        answers=tuple(answers),
        findings=tuple(finding_of(stage, found) for stage, found in parity.items()),
        parity=parity,
        scan=scan,
        cell=expect_drafter(reference, documents, answers, plan.drafts, plan.margin),
        cost=on_other_states(reference, answers, documents, plan.drafts, plan.margin),
    )


@one_thread()
def scanned(states: Sequence[torch.Tensor], ladders: Sequence[Ladder]) -> list[list[float]]:
    """Of each slot the median distance over tokens from every rung; sinks left out."""
    kept = [kept_rows(ladder) for ladder in ladders]
    found = []
    for slot in range(len(states[0])):
        errors = [
            distance(x[slot].float(), ladder.rungs)[:, rows]
            for x, ladder, rows in zip(states, ladders, kept, strict=True)
        ]
        medians = torch.cat(errors, dim=1).median(dim=1).values
        found.append([float(value) for value in medians])
    return found


def short(request: Request) -> Request:
    """Without the last token, which no step ever took in."""
    return replace(request, tokens=request.tokens[:-1], mask=request.mask[:-1], rows=request.rows[:-1])


@one_thread()
def document_of(request: Request, tapped: Tapped) -> Document:
    """With the engine's aux states; the last state is not looked at by a greedy walk."""
    aux = tapped.aux.transpose(0, 1).flatten(1)
    last = torch.zeros(len(request.rows), tapped.aux.shape[-1])
    return Document(
        tokens=request.tokens,
        mask=request.mask,
        aux=aux.float(),
        last=last,
        last_rows=request.rows,
        sample=request.sample,
    )


def finding_of(stage: str, found: ParityFinding) -> StatesFinding:
    fault = found.fault.value
    if found.fault is Fault.SAME:
        fault = "same"
    return StatesFinding(stage=stage, fault=fault, what=found.what, tokens=found.tokens)
