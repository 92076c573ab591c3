"""What `run` and `isolate` share: a subject from a reading, and the progress of its trial.

It never decides what to launch.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from shakedown.core import (
    BOOT_FACT,
    DRIVER_FACT,
    LEDGER_FACT,
    OPTIONS_FACT,
    PLACE_FACT,
    VERSION_FACT,
    WEIGHTS_FACT,
    Identity,
    Launch,
    Phase,
    Signature,
)
from shakedown.engines import display
from shakedown.errors import LedgerProblem
from shakedown.host import files, foreign
from shakedown.host.foreign import Listening
from shakedown.isolate.settings import PREFIXES
from shakedown.jobs.addresses import at_address
from shakedown.jobs.afterwards import looking_after
from shakedown.jobs.outside import model_folder, weight_bytes
from shakedown.jobs.reading import Reading, asked_for_random_weights, own_limits, target_of
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Progress, Talk
from shakedown.ledger import MODEL_FACT, Ledger
from shakedown.ledger.place import default_path, file_system
from shakedown.probe import Target
from shakedown.redact import Redactor
from shakedown.trial import Elsewhere, Occasion, Stated, Subject
from shakedown.watch import Assessment, Limits

NODES_FACT = "nodes"  # names of the nodes, of a launch on several
DETACHED_FACT = "detached"  # no terminal can end its watch: `stop ID` may


def facts_of(reading: Reading) -> dict[str, str]:
    """What a record says of the surroundings, and what its timings are learnt for."""
    command = reading.command
    redactor = Redactor.of(command.env, command.launch.argv)  # a model may be a URL with a password
    facts = {
        **reading.machine.facts(),
        **reading.machine.ask(files.standing),
        MODEL_FACT: redactor.redact_text(command.value(*command.engine.model_flags) or ""),
    }
    if reading.table is not None and reading.table.source == "live":
        facts[VERSION_FACT] = reading.table.version
    if reading.port is not None:
        facts["port"] = str(reading.port)
    folder = model_folder(command, reading.machine)
    if folder is not None and (weights := weight_bytes(folder, reading.machine)):
        facts[WEIGHTS_FACT] = str(weights)
        if not reading.machine.name:
            facts[PLACE_FACT] = file_system(folder)
    return facts


def told_options(request: LaunchRequest, *more: str) -> dict[str, str]:
    """Our own options as a record keeps them, for who wants the same again. Those of one launch come last."""
    given = (
        ("--engine", request.engine),
        ("--port", request.port),
        ("--ready-url", request.ready_url),
        ("--ready-log", request.ready_log),
        ("--deadline", f"{request.deadline_s:g}s" if request.deadline_s else None),
    )
    words = [word for name, value in given if value for word in (name, str(value))] + list(more)
    redactor = Redactor.of(request.launch.env, (*request.launch.argv, *words))
    told = {OPTIONS_FACT: shlex.join(redactor.redact_argv(words))} if words else {}
    return told | told_ledger(request.ledger)


def told_ledger(path: Path | None) -> dict[str, str]:
    """Where the user wants it, if it is not where it would be anyway."""
    with suppress(LedgerProblem):  # no place for one of its own
        if path is None or path == default_path():
            return {}
    return {LEDGER_FACT: str(path.absolute())} if path else {}


def standing_of(reading: Reading) -> dict[str, str]:
    """The facts of which a launch must have had the same to count as one of today."""
    facts = facts_of(reading)
    known = {name: facts.get(name, "") for name in (BOOT_FACT, DRIVER_FACT)}
    return known | ({VERSION_FACT: facts[VERSION_FACT]} if VERSION_FACT in facts else {})


def subject_of(
    reading: Reading,
    request: LaunchRequest,
    ledger: Ledger,
    *,
    title: str,
    deadline_s: float | None,
    launch: Launch | None = None,
    expected: Signature | None = None,
    keep: bool = False,
    token_only: bool = False,
    stated: Stated | None = None,
    past: Phase | None = None,
) -> Subject:
    """The launch as it will be watched: with what the ledger has learnt of this engine and model."""
    engine = reading.command.engine
    learnt = ledger.learnt_silences(engine.name, facts_of(reading)[MODEL_FACT])
    return Subject(
        title=title,
        launch=launch or reading.command.launch,
        engine=engine,
        port=reading.port,
        target=target_from_here(reading, token_only=token_only),
        limits=Limits(learnt=learnt, expected=expected, own_s=own_limits(reading.command)),
        ready_log=request.ready_log,
        deadline_s=deadline_s,
        keep=keep,
        wrong_because=asked_for_random_weights(reading.command),
        past=past,
        stated=stated or Stated(expectations=request.expect),
        gaps=reading.machine.gaps,
        elsewhere=elsewhere_of(reading, request, token_only=token_only),
        look_after=looking_after(reading.command, launch, reading.machine.python()),
    )


def target_from_here(reading: Reading, *, token_only: bool = False) -> Target | None:
    """The server's address, for another machine by a port of ours that leads there."""
    target = reading.target
    if target is None:
        return None
    return replace(target, base_url=reading.machine.reach(target.base_url), token_only=token_only)


def elsewhere_of(reading: Reading, request: LaunchRequest, *, token_only: bool) -> Elsewhere | None:
    """How to ask it where it is found to listen; a container's ports are others on this side."""
    command, machine = reading.command, reading.machine
    if command.container is not None:
        return None

    def at(place: Listening) -> Target:
        target = target_of(command, replace(request, ready_url=None), place.port)
        assert target is not None
        there = at_address(target.base_url, place.address)
        return replace(target, base_url=machine.reach(there), token_only=token_only)

    def ports(tree: tuple[Identity, ...]) -> tuple[Listening, ...]:
        return machine.ask(foreign.ports_of, tree)

    return Elsewhere(ports=ports, at=at, port=reading.port, idles=command.engine.default_port is None)


def occasion_of(
    reading: Reading, request: LaunchRequest, noted_env: frozenset[str] = frozenset(), *more: str
) -> Occasion:
    """`more`: options of ours besides those of the request."""
    return Occasion(noted_env=noted_env, facts={**facts_of(reading), **told_options(request, *more)})


def noted_variables(reading: Reading) -> frozenset[str]:
    """The variables worth a record: those the engine names, and those the command itself sets."""
    command = reading.command
    engine_knows = reading.table.env if reading.table else frozenset()
    return frozenset(name for name in command.env if name in engine_knows or name.startswith(PREFIXES))


def looking_on(talk: Talk, title: str) -> Callable[[Assessment], None]:
    """Passes on how a trial stands, as the talk wants it."""

    def look(assessment: Assessment) -> None:
        talk.progress(
            Progress(
                at_s=assessment.now_s,
                title=title,
                phase=assessment.phase,
                state=assessment.state.value,
                quiet_s=assessment.quiet_s,
                lines=tuple((seen.line, seen.noise) for seen in assessment.new_lines),
                note=assessment.note,
            )
        )

    return look


def plan_lines(reading: Reading, request: LaunchRequest) -> list[str]:
    """What --dry-run prints: all that would be started and signalled, secrets left out."""
    launch = reading.command.launch
    redactor = Redactor.of(launch.env, launch.argv, cwd=launch.cwd)
    asked = redactor.redact_text(reading.target.base_url) if reading.target else ""
    deadline = f"{request.deadline_s:.0f} s" if request.deadline_s else "none"
    return [
        f"would start    {display(redactor.redact_argv(launch.argv))}",
        f"in             {launch.cwd}",
        *([f"on             {reading.machine.name}"] if reading.machine.name else []),
        f"engine         {reading.command.engine.name}",
        f"would ask      {asked or 'nothing: its port is not known'}",
        f"deadline       {deadline}",
        *(f"must meet      {mark}" for mark in request.expect),
        "would signal   only processes this launch starts: TERM, up to 15 s of grace when healthy, then KILL",
    ]
