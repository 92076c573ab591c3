"""`shakedown isolate`: find and prove what makes a launch fail, and hand it back, working."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from shakedown.core import Conclusion, Expectation, Factor, RecordState, SearchRecord, Step, Verdict
from shakedown.engines import display, require_isolatable
from shakedown.errors import HostProblem, Interrupted, UsageError
from shakedown.host.local import LocalHost
from shakedown.isolate import Clues, SearchLimits, forecast, isolate
from shakedown.isolate.factors import factors_of
from shakedown.isolate.sorting import PREFIXES
from shakedown.isolate.values import values_of
from shakedown.jobs.oracle import TrialOracle
from shakedown.jobs.reading import Reading, describe, read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import ExitCode, JobResult, Talk, exit_code_of_search
from shakedown.jobs.trials import facts_of, noted_variables, plan_lines
from shakedown.ledger import MODEL_FACT, Kind, Ledger
from shakedown.redact import REDACTED, Redactor
from shakedown.report import isolate_document, isolate_report, isolate_summary

STARTING_S = 2.0  # a kill may strike a supervisor in mid-start; it ends what it started, a moment later
UNKNOWN_LAUNCH_S = 60.0  # of an engine and model the ledger has not seen


def isolate_job(
    request: LaunchRequest, talk: Talk, *, max_launches: int, resume: str | None, seed: int
) -> JobResult:
    """Runs the search, or goes on with an interrupted one, and writes its report."""
    host = LocalHost()
    with Ledger.open(request.ledger) as ledger:
        earlier = ledger.search(resume) if resume else None
        if earlier is not None:
            request = request_of(earlier, request)
            if not request.dry_run:
                end_leftovers(ledger, host, earlier, talk)
        reading = read_request(request, host, talk, live=True)
        require_isolatable(reading.command)
        factors = earlier.factors if earlier is not None else factors_of(reading.command, reading.table)
        if request.dry_run:
            return dry_run(reading, request, factors)
        search = earlier or new_search(ledger, reading, request, factors, seed)
        if earlier is None:
            ledger.open_search(search)
        else:
            ledger.adopt(search.id)
        announce(ledger, reading, search, talk, max_launches)
        oracle = TrialOracle(
            ledger, host, reading, request, factors, search.id, talk, max_launches=max_launches
        )
        # numpy loads with the search: its matrices are small, and its threads would spin beside the server.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        try:
            conclusion = isolate(
                factors,
                oracle,
                seed=search.seed,
                clues=Clues(values=values_of(factors, reading.command, reading.table)),
                limits=SearchLimits(max_launches=max_launches),
                report=lambda step: talk.say(told(step)),
            )
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; what was started has been ended, finished launches are kept",
                f"go on with: shakedown isolate --resume {search.id}",
            ) from None
        ledger.close_search(search.id, conclusion, seconds=oracle.seconds)
        return result_of(ledger, search.id, conclusion, talk)


def new_search(
    ledger: Ledger, reading: Reading, request: LaunchRequest, factors: tuple[Factor, ...], seed: int
) -> SearchRecord:
    command = reading.command
    launch = command.launch
    redactor = Redactor.of(launch.env, launch.argv, cwd=launch.cwd)
    expect = "; ".join(map(str, request.expect))
    options = {"ready_url": request.ready_url, "ready_log": request.ready_log, "expect": expect}
    told_ready = {name: redactor.redact_text(value) for name, value in options.items() if value}
    noted = {name: launch.env[name] for name in noted_variables(reading) if name in launch.env}
    return SearchRecord(
        id=ledger.new_id(Kind.SEARCH),
        engine=command.engine.name,
        argv=redactor.redact_argv(launch.argv),
        env=tuple(sorted(redactor.redact_env(noted).items())),
        secrets=(),
        cwd=str(launch.cwd),
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        state=RecordState.OPEN,
        seed=seed,
        facts=tuple(
            sorted(
                {"host": platform.node(), **facts_of(reading), **told_ready, **dict(request.facts)}.items()
            )
        ),
        factors=factors,
    )


def request_of(earlier: SearchRecord, given: LaunchRequest) -> LaunchRequest:
    """The request of an interrupted search: its command, variables and options; secrets come from here."""
    launch = given.launch
    if earlier.state is RecordState.OPEN:
        raise UsageError(
            f"{earlier.id} is still going on in another process", "interrupt that one first, with Ctrl-C"
        )
    argv = launch.argv or earlier.argv
    if any(REDACTED in token for token in argv):
        raise UsageError(
            f"the command of {earlier.id} holds a secret, which the ledger does not keep",
            f"give the command again: shakedown isolate --resume {earlier.id} -- CMD",
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


def end_leftovers(ledger: Ledger, host: LocalHost, search: SearchRecord, talk: Talk) -> None:
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


def announce(ledger: Ledger, reading: Reading, search: SearchRecord, talk: Talk, max_launches: int) -> None:
    """What it may cost, before it costs anything."""
    engine, model = search.engine, dict(search.facts).get(MODEL_FACT, "")
    known_s = ledger.average_seconds(engine, model)
    pass_s = ledger.average_seconds(engine, model, Verdict.SERVES)
    cost = forecast(
        len(search.factors), fail_s=known_s or UNKNOWN_LAUNCH_S, pass_s=pass_s, max_launches=max_launches
    )
    basis = "from earlier launches" if known_s else f"at {UNKNOWN_LAUNCH_S:.0f} s a launch, which is a guess"
    talk.say(f"isolate {search.id}: {describe(reading)}, {len(search.factors)} factors")
    talk.say(
        f"may cost about {cost.launches} launches and {cost.seconds / 60:.0f} min "
        f"({basis}), at most {max_launches} launches"
    )
    talk.say(f"if interrupted: shakedown isolate --resume {search.id}")


def told(step: Step) -> str:
    return f"  {step.concluded}  ({step.outcome.trial_id}, {step.outcome.seconds:.0f} s)"


def dry_run(reading: Reading, request: LaunchRequest, factors: tuple[Factor, ...]) -> JobResult:
    lines = [*request.notes, *plan_lines(reading, request), f"factors        {len(factors)}"]
    lines += [f"  {factor.kind.value:<8} {factor.was}  ->  {factor.now or 'left out'}" for factor in factors]
    document = {"schema": "shakedown/1", "command": "isolate", "verdict": None, "dry_run": lines}
    return JobResult(document=document, lines=lines, exit_code=ExitCode.GOOD)


def result_of(ledger: Ledger, search_id: str, conclusion: Conclusion, talk: Talk) -> JobResult:
    record, trials = ledger.search(search_id), ledger.trials_of(search_id)
    report = ledger.run_folder(search_id) / "report.md"
    report.write_text(isolate_report(record, trials))
    talk.say(f"report: {report}")
    return JobResult(
        document=isolate_document(record, trials),
        lines=isolate_summary(record, trials),
        exit_code=exit_code_of_search(conclusion),
    )
