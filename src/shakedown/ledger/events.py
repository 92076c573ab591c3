"""What can happen to a trial or a search after it was opened, and how it stands after that.

Pure: it reads no file and no clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from shakedown.core import (
    Conclusion,
    Ending,
    Experiment,
    Judgement,
    Phase,
    RecordState,
    SearchRecord,
    TrialRecord,
)
from shakedown.ledger.codec import encode, from_text
from shakedown.ledger.writers import Writer


class EventKind(StrEnum):
    CLOSED = "closed"  # a trial was judged, ended and cleaned
    CONCLUDED = "concluded"  # a search came to its end
    ADOPTED = "adopted"  # another process goes on with it
    STOPPED = "stopped"  # what an interrupted or kept launch left running was ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """`ending` is None for a launch that was kept running or ended by itself."""

    judgement: Judgement
    seconds: float
    ending: Ending | None = None
    silences: Mapping[Phase, float]
    kept_running: bool = False
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluding:
    conclusion: Conclusion
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    ending: Ending | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`body` is the JSON text of a Closing, Concluding, Writer or Stopping."""

    kind: EventKind
    at: str
    body: str


def last_writer(opened_by: Writer, events: Iterable[Event]) -> Writer:
    adopted = [event for event in events if event.kind is EventKind.ADOPTED]
    return from_text(Writer, adopted[-1].body) if adopted else opened_by


def trial_after(opened: TrialRecord, events: Iterable[Event], *, gone: bool) -> TrialRecord:
    """The trial as its latest event leaves it; `gone`: the process that wrote it has ended."""
    trial = opened
    for event in events:
        if event.kind is EventKind.CLOSED:
            closing = from_text(Closing, event.body)
            trial = replace(
                trial,
                state=RecordState.FINISHED,
                seconds=closing.seconds,
                judgement=closing.judgement,
                kept_running=closing.kept_running,
                facts=tuple((dict(opened.facts) | dict(closing.facts)).items()),
            )
        elif event.kind is EventKind.STOPPED:
            finished = trial.state is RecordState.FINISHED
            trial = replace(
                trial, kept_running=False, state=trial.state if finished else RecordState.INTERRUPTED
            )
    if trial.state is RecordState.OPEN and gone:
        return replace(trial, state=RecordState.INTERRUPTED)
    return trial


def search_after(opened: SearchRecord, events: Iterable[Event], *, gone: bool) -> SearchRecord:
    """The search as its latest event leaves it; one adopted after its conclusion is open again."""
    search = opened
    for event in events:
        if event.kind is EventKind.CONCLUDED:
            concluding = from_text(Concluding, event.body)
            search = replace(
                search,
                state=RecordState.FINISHED,
                conclusion=concluding.conclusion,
                seconds=concluding.seconds,
            )
        elif event.kind is EventKind.ADOPTED:
            search = replace(search, state=RecordState.OPEN)
    if search.state is RecordState.OPEN and gone:
        return replace(search, state=RecordState.INTERRUPTED)
    return search


def experiment_key(experiment: Experiment) -> str:
    """Equal for experiments that launch the same thing: why they are run does not matter."""
    told_apart = (
        experiment.kept,
        tuple(sorted(experiment.substitutes)),
        experiment.repeat,
        experiment.debug,
        *((experiment.rung,) if experiment.rung else ()),  # keys of older rows had none
        *(("stand-in",) if experiment.stand_in else ()),
    )
    return json.dumps(encode(told_apart), separators=(",", ":"))
