"""`shakedown attach`: a running server judged, whoever started it.

It never stops, signals or changes the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from shakedown.core import Judgement, LogprobStyle, Missing, RecordState, TrialRecord, Verdict
from shakedown.host.machine import Machine
from shakedown.host.survey import redactor_of
from shakedown.jobs.machines import machine_at
from shakedown.jobs.reading import Reading
from shakedown.jobs.result import JobResult, Talk, exit_code_of
from shakedown.jobs.running import AttachRequest, Found, find_server, log_of
from shakedown.jobs.trials import looking_on, noted_variables, told_ledger
from shakedown.ledger import MODEL_FACT, Kind, Ledger
from shakedown.probe import Target
from shakedown.redact import Redactor
from shakedown.report import run_document, run_summary
from shakedown.trial import Arrival, Subject, attach_recorded, judge_attached, judge_unseen, phase_in


def attach_job(request: AttachRequest, talk: Talk) -> JobResult:
    """Judges the server and writes it down like a run. Raises UsageError, EnvironmentProblem."""
    with closing(machine_at(request.host, request.via, talk)) as machine:
        return attach_on(machine, request, talk)


def attach_on(machine: Machine, request: AttachRequest, talk: Talk) -> JobResult:
    found = find_server(request, machine)
    if found.target is not None and not request.numeric:
        found = replace(found, target=replace(found.target, logprobs=LogprobStyle.NONE))
    notes = list(found.notes)
    with Ledger.open(request.ledger) as ledger:
        record = record_of(found, request, ledger, machine)
        title = describe(found, machine)
        talk.say(f"attach: {title}")
        judge: Callable[[], Judgement]
        if found.process is None:
            assert found.target is not None
            target, began_s = from_here(found.target, machine), time.monotonic()
            log = None

            def judge() -> Judgement:
                return judge_unseen(target, lambda: time.monotonic() - began_s)
        else:
            log = request.log or log_of(found.process, machine)
            if log is None:
                notes.append("its output goes to no file; --log FILE names one that can be read")
            root = found.process.identity
            host = machine.attach_to(root, record.folder, log=log)
            arrival = Arrival(listens=found.listens, phase=phase_in(host.tail, found.command.engine))
            subject = Subject(
                title=title,
                launch=found.command.launch,
                engine=found.command.engine,
                port=found.port,
                target=from_here(found.target, machine) if found.target else None,
                deadline_s=request.deadline_s,
                gaps=machine.gaps,
            )

            def judge() -> Judgement:
                return judge_attached(host, host.run, subject, arrival, looking_on(talk, title))

        for note in notes:
            talk.say(f"  {note}")
        key = found.target.api_key if found.target else None
        redactor = redactor_of(found.process, *filter(None, [key]))
        record = attach_recorded(ledger, record, lambda: redactor.redact_noun(judge()), time.monotonic)
    return result_of(record, found, log, notes)


def from_here(target: Target, machine: Machine) -> Target:
    return replace(target, base_url=machine.reach(target.base_url))


def describe(found: Found, machine: Machine) -> str:
    who = f"pid {found.process.identity.pid}" if found.process else "no process that can be seen"
    who += f" of {machine.name}" if machine.name else ""
    where = f", {found.target.base_url}" if found.target else ""
    return f"{found.command.engine.name}, {who}{where}"


def record_of(found: Found, request: AttachRequest, ledger: Ledger, machine: Machine) -> TrialRecord:
    command = found.command
    launch = command.launch
    redactor = Redactor.of(launch.env, launch.argv)
    reading = Reading(command=command, table=None, port=found.port, target=found.target)
    noted = {name: launch.env[name] for name in noted_variables(reading) if name in launch.env}
    model = (found.target.model if found.target else None) or ""
    facts = {
        **machine.facts(),
        **told_ledger(request.ledger),
        "attached": "1",
        MODEL_FACT: redactor.redact_text(f"attached {model}".strip()),
    }
    if found.process is not None:
        facts["pid"] = str(found.process.identity.pid)
    if found.port is not None:
        facts["port"] = str(found.port)
    if found.target is not None:
        facts["url"] = redactor.redact_text(found.target.base_url)
    trial_id = ledger.new_id(Kind.TRIAL)
    return TrialRecord(
        id=trial_id,
        search_id=None,
        experiment=None,
        engine=command.engine.name,
        argv=redactor.redact_argv(launch.argv) or ((found.process.title,) if found.process else ()),
        env=tuple(sorted(redactor.redact_env(noted).items())),
        cwd=str(launch.cwd),
        folder=ledger.run_folder(trial_id),
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        state=RecordState.OPEN,
        facts=tuple(sorted(facts.items())),
    )


def result_of(record: TrialRecord, found: Found, log: Path | None, notes: list[str]) -> JobResult:
    verdict = record.judgement.verdict if record.judgement else Verdict.UNDECIDED
    attached = {
        "pid": found.process.identity.pid if found.process else None,
        "url": dict(record.facts).get("url"),
        "port": found.port,
        "log": str(log) if log else None,
        "argv_read": found.process is not None and not isinstance(found.process.argv, Missing),
        "notes": notes,
    }
    return JobResult(
        document=run_document(record, command="attach") | {"attached": attached},
        lines=run_summary(record),
        exit_code=exit_code_of(verdict),
    )
