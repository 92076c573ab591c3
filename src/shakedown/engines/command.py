"""How a launch's command reads: which engine it starts, with which flags, in which interpreter.

It runs and opens nothing: a program's first line comes from the `read_shebang` it is handed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from shakedown.core import Command, Engine, FlagTable, Launch, Mark
from shakedown.engines.arguments import read_arguments
from shakedown.engines.containers import attached, with_variables
from shakedown.engines.generic import GENERIC
from shakedown.engines.sglang import SGLANG
from shakedown.engines.transformers import TRANSFORMERS
from shakedown.engines.vllm import VLLM
from shakedown.engines.wrappers import Unwrapped, base_name, unwrap
from shakedown.errors import UsageError
from shakedown.redact import Redactor

KNOWN = (VLLM, SGLANG, TRANSFORMERS)

_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)?)?$")
_PYTHON_VALUED = frozenset({"-W", "-X", "--check-hash-based-pycs"})


def engine_named(name: str) -> Engine:
    """The table of that name; raises UsageError for a name that is none."""
    for engine in (*KNOWN, GENERIC):
        if engine.name == name:
            return engine
    raise UsageError(
        f"no engine is called {name!r}", "Known: " + ", ".join(engine.name for engine in (*KNOWN, GENERIC))
    )


def identify(argv: tuple[str, ...], env: Mapping[str, str] | None = None) -> Engine:
    """The engine that this command starts; `generic` where none is recognised."""
    return _enter(unwrap(argv)).engine


def parse(
    launch: Launch,
    table: FlagTable | None,
    *,
    engine: Engine | None = None,
    read_shebang: Callable[[str], str | None] | None = None,
) -> Command:
    """Read a launch as its engine's own parser would, wrappers looked through, no token changed.

    `table` None: flags are told by their looks. `read_shebang` gives the first lines of a program
    (as typed; the caller searches PATH), or None.
    """
    unwrapped = unwrap(launch.argv)
    entry = _enter(unwrapped)
    chosen = engine or entry.engine
    return Command(
        launch=launch,
        engine=chosen,
        interpreter=_interpreter(launch.argv, unwrapped, entry, read_shebang),
        uses=read_arguments(launch.argv, entry.arguments, table, chosen),
        assigned=tuple(
            (name, launch.env[name] if value is None else value, at)
            for name, value, at in unwrapped.assigned
            if value is not None or name in launch.env
        ),
        unset=unwrapped.unset,
        container=unwrapped.container.container if unwrapped.container else None,
    )


def require_isolatable(command: Command) -> None:
    """Raise UsageError where the server's flags cannot be changed through this command."""
    unwrapped = unwrap(command.launch.argv)
    shown = display(Redactor.of(command.launch.env, command.launch.argv).redact_argv(command.launch.argv))
    for obstacle in unwrapped.obstacles:
        raise UsageError(f"cannot isolate {shown}: {obstacle.what}", obstacle.hint)
    if unwrapped.program >= len(command.launch.argv):
        raise UsageError(f"cannot isolate {shown}: it starts no server")


def require_measurable(command: Command, marks: Collection[Mark]) -> None:
    """Raise UsageError where a flag keeps the server from telling what a mark is measured by."""
    given = {use.name for use in command.uses}
    for mark, flags in command.engine.blinded_by:
        for flag in flags:
            if mark in marks and flag in given:
                raise UsageError(
                    f"{mark} cannot be measured: with {flag} nothing counts it", f"leave out {flag}"
                )


def endable(launch: Launch, id_file: Path) -> Launch:
    """The launch as a host may start it: of a container we shall know the ID, written to `id_file`.

    Raises UsageError where what it starts could not be ended by us.
    """
    unwrapped = unwrap(launch.argv)
    for obstacle in unwrapped.obstacles:
        if obstacle.unended:
            raise UsageError(obstacle.what, obstacle.hint)
    return attached(launch, unwrapped.container, id_file) if unwrapped.container else launch


def passing_on(launch: Launch, before: Launch) -> Launch:
    """`launch` with what it changed in the environment of `before` handed on to the server's container."""
    container = unwrap(launch.argv).container
    return with_variables(launch, before, container) if container else launch


def display(argv: tuple[str, ...]) -> str:
    """The command as one line that a shell reads back as the same tokens."""
    return " ".join(_quoted(token) for token in argv)


def _quoted(token: str) -> str:
    if "\n" not in token:
        return shlex.quote(token)
    inner = token.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{inner}'"


# --- which engine, and where its arguments begin -------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    engine: Engine
    arguments: int  # index of the first argument of the server itself
    python_options: tuple[str, ...] | None  # None: not started as `python …`


def _enter(unwrapped: Unwrapped) -> _Entry:
    argv, at = unwrapped.argv, unwrapped.program
    if unwrapped.obstacles or at >= len(argv):
        return _Entry(engine=GENERIC, arguments=len(argv), python_options=None)
    options: tuple[str, ...] | None = None
    if _PYTHON.match(base_name(argv[at])) or _runs_an_engine(argv, at + 1):
        begin = at + 1
        at = _skip_python_options(argv, begin)
        options = argv[begin:at]
        if at < len(argv) and argv[at] == "-m":
            at += 1
    elif argv[at] in {"-m", "--module"}:  # uv run -m
        at += 1
    if at >= len(argv) or argv[at] in {"-c", "-"}:
        return _Entry(engine=GENERIC, arguments=len(argv), python_options=options)
    started = argv[at]
    word = argv[at + 1] if at + 1 < len(argv) else ""
    for engine in KNOWN:
        for entry in engine.entries:
            wanted, _, subcommand = entry.partition(" ")
            if _starts(started, wanted) and (not subcommand or subcommand == word):
                return _Entry(engine=engine, arguments=at + (2 if subcommand else 1), python_options=options)
    return _Entry(engine=GENERIC, arguments=at + 1, python_options=options)


def _runs_an_engine(argv: tuple[str, ...], at: int) -> bool:
    """Whether these are a Python's arguments: the program before them may be a wrapper of any name."""
    at = _skip_python_options(argv, at)
    modules = {entry.split()[0] for engine in KNOWN for entry in engine.entries if "." in entry}
    return argv[at : at + 1] == ("-m",) and not modules.isdisjoint(argv[at + 1 : at + 2])


def _starts(started: str, wanted: str) -> bool:
    if "/" in wanted:
        return started == wanted or started.endswith("/" + wanted)
    return started == wanted or base_name(started) == wanted


def _skip_python_options(argv: tuple[str, ...], at: int) -> int:
    while at < len(argv) and argv[at].startswith("-") and argv[at] not in {"-m", "-c", "-"}:
        at += 2 if argv[at] in _PYTHON_VALUED else 1
    return at


def _interpreter(
    argv: tuple[str, ...],
    unwrapped: Unwrapped,
    entry: _Entry,
    read_shebang: Callable[[str], str | None] | None,
) -> tuple[str, ...]:
    if unwrapped.obstacles or unwrapped.program >= len(argv):
        return ()
    if unwrapped.container:
        return ()  # it stands in the image: what is asked of it would be a container more
    program = argv[unwrapped.program]
    if entry.python_options is not None:
        return (*unwrapped.runner, program, *entry.python_options, "-")
    if unwrapped.runner:
        return (*unwrapped.runner, "python", "-")
    text = read_shebang(program) if read_shebang else None
    return _from_shebang(text) if text else ()


def _from_shebang(text: str) -> tuple[str, ...]:
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!"):
        return ()
    words = tuple(lines[0][2:].split())
    # A path too long for a shebang is started by pip's `#!/bin/sh` and `'''exec' /long/path "$0" "$@"`.
    if len(lines) > 1 and lines[1].startswith("'''exec' "):
        words = (shlex.split(lines[1].removeprefix("'''exec' "))[0],)
    if not words or not any(_PYTHON.match(base_name(word)) for word in words):
        return ()
    return (*words, "-")
