"""A launch beside others: with a port, a temporary folder and caches of its own, and more patience.

It starts nothing, and changes nothing about a launch that runs alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from shakedown.core import Factor, FactorKind, Launch
from shakedown.errors import UsageError
from shakedown.jobs.reading import Reading
from shakedown.probe import Target
from shakedown.trial import Subject
from shakedown.watch import Limits

CACHE_VARIABLES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
# Whoever wants a core is told from whoever waits; more would make a true hang of five at once last 5 minutes.
MOST_PATIENCE = 2.0
SET_BY_US = ("CUDA_VISIBLE_DEVICES", "TMPDIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """What sets the launches of one search apart. `variables` name the folders that each gets anew.

    A cache that holds something is a factor of the search: a launch that keeps it uses it where it is.
    """

    port_flags: tuple[str, ...]
    variables: tuple[str, ...]


def apart_of(reading: Reading, factors: Iterable[Factor]) -> Apart:
    """Raises UsageError where no port can be given to a launch."""
    command = reading.command
    engine = command.engine
    given = {name for name, _, _ in command.assigned} & set(SET_BY_US)
    if given:
        raise UsageError(
            f"the command itself sets {', '.join(sorted(given))}, which each launch needs set for itself",
            "set it before shakedown, not within the command",
        )
    known = any(use.name in engine.port_flags and use.values for use in command.uses)
    if command.container is not None:
        raise UsageError(
            "launches in containers cannot be set apart: the client maps their ports and folders",
            "search with --executor local",
        )
    if not known and engine.default_port is None:
        raise UsageError(
            "launches that run at once need a port each, and no flag of this command is known to give one",
            "name the engine with --engine, or search with --executor local",
        )
    kept = {name for factor in factors if factor.kind is FactorKind.CACHE for name, _ in factor.add_env}
    caches = [cache.variable for cache in engine.caches] + list(CACHE_VARIABLES)
    variables = tuple(dict.fromkeys(name for name in caches if name not in kept))
    return Apart(port_flags=engine.port_flags, variables=variables)


def set_apart(subject: Subject, apart: Apart, *, port: int, folder: Path, beside: int) -> Subject:
    """The subject on `port`, with folders inside `folder`, and patience for `beside` others on its cores."""
    launch = on_port(subject.launch, apart.port_flags, port)
    own = {name: str(folder / name.lower()) for name in apart.variables}
    return replace(
        subject,
        launch=replace(launch, env={**launch.env, **own, "TMPDIR": str(folder)}),
        port=port,
        target=at_port(subject.target, port),
        limits=patient(subject.limits, min(1.0 + beside, MOST_PATIENCE)),
    )


def on_port(launch: Launch, flags: Sequence[str], port: int) -> Launch:
    """The last word is the port's, wherever and however often it is given."""
    argv, given = list(launch.argv), False
    for at, token in enumerate(argv):
        name, equals, _ = token.partition("=")
        if name not in flags:
            continue
        if equals:
            argv[at], given = f"{name}={port}", True
        elif at + 1 < len(argv):
            argv[at + 1], given = str(port), True
    if not given:
        argv += [flags[0], str(port)]
    return replace(launch, argv=tuple(argv))


def at_port(target: Target | None, port: int) -> Target | None:
    if target is None:
        return None
    parts = urlsplit(target.base_url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return replace(target, base_url=parts._replace(netloc=f"{host}:{port}").geturl())


def patient(limits: Limits, times: float) -> Limits:
    """Launches that share cores and a disk slow each other: a silence is longer by so many times."""
    return replace(
        limits,
        suspect_s=limits.suspect_s * times,
        settle_s=limits.settle_s * times,
        learnt={phase: seconds * times for phase, seconds in limits.learnt.items()},
        hard_s={phase: seconds * times for phase, seconds in limits.hard_s.items()},
    )
