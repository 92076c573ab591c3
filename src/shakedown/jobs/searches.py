"""The record of a search: opened, taken up again, and freed of what an interrupted launch left.

It never searches.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from shakedown.core import Expectation, Factor, RecordState, SearchRecord
from shakedown.engines import display
from shakedown.errors import HostProblem, UsageError
from shakedown.host.machine import Machine
from shakedown.isolate.settings import PREFIXES
from shakedown.jobs.reading import Reading
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Talk
from shakedown.jobs.trials import facts_of, noted_variables, standing_of, told_options
from shakedown.ledger import Ledger
from shakedown.ledger.query import differing
from shakedown.redact import REDACTED, Redactor, secret_names
from shakedown.report.again import ours

STARTING_S = 2.0  # a kill may strike a supervisor in mid-start; it ends what it started, a moment later
PASS_S = "pass_s"  # the fact that holds what was reckoned for a launch that serves: a resume reckons the same
SURROUNDINGS = "surroundings"  # the fact that holds what was found on the machine beforehand
WRITTEN_OUT = "written_out"  # the fact that holds a command whose config file was written out


def new_search(
    search_id: str,
    reading: Reading,
    request: LaunchRequest,
    factors: tuple[Factor, ...],
    seed: int,
    surroundings: str,
    pass_s: float,
) -> SearchRecord:
    command = reading.command
    launch = request.launch
    redactor = Redactor.of(launch.env, command.launch.argv, cwd=launch.cwd)
    expect = "; ".join(map(str, request.expect))
    options = {"ready_url": request.ready_url, "ready_log": request.ready_log, "expect": expect}
    told = {name: redactor.redact_text(value) for name, value in options.items() if value}
    told |= told_options(request)
    told[PASS_S] = f"{pass_s:.3f}"
    if surroundings:
        told[SURROUNDINGS] = redactor.redact_text(surroundings)
    if command.launch.argv != launch.argv:
        told[WRITTEN_OUT] = display(redactor.redact_argv(command.launch.argv))
    noted = {name: launch.env[name] for name in noted_variables(reading) if name in launch.env}
    return SearchRecord(
        id=search_id,
        engine=command.engine.name,
        argv=redactor.redact_argv(launch.argv),
        env=tuple(sorted(redactor.redact_env(noted).items())),
        secrets=tuple((name, "") for name in secret_names(launch.env)),
        cwd=str(launch.cwd),
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        state=RecordState.OPEN,
        seed=seed,
        facts=tuple(sorted({**facts_of(reading), **told, **dict(request.facts)}.items())),
        factors=factors,
    )


def request_of(earlier: SearchRecord, given: LaunchRequest) -> LaunchRequest:
    """The request of an interrupted search: its command, variables and options; secrets come from here."""
    launch = given.launch
    if earlier.state is RecordState.OPEN:
        raise still_going_on(earlier)
    require_secrets(earlier, given)
    argv = launch.argv or earlier.argv
    if any(REDACTED in token for token in argv):
        raise UsageError(
            f"the command of {earlier.id} holds a secret, which the ledger does not keep",
            f"give the command again: {ours('isolate --resume', earlier.id, dict(earlier.facts))} -- CMD",
        )
    if Redactor.of(launch.env, argv, cwd=Path(earlier.cwd)).redact_argv(argv) != earlier.argv:
        raise UsageError(
            f"this is not the command of {earlier.id}: {display(earlier.argv)}",
            "start a new search for another command",
        )
    recorded = {name: value for name, value in earlier.env if REDACTED not in value}
    names, facts = {name for name, _ in earlier.env}, dict(earlier.facts)
    here = {
        name: value for name, value in launch.env.items() if name in names or not name.startswith(PREFIXES)
    }
    return replace(
        given,
        launch=replace(launch, argv=argv, env={**here, **recorded}, cwd=Path(earlier.cwd)),
        engine=earlier.engine,
        port=given.port or (int(facts["port"]) if "port" in facts else None),
        ready_url=given.ready_url or facts.get("ready_url"),
        ready_log=given.ready_log or facts.get("ready_log"),
        expect=given.expect
        or tuple(map(Expectation.read, filter(None, facts.get("expect", "").split("; ")))),
    )


def require_secrets(earlier: SearchRecord, given: LaunchRequest) -> None:
    """What the ledger does not keep must be here again: without it the launches would be others."""
    named = [name for name, _ in earlier.secrets] + [name for name, value in earlier.env if REDACTED in value]
    missing = [name for name in dict.fromkeys(named) if not given.launch.env.get(name)]
    if missing:
        raise UsageError(
            f"{earlier.id} was begun with secrets that this shell has not: {', '.join(missing)}",
            "the ledger keeps none: set them again; one that the server does not read may have any value",
        )
    facts = dict(earlier.facts)
    for fact, value in (("ready_url", given.ready_url), ("ready_log", given.ready_log)):
        if not value and REDACTED in facts.get(fact, ""):
            raise UsageError(
                f"--{fact.replace('_', '-')} of {earlier.id} holds a secret, which the ledger does not keep",
                "give it again, with --resume",
            )


def require_same_files(earlier: SearchRecord, reading: Reading) -> None:
    """The factors of a search are places in the very command that it read."""
    launch = reading.command.launch
    now = display(Redactor.of(launch.env, launch.argv, cwd=launch.cwd).redact_argv(launch.argv))
    if dict(earlier.facts).get(WRITTEN_OUT, now) != now:
        raise UsageError(
            f"the config file of {earlier.id} has changed since: {now}", "start a new search with it"
        )


def still_going_on(search: SearchRecord) -> UsageError:
    return UsageError(
        f"{search.id} is still going on in another process", "interrupt that one first, with Ctrl-C"
    )


def take_up(ledger: Ledger, host: Machine, search: SearchRecord, reading: Reading, talk: Talk) -> None:
    """This process goes on with the search, and what its last one left is ended.

    Raises UsageError where another process was faster: two would launch on one port.
    """
    if not ledger.adopt(search.id):
        raise still_going_on(search)
    end_leftovers(ledger, host, search, talk)
    today = standing_of(reading)
    for trial in ledger.trials_of(search.id):
        changed = differing(trial, today)
        if changed and trial.state is RecordState.FINISHED:
            before = dict(trial.facts)
            told = "; ".join(
                f"{it} was {before.get(it) or 'none'}, is {today[it] or 'none'}" for it in changed
            )
            talk.say(f"{trial.id} does not count any more and is asked anew: {told}")


def end_leftovers(ledger: Ledger, host: Machine, search: SearchRecord, talk: Talk) -> None:
    """What an interrupted launch of this search left running would hold its port and its memory."""
    for trial in ledger.trials_of(search.id):
        if trial.state is not RecordState.INTERRUPTED:
            continue
        try:
            run = host.attach_run(trial.folder, patience_s=STARTING_S)
        except HostProblem:
            continue  # it was interrupted before anything was started
        running = host.processes(run)
        ending = host.end(run, grace_s=0.0)
        if running:
            ledger.mark_stopped(trial.id, ending)
            talk.say(f"ended what the interrupted {trial.id} left")
