"""A trial that the ledger knows of before it starts and after it is cleaned.

It never judges: it writes down what `conduct` found.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from shakedown.core import Experiment, Host, Judgement, Phase, RecordState, TrialRecord, Verdict
from shakedown.errors import EnvironmentProblem, LedgerProblem, ShakedownError, UsageError
from shakedown.ledger import Kind, Ledger
from shakedown.redact import Redactor
from shakedown.trial.conduct import Result, Subject, run_trial
from shakedown.watch import Assessment

LookOn = Callable[[Assessment], None]
Conduct = Callable[[Host, Subject, Path, LookOn], Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """Why a trial is run and what is remembered of it. `noted_env` are the variables worth a record.

    `trial_id` is one that was given away already, before there was a ledger to write to.
    """

    search_id: str | None = None
    trial_id: str | None = None
    experiment: Experiment | None = None
    noted_env: frozenset[str] = frozenset()
    facts: Mapping[str, str] = field(default_factory=dict)


def run_recorded(
    ledger: Ledger,
    host: Host,
    subject: Subject,
    occasion: Occasion,
    look_on: LookOn,
    conduct: Conduct = run_trial,
) -> TrialRecord:
    """Runs one trial between two entries of the ledger; a refusal to start is an entry too.

    A trial that is interrupted stays open in the ledger: whoever looks later sees it as interrupted.
    """
    trial_id = occasion.trial_id or ledger.new_id(Kind.TRIAL)
    folder = ledger.run_folder(trial_id)
    launch = subject.launch
    redactor = Redactor.of(launch.env, launch.argv, cwd=launch.cwd)
    noted = {name: value for name, value in launch.env.items() if name in occasion.noted_env}
    record = TrialRecord(
        id=trial_id,
        search_id=occasion.search_id,
        experiment=occasion.experiment,
        engine=subject.engine.name,
        argv=redactor.redact_argv(launch.argv),
        env=tuple(sorted(redactor.redact_env(noted).items())),
        cwd=str(launch.cwd),
        folder=folder,
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        state=RecordState.OPEN,
        facts=tuple(sorted({"host": platform.node(), **occasion.facts}.items())),
    )
    ledger.open_trial(record)
    began_s = host.clock_s()
    try:
        result = conduct(host, subject, folder, look_on)
    except (EnvironmentProblem, UsageError) as problem:
        refused = redactor.redact_noun(refusal(problem))
        ledger.close_trial(trial_id, refused, seconds=host.clock_s() - began_s)
        if isinstance(problem, UsageError):
            raise  # a program that does not exist is nothing another launch could show
        return ledger.trial(trial_id)
    judgement = redactor.redact_noun(result.judgement)  # a server may answer with what it must not say
    try:
        ledger.close_trial(
            trial_id,
            judgement,
            seconds=result.seconds,
            ending=result.ending,
            silences=result.silences,
            kept_running=result.run is not None,
        )
    except LedgerProblem as problem:  # a full disk; what minutes of waiting showed is told all the same
        showed = f"{judgement.verdict} in {judgement.phase}" + f": {judgement.cause}" * bool(judgement.cause)
        raise LedgerProblem(
            problem.message, f"not recorded: the launch {showed}", *problem.hints
        ) from problem
    return ledger.trial(trial_id)


def refusal(problem: ShakedownError) -> Judgement:
    """Nothing was started: the surroundings or the command forbid it."""
    return Judgement(
        verdict=Verdict.UNDECIDED,
        phase=Phase.CONFIG,
        cause=problem.message,
        would_change="; ".join(problem.hints),
        environment=True,
    )
