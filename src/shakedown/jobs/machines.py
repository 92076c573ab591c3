"""The machine that a command is about: this one, or another that the user or a record names.

It never starts anything there but our own agent, which goes with the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from shakedown.core import SSH_FACT, VIA_FACT
from shakedown.errors import UsageError
from shakedown.host.local import LocalHost
from shakedown.host.machine import FOLDER_FACT, Machine
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Talk
from shakedown.redact import Redactor


def machine_at(host: str | None, via: str | None, talk: Talk, *, folder: Path | None = None) -> Machine:
    """This machine where neither is given. Raises UsageError, and HostProblem where it cannot be reached.

    `folder`: what an earlier connection made there for runs of ours.
    """
    if host is None and via is None:
        return LocalHost()
    if host is not None and via is not None:
        raise UsageError("--host and --via name two machines: give one of them")
    from shakedown.host.remote.client import PATIENCE_S, RemoteHost
    from shakedown.host.remote.words import by_way_of, over_ssh

    if host is not None:
        words, title, fact = over_ssh(host), host, {SSH_FACT: host}
    else:
        assert via is not None
        words, title, fact = by_way_of(via), via, {VIA_FACT: Redactor().redact_text(via)}
    machine = RemoteHost(words, title, say=talk.say, keeps=fact, base=folder)
    if folder is None:
        talk.say(f"on {title}: without a connection for {PATIENCE_S / 60:.0f} min, what runs there is ended")
    return machine


def is_far(facts: Mapping[str, str]) -> bool:
    return SSH_FACT in facts or VIA_FACT in facts


def machine_of(facts: Mapping[str, str], talk: Talk) -> Machine:
    """Where a recorded launch ran."""
    folder = Path(facts[FOLDER_FACT]) if FOLDER_FACT in facts else None
    return machine_at(facts.get(SSH_FACT), facts.get(VIA_FACT), talk, folder=folder)


def on(machine: Machine, request: LaunchRequest) -> LaunchRequest:
    """The request as that machine would start it: with its environment, in its folder."""
    if not machine.name:
        return request
    env, cwd = machine.surroundings()
    return replace(request, launch=replace(request.launch, env=env, cwd=cwd))
