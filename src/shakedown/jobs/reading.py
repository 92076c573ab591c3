"""A request read: which engine it starts, which flags that engine knows, where it will answer.

It runs nothing but the engine's own parser, in the launch's own interpreter.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

from shakedown.core import (
    Command,
    Engine,
    Execution,
    FlagTable,
    Launch,
    LogprobStyle,
    Missing,
    Phase,
)
from shakedown.engines import engine_named, identify, parse, read_table, require_measurable
from shakedown.engines.config_file import SCRIPT, config_file_use, read_entries, write_out
from shakedown.errors import HostProblem, UsageError
from shakedown.host import files
from shakedown.host.local import LocalHost
from shakedown.host.machine import Machine
from shakedown.jobs.addresses import ANY_IPV6, reached_at
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Talk
from shakedown.probe import Target
from shakedown.provision.environments import cache_folder

TABLE_DEADLINE_S = 120.0
STAMP_DEADLINE_S = 20.0
SHEBANG_BYTES = 1024
OWN_LIMIT_S = 60.0  # a canary waits no longer either
KEY_VARIABLES = ("VLLM_API_KEY", "SGLANG_API_KEY")

# Printed by the launch's interpreter in a blink, without importing the engine: changes with any reinstall.
STAMP_SCRIPT = """
import hashlib, sys
from importlib import metadata
found = []
for d in metadata.distributions():
    name = (d.metadata["Name"] or "").lower()
    if any(word in name for word in ("vllm", "sglang", "transformers")):
        found.append(name + d.version + hashlib.sha256((d.read_text("RECORD") or "").encode()).hexdigest())
print(sys.executable, *sorted(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A parsed command, the flag table it was read with, and where its server will answer.

    `command` has the flags of a config file written out; the launch as it was given is the request's.
    """

    command: Command
    table: FlagTable | None
    port: int | None
    target: Target | None
    machine: Machine = field(default_factory=LocalHost)


def read_request(request: LaunchRequest, host: Machine, talk: Talk, *, live: bool) -> Reading:
    """Parses the command with its engine's own flags: read live from its interpreter, or the shipped ones."""
    request.require_command()
    launch = request.launch
    engine = engine_named(request.engine) if request.engine else identify(launch.argv, launch.env)

    def shebang(program: str) -> str | None:
        return read_shebang(host, program, launch.env.get("PATH", ""), launch.cwd)

    table = shipped_table(engine)
    command = parse(launch, table, engine=engine, read_shebang=shebang)
    if live and engine.flags_script and command.interpreter:
        found = live_table(command, host, talk)
        if isinstance(found, Missing):
            talk.say(f"{found.what} could not be read live ({found.why}); the shipped one stands in")
        else:
            table = found
            command = parse(launch, table, engine=engine, read_shebang=shebang)
    if (plain := without_config_file(command, table, host, talk)) is not None:
        command = parse(plain, table, engine=engine, read_shebang=shebang)
    require_measurable(command, {stated.mark for stated in request.expect})
    port = port_of(command, request)
    target = target_of(command, request, port)
    return Reading(command=command, table=table, port=port, target=target, machine=host)


def without_config_file(
    command: Command, table: FlagTable | None, host: Machine, talk: Talk
) -> Launch | None:
    """The launch with the flags of its config file written out; None where none can be read."""
    use = config_file_use(command)
    if use is None or not command.interpreter:
        return None
    argv, cwd = (*command.interpreter, use.values[-1]), command.launch.cwd
    answer = host.execute(argv, env=command.env, cwd=cwd, stdin=SCRIPT, deadline_s=STAMP_DEADLINE_S)
    entries = read_entries(answer.stdout) if answer.code == 0 else None
    if entries is None:
        talk.say(f"{use.values[-1]} could not be read ({last_words(answer.stderr)}): it stays as it is")
        return None
    return write_out(command, entries, table)


def read_shebang(host: Machine, program: str, path: str, cwd: Path) -> str | None:
    """The first bytes of a program found as the shell would find it; None for what is not a script."""
    head = host.ask(files.read_head, program, path, cwd, SHEBANG_BYTES)
    return head.decode(errors="replace") if head is not None and head.startswith(b"#!") else None


def shipped_table(engine: Engine) -> FlagTable | None:
    """The table that came with Shakedown, for an engine that cannot be asked."""
    file = resources.files("shakedown.engines") / "tables" / f"{engine.name}.json"
    if not file.is_file():
        return None
    table = read_table(file.read_text(), engine=engine.name, source="shipped")
    return None if isinstance(table, Missing) else table


def live_table(command: Command, host: Machine, talk: Talk) -> FlagTable | Missing:
    """The table of the very engine that will start, kept per state of its installation."""
    engine = command.engine

    def execute(script: str, deadline_s: float) -> Execution:
        cwd = command.launch.cwd
        return host.execute(
            command.interpreter, env=command.env, cwd=cwd, stdin=script, deadline_s=deadline_s
        )

    stamp = execute(STAMP_SCRIPT, STAMP_DEADLINE_S)
    if stamp.code != 0:
        return Missing(what=f"flag table of {engine.name}", why=last_words(stamp.stderr))
    key = hashlib.sha256((stamp.stdout + engine.flags_script).encode()).hexdigest()[:24]
    kept = cache_folder() / "flags" / f"{engine.name}-{key}.json"
    if (text := files.read_text(kept)) is not None:
        table = read_table(text, engine=engine.name, source="live")
        if not isinstance(table, Missing):
            return table
    talk.say(f"reading the flags of {engine.name} from {command.interpreter[0]}")
    answer = execute(engine.flags_script, TABLE_DEADLINE_S)
    if answer.code != 0:
        return Missing(what=f"flag table of {engine.name}", why=last_words(answer.stderr))
    table = read_table(answer.stdout, engine=engine.name, source="live")
    if not isinstance(table, Missing):
        with suppress(HostProblem):  # a container's cache may be read-only: it is read again next time
            files.write_text(kept, answer.stdout)
    return table


def last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


def port_of(command: Command, request: LaunchRequest) -> int | None:
    if request.port is not None:
        return request.port
    if request.ready_url is not None:
        parts = urlsplit(request.ready_url)
        return parts.port or (443 if parts.scheme == "https" else 80)
    given = command.value(*command.engine.port_flags)
    if given and (not given.isdigit() or not 0 < int(given) < 65536):
        raise UsageError(f"{given!r} is not a port", "give the server a port from 1 to 65535")
    port = int(given) if given else command.engine.default_port
    if command.container is None or port is None:
        return port
    leading_there = command.container.outside(port)
    return leading_there[1] if leading_there else None


def target_of(command: Command, request: LaunchRequest, port: int | None) -> Target | None:
    """Where to send requests: the launch's own address, name, key, TLS and root path."""
    if port is None:
        return None
    engine = command.engine
    health = engine.health_path
    if request.ready_url is not None:
        parts = urlsplit(request.ready_url)
        base, health = (
            f"{parts.scheme}://{parts.netloc}",
            parts._replace(scheme="", netloc="").geturl() or "/",
        )
    else:
        address = command.value(*engine.host_flags) or ""
        if command.container and not command.container.shares_network:
            address = command.container.address_of(port)
            address = "" if address in ANY_IPV6 else address  # a published port is open to both
        address = reached_at(address)
        address = f"[{address}]" if ":" in address and not address.startswith("[") else address
        scheme = "https" if command.value("--ssl-certfile", "--ssl-keyfile") else "http"
        root = (command.value("--root-path") or "").rstrip("/")
        base = f"{scheme}://{address}:{port}{root}"
    return Target(
        base_url=base,
        model=served_name(command),
        api_key=api_key(command),
        logprobs=engine.logprobs if engine.name != "generic" else LogprobStyle.ECHO,
        health_path=health,
        health_is_named=request.ready_url is not None,
        engine=engine.name,
    )


def asked_for_random_weights(command: Command) -> str:
    """The setting that makes a user's own launch answer at random, "" if there is none."""
    asked = [
        f"{flag} {value}"
        for flag, value in command.engine.random_weight_settings
        if command.value(flag) == value
    ]
    return f"{asked[0]} gives random weights" if asked else ""


def own_limits(command: Command) -> dict[Phase, float]:
    """After how many seconds the engine gives up by itself, where this launch says so."""
    found = {}
    for name, phase in command.engine.own_limits:
        given = (command.value(name) if name.startswith("-") else command.env.get(name)) or ""
        if given.isdecimal() and int(given) <= OWN_LIMIT_S:
            found[phase] = float(given)
    return found


def served_name(command: Command) -> str | None:
    engine = command.engine
    named = [use.values[0] for use in command.uses if use.name in engine.served_name_flags and use.values]
    return named[-1] if named else command.value(*engine.model_flags) or None


def api_key(command: Command) -> str | None:
    given = command.value(*command.engine.api_key_flags)
    if given:
        return given
    return next((command.env[name] for name in KEY_VARIABLES if command.env.get(name)), None)


def describe(reading: Reading) -> str:
    """One line for the head of a run."""
    table = reading.table
    version = f" {table.version}" if table is not None and table.source == "live" else ""
    where = f", port {reading.port}" if reading.port else ""
    on = f", on {reading.machine.name}" if reading.machine.name else ""
    return f"{reading.command.engine.name}{version}{where}{on}"
