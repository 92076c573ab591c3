"""`shakedown attach`: a running server judged, whoever started it.

It never stops, signals or changes the server.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from shakedown.core import Judgement, LogprobStyle, Missing, RecordState, TrialRecord, Verdict
from shakedown.host.attached import AttachedHost
from shakedown.host.local import LocalHost
from shakedown.jobs.foreign import redactor_of
from shakedown.jobs.reading import Reading
from shakedown.jobs.result import JobResult, Talk, exit_code_of
from shakedown.jobs.running import AttachRequest, Found, find_server, log_of
from shakedown.jobs.trials import looking_on, noted_variables
from shakedown.ledger import MODEL_FACT, Kind, Ledger
from shakedown.redact import Redactor
from shakedown.report import run_document, run_summary
from shakedown.trial import Arrival, Subject, attach_recorded, judge_attached, judge_unseen, phase_in


def attach_job(request: AttachRequest, talk: Talk) -> JobResult:
    """Judges the server and writes it down like a run. Raises UsageError, EnvironmentProblem."""
    local = LocalHost()
    found = find_server(request)
    if found.target is not None and not request.numeric:
        found = replace(found, target=replace(found.target, logprobs=LogprobStyle.NONE))
    notes = list(found.notes)
    with Ledger.open(request.ledger) as ledger:
        record = record_of(found, request, ledger)
        title = describe(found)
        talk.say(f"attach: {title}")
        judge: Callable[[], Judgement]
        if found.process is None:
            assert found.target is not None
            target, began_s = found.target, time.monotonic()
            log = None

            def judge() -> Judgement:
                return judge_unseen(target, lambda: time.monotonic() - began_s)
        else:
            log = request.log or log_of(found.process)
            if log is None:
                notes.append("its output goes to no file; --log FILE names one that can be read")
            root = found.process.identity
            host = AttachedHost(local, root, record.folder, log=log, redactor=redactor_of(found.process))
            arrival = Arrival(listens=found.listens, phase=phase_in(host.tail, found.command.engine))
            subject = Subject(
                title=title,
                launch=found.command.launch,
                engine=found.command.engine,
                port=found.port,
                target=found.target,
                deadline_s=request.deadline_s,
            )

            def judge() -> Judgement:
                return judge_attached(host, host.run, subject, arrival, looking_on(talk, title))

        for note in notes:
            talk.say(f"  {note}")
        key = found.target.api_key if found.target else None
        redactor = redactor_of(found.process, *filter(None, [key]))
        record = attach_recorded(ledger, record, lambda: redactor.redact_noun(judge()), time.monotonic)
    return result_of(record, found, log, notes)


def describe(found: Found) -> str:
    who = f"pid {found.process.identity.pid}" if found.process else "no process of this machine"
    where = f", {found.target.base_url}" if found.target else ""
    return f"{found.command.engine.name}, {who}{where}"


def record_of(found: Found, request: AttachRequest, ledger: Ledger) -> TrialRecord:
    command = found.command
    launch = command.launch
    redactor = Redactor.of(launch.env, launch.argv)
    reading = Reading(command=command, table=None, port=found.port, target=found.target)
    noted = {name: launch.env[name] for name in noted_variables(reading) if name in launch.env}
    model = (found.target.model if found.target else None) or ""
    facts = {
        "host": platform.node(),
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
