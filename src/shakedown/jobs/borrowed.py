"""The launch of a process that we did not start, read back so that it can be launched anew.

It never ends, signals or changes that process, and shows nothing secret of it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shakedown.core import Command, Launch, Missing
from shakedown.engines import display, identify, require_isolatable
from shakedown.errors import UsageError
from shakedown.host import files, foreign, reach
from shakedown.host.foreign import ForeignProcess
from shakedown.host.machine import Machine
from shakedown.host.survey import Survey, redactor_of
from shakedown.jobs.foreign import require_process, size_words, survey
from shakedown.jobs.reading import Reading, read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Talk
from shakedown.jobs.trials import noted_variables
from shakedown.report.words import seconds_words

MUCH_MEMORY = 1 << 30


def borrow(pid: int, request: LaunchRequest, host: Machine, talk: Talk) -> LaunchRequest:
    """The request with the launch of `pid`, on another port where that process holds its own.

    Raises UsageError where /proc does not tell the whole launch, or it cannot be repeated from here.
    """
    process = require_process(pid, host)
    request = replace(request, launch=launch_of(process, host))
    reading = read_request(request, host, talk, live=False)
    refuse_wrapper(reading.command, process, host)
    found = survey(pid, host)
    if found is None:
        raise UsageError(f"process {pid} has ended just now", "start it anew: shakedown isolate -- CMD")
    lines = shown(reading, found)
    launch, port, notes, facts = on_free_port(reading, request, host)
    notes += clashes(reading, found)
    lines += [f"note     {note}" for note in notes]
    for line in lines if not request.dry_run else ():  # a dry run prints them with its plan
        talk.say(line)
    return replace(
        request,
        launch=launch,
        port=port,
        notes=tuple(lines),
        facts=(*request.facts, ("from_pid", str(pid)), *facts),
    )


def launch_of(process: ForeignProcess, machine: Machine) -> Launch:
    """Its argv, the environment and folder it was started with, as /proc still has them."""
    pid = process.identity.pid
    again = "start it anew yourself, in its environment: shakedown isolate -- CMD"
    for part in (process.argv, process.env, process.cwd):
        if isinstance(part, Missing):
            raise UsageError(f"{part.what} cannot be read from pid {pid}: {part.why}", again)
    assert not isinstance(process.argv, Missing)
    assert not isinstance(process.env, Missing)
    assert isinstance(process.cwd, Path)
    if process.uid != machine.ask(foreign.own_uid):
        raise UsageError(
            f"pid {pid} runs as {process.user}; its launch is to be repeated as that user",
            f"sudo -u {process.user} shakedown isolate --pid {pid}",
        )
    if not process.same_machine:
        raise UsageError(
            f"pid {pid} runs in another container, with other files or another network",
            "run shakedown inside that container",
        )
    if not machine.ask(files.is_dir, process.cwd):
        raise UsageError(f"the folder that pid {pid} runs in is gone: {process.cwd}", again)
    return Launch(argv=process.argv, env=process.env, cwd=process.cwd)


def refuse_wrapper(command: Command, process: ForeignProcess, machine: Machine) -> None:
    """Raises UsageError for a shell in front of a server, or a worker behind it; names the server itself."""
    pid, argv = process.identity.pid, command.launch.argv
    if "-c" in argv and any("multiprocessing" in word for word in argv):
        above = machine.ask(foreign.ancestors_of, pid)[:1]
        raise UsageError(
            f"pid {pid} is a worker of pid {above[0] if above else '?'}", "give the pid of its server"
        )
    try:
        require_isolatable(command)
    except UsageError as obstacle:
        below = machine.ask(foreign.tree_of, process.identity)[1:]
        servers = [it.pid for it in below if is_server(it.pid, machine)]
        hints = (
            (f"it started the server: shakedown isolate --pid {servers[0]}",) if servers else obstacle.hints
        )
        raise UsageError(obstacle.message, *hints) from obstacle


def is_server(pid: int, machine: Machine) -> bool:
    found = machine.ask(foreign.find, pid)
    return found is not None and isinstance(found.argv, tuple) and identify(found.argv).name != "generic"


def shown(reading: Reading, found: Survey) -> list[str]:
    """What was read, secrets left out."""
    launch = reading.command.launch
    redactor = redactor_of(found.process)
    noted = {name: launch.env[name] for name in sorted(noted_variables(reading)) if name in launch.env}
    variables = [f"{name}={value}" for name, value in redactor.redact_env(noted).items()]
    age = seconds_words(found.members[0].age_s) if found.members else "a moment"
    return [
        f"pid {found.process.identity.pid}, of {found.process.user}, {age} old: its launch is tried anew",
        f"command  {display(redactor.redact_argv(launch.argv))}",
        f"in       {launch.cwd}",
        f"env      {len(launch.env)} variables as given; {' '.join(variables) or 'none of an engine'}",
    ]


def on_free_port(
    reading: Reading, request: LaunchRequest, host: Machine
) -> tuple[Launch, int | None, list[str], tuple[tuple[str, str], ...]]:
    """(launch, port, notes, facts): the port exchanged if somebody holds it, which is written down."""
    launch, held = reading.command.launch, reading.port
    holder = host.listener(held) if held is not None else None
    if holder is None:
        return launch, request.port, [], ()
    who = f"{holder.program} (pid {holder.pid})" if holder.pid else holder.program
    free = host.ask(reach.free_port)
    told = request.port or request.ready_url  # where the user looks for it, which is not ours to move
    argv = with_port(reading.command, free) if not told else None
    if argv is None:
        note = f"port {held} is held by {who}: end it first, with shakedown stop --pid {holder.pid} --yes"
        return launch, request.port, [note], ()
    note = f"port {held} is held by {who}, so the launches get port {free}, also in the command handed back"
    return replace(launch, argv=argv), None, [note], (("port_was", str(held)),)


def with_port(command: Command, port: int) -> tuple[str, ...] | None:
    """The command on another port; None where it is not known which flag says it."""
    argv, flags = list(command.launch.argv), command.engine.port_flags
    uses = [use for use in command.uses if use.name in flags and use.values]
    for use in uses:
        last = use.positions[-1]
        argv[last] = f"{use.spelled}={port}" if len(use.positions) == 1 else str(port)
    if not uses:
        if command.engine.default_port is None:
            return None
        argv += [flags[0], str(port)]
    return tuple(argv)


def clashes(reading: Reading, found: Survey) -> list[str]:
    """What the living process holds that a second one of its kind would miss."""
    notes = []
    ports = {str(it.port) for it in found.ports if it.port != reading.port}
    command = reading.command
    settings = [(use.name, value) for use in command.uses for value in use.values]
    settings += [
        (name, command.env[name]) for name in noted_variables(reading) | {"MASTER_PORT"} & set(command.env)
    ]
    for name, value in settings:
        if value.rpartition(":")[2] in ports:
            notes.append(f"it listens on the port of {name} {value} too: the launches would meet it there")
    if not isinstance(found.gpus, Missing) and found.gpus:
        held = size_words(sum(use.used_bytes for use in found.gpus))
        notes.append(f"it holds {held} of GPU memory, which the launches may lack")
    memory = sum(member.sample.rss_bytes for member in found.members)
    if memory >= MUCH_MEMORY:
        notes.append(f"it holds {size_words(memory)} of memory, which the launches may lack")
    if notes:
        notes.append(
            f"it is never ended by isolate: shakedown stop --pid {found.process.identity.pid} --yes does"
        )
    return notes
