"""What one drafter should have given in this engine, and where a gap comes from.

It measures no speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shakedown.acceptance.replay import Standing
from shakedown.acceptance.verdict import Shown
from shakedown.drafter.tapped import PLUGGED
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError
from shakedown.jobs.accept_answers import Answered
from shakedown.jobs.accept_expect import (
    ReferenceDrafter,
    expect_drafter,
    expect_elsewhere,
    expect_lookup,
    lookup_for,
    requests_of,
    told_tokens,
)
from shakedown.jobs.accept_launches import Contender
from shakedown.jobs.accept_measure import Measurement, Plan
from shakedown.jobs.accept_request import AcceptRequest, target_folder
from shakedown.jobs.accept_states import StatesSeen, see_states
from shakedown.jobs.reading import Reading
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Talk


def expected_of(
    request: AcceptRequest,
    reading: Reading,
    launch: LaunchRequest,
    contender: Contender,
    measurement: Measurement,
    shown: Shown,
    plan: Plan,
    talk: Talk,
) -> tuple[Shown, StatesSeen | None]:
    """What is shown once the reference is asked, too; where there is none, `why_unexpected` says so."""
    told = contender.speculation
    assert told is not None
    if shown.measured is None or shown.idle:
        return shown, None
    answers = told_tokens(measurement)
    if (lookup := lookup_for(contender)) is not None:
        return expect_lookup(lookup, answers, shown), None
    if (why := why_no_reference(contender, answers)) is not None:
        return replace(shown, why_unexpected=why), None
    try:
        reference = ReferenceDrafter.load(Path(told.drafter), target_folder(request, reading))
    except (UsageError, DataProblem) as problem:  # what was measured stands all the same
        return replace(shown, why_unexpected=problem.message), None
    documents = reference.states(requests_of(answers))
    comparison = expect_drafter(reference, documents, answers, contender.drafts, request.margin)
    shown = replace(shown, reference=comparison)
    if request.trained_on is not None:
        elsewhere, template = expect_elsewhere(
            reference, request.trained_on, contender.drafts, request.tokens
        )
        shown = replace(shown, elsewhere=elsewhere, other_template=template)
    if not request.states and comparison.standing in (Standing.EQUAL, Standing.UNDECIDED):
        return shown, None
    if contender.engine not in PLUGGED or reading.command.container is not None:
        return shown, None
    try:
        seen = see_states(launch, contender, reference, plan, talk, concurrency=request.concurrency[0])
    except EnvironmentProblem as problem:
        talk.say(f"accept: the engine's states were not seen: {problem.message}")
        return shown, None
    cell = seen.cell
    return replace(
        shown,
        states=seen.findings,
        engine_states=cell,
        cost_of_states=seen.cost,
        proposals=cell.alike if cell is not None else None,
    ), seen


def why_no_reference(contender: Contender, answers: Sequence[Answered]) -> str | None:
    told = contender.speculation
    assert told is not None
    if not told.eagle3:
        return f"what {told.method} should give is not known: only EAGLE-3 and prompt lookup have a reference"
    if contender.topk > 1:
        return f"a tree of drafts (topk {contender.topk}) is not walked: rerun with topk 1"
    if not answers:
        return "the server does not tell the tokens of its answers"
    return None
