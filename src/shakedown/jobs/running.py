"""A running server found from a URL or a pid: its process, its command, where it can be asked.

It sends no request and signals nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from shakedown.core import Command
from shakedown.errors import EnvironmentProblem, UsageError
from shakedown.host import files, foreign, reach
from shakedown.host.foreign import ForeignProcess, Listening
from shakedown.host.machine import Machine
from shakedown.jobs.addresses import at_address
from shakedown.jobs.foreign import command_of, require_process
from shakedown.jobs.own_tree import lineage, nearest_engine
from shakedown.jobs.reading import KEY_VARIABLES, target_of
from shakedown.jobs.request import LaunchRequest
from shakedown.probe import Target

PASS_ON = frozenset({"docker-proxy", "rootlesskit", "rootlessport", "slirp4netns", "ssh", "sshd", "kubectl"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest:
    """What a user asked to judge: `where` is a URL or a pid."""

    where: str
    log: Path | None
    numeric: bool
    engine: str | None
    deadline_s: float | None
    ledger: Path | None
    host: str | None = None
    via: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The server as it can be reached: by requests (`target`), by /proc (`process`), or both."""

    command: Command
    process: ForeignProcess | None
    port: int | None
    target: Target | None
    listens: bool
    notes: tuple[str, ...]


def find_server(request: AttachRequest, machine: Machine) -> Found:
    if request.where.isdecimal():
        process = require_process(int(request.where), machine)
        return found_by_pid(process, request, machine)
    return found_by_url(request, machine)


def found_by_pid(process: ForeignProcess, request: AttachRequest, machine: Machine) -> Found:
    command, notes, ports = read_tree(process, request.engine, machine)
    port, address, listens = choose_port(command, ports, notes)
    target = target_at(command, port, request, machine)
    if target is not None and address:
        target = replace(target, base_url=at_address(target.base_url, address))
    if target is not None and not process.same_machine:
        notes.append("it runs in another container, so it is watched but not asked; give its URL for that")
        target = None
    return Found(
        command=command, process=process, port=port, target=target, listens=listens, notes=tuple(notes)
    )


def found_by_url(request: AttachRequest, machine: Machine) -> Found:
    parts = read_url(request.where)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/').removesuffix('/v1')}"
    holder, notes = local_holder(parts.hostname or "", port, machine)
    own = lineage(holder, machine) if holder is not None else []
    process = own[-1] if own else None
    if (engine := nearest_engine(own)) is not None:
        command, more = command_of(engine, request.engine)
        notes += more
    elif process is not None:
        command, more, _ = read_tree(process, request.engine, machine)
        notes += more
    else:
        command, _ = command_of(reach.NOBODY, request.engine)
    target = target_at(command, port, request, machine)
    assert target is not None
    return Found(
        command=command,
        process=process,
        port=port,
        target=replace(target, base_url=base, by_proxy=not machine.ask(reach.is_local, parts.hostname or "")),
        listens=True,
        notes=tuple(notes),
    )


def read_url(text: str) -> SplitResult:
    """Raises UsageError for what is neither a URL nor a pid. `HOST:PORT` is taken for http."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or re.search(r"\s", text):
        raise UsageError(
            f"{text!r} is neither a URL nor a pid", "as in: shakedown attach http://127.0.0.1:8000"
        )
    return parts


def local_holder(hostname: str, port: int, machine: Machine) -> tuple[int | None, list[str]]:
    """The process of the machine that listens there, else why its processes cannot be watched."""
    if not machine.ask(reach.is_local, hostname):
        return None, [f"{hostname} is another machine: it is asked, but its processes are not seen"]
    if not machine.ask(reach.is_listening, port):
        raise EnvironmentProblem(
            f"nobody listens on port {port} of {machine.name or 'this machine'}",
            "start the server, or give its pid while it loads",
        )
    holder = machine.ask(reach.holder_of, port)
    if holder is None:
        return None, ["its process belongs to another user or container: it is asked, but not watched"]
    pid, name = holder
    if name in PASS_ON:
        return None, [f"{name} (pid {pid}) only passes requests on: the server is asked, but not watched"]
    return pid, []


def read_tree(
    process: ForeignProcess, engine: str | None, machine: Machine
) -> tuple[Command, list[str], tuple[Listening, ...]]:
    """The command of the process, or of the first descendant that is an engine, and the tree's ports."""
    tree = machine.ask(foreign.tree_of, process.identity)
    titles = " ".join(each.title for it in tree if (each := machine.ask(foreign.find, it.pid)))
    command, notes = command_of(process, engine, titles)
    if command.engine.name == "generic":
        for it in tree[1:]:
            child = machine.ask(foreign.find, it.pid)
            if child is not None and command_of(child, engine)[0].engine.name != "generic":
                command, notes = command_of(child, engine)
                break
    return command, notes, machine.ask(foreign.ports_of, tree)


def choose_port(
    command: Command, ports: tuple[Listening, ...], notes: list[str]
) -> tuple[int | None, str, bool]:
    """(port, address, listens): the one the command names, the engine's own, else the first process's."""
    given = command.value(*command.engine.port_flags)
    wanted = int(given) if given and given.isdecimal() else command.engine.default_port
    by_number = {it.port: it for it in reversed(ports)}
    if wanted in by_number:
        return wanted, by_number[wanted].address, True
    if given or not ports:
        if wanted is None:
            notes.append("it listens on no port, so it is watched but not asked")
        return wanted, "", False
    chosen = ports[0]
    if len(by_number) > 1:
        others = ", ".join(str(number) for number in sorted(by_number))
        notes.append(f"it listens on several ports ({others}); {chosen.port} is asked, a URL names another")
    return chosen.port, chosen.address, True


def target_at(command: Command, port: int | None, request: AttachRequest, machine: Machine) -> Target | None:
    target = target_of(command, launch_request(command, request), port)
    if target is None or target.api_key:
        return target
    env, _ = machine.surroundings()
    key = next((env[name] for name in KEY_VARIABLES if env.get(name)), None)
    return replace(target, api_key=key)


def launch_request(command: Command, request: AttachRequest) -> LaunchRequest:
    return LaunchRequest(
        launch=command.launch,
        engine=request.engine,
        port=None,
        ready_url=None,
        ready_log=None,
        deadline_s=request.deadline_s,
        dry_run=False,
        ledger=request.ledger,
    )


def log_of(process: ForeignProcess, machine: Machine) -> Path | None:
    """By its open files; a run of ours writes through its supervisor, which keeps the log in its folder."""
    pid = process.identity.pid
    _, folder = machine.ask(foreign.supervised_run, pid)
    kept = folder / "launch.log" if folder else None
    return kept if kept and machine.ask(files.is_file, kept) else machine.ask(foreign.log_of, pid)
