"""Secrets of the far machine stay there: what travels is an alias that only its agent can turn back.

It never sends, stores or shows the secret itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shakedown.core import Launch, Missing
from shakedown.errors import HostProblem
from shakedown.host import foreign
from shakedown.host.foreign import ForeignProcess
from shakedown.redact import Redactor
from shakedown.redact.names import given_is_secret
from shakedown.redact.pairs import named_arguments

OWN = "env"  # the source of an alias: the agent's own environment, else a pid
MARK = "far-secret."
_ALIAS = re.compile(r"far-secret\.(env|\d+)\.([A-Za-z_]\w*|#\d+)\.")
_NAME = re.compile(r"[A-Za-z_]\w*")
_NEEDED = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TMPDIR", "LD_LIBRARY_PATH"})


def hide_env(env: Mapping[str, str], source: str) -> dict[str, str]:
    """A secret under a name that no alias can hold (a function that a shell exported) stays there."""
    redactor, hidden = Redactor.of(env, ()), {}
    for name, value in env.items():
        if not _is_secret(name, value, redactor):
            hidden[name] = value
        elif _NAME.fullmatch(name):
            hidden[name] = f"{MARK}{source}.{name}."
    return hidden


def _is_secret(name: str, value: str, redactor: Redactor) -> bool:
    if name in _NEEDED or not value:
        return False
    return given_is_secret(name, value) or redactor.redact_values(value) != value


def hide_argv(argv: Sequence[str], source: str) -> tuple[str, ...]:
    hidden, redactor = list(argv), Redactor.of({}, argv)
    for position, name, value in named_arguments(argv):
        if given_is_secret(name, value):
            hidden[position] = f"{argv[position].removesuffix(value)}{MARK}{source}.#{position}."
    for position, word in enumerate(hidden):
        if MARK not in word and redactor.redact_values(word) != word:
            hidden[position] = f"{MARK}{source}.#{position}."
    return tuple(hidden)


def hide_process(process: ForeignProcess) -> ForeignProcess:
    source = str(process.identity.pid)
    env = process.env if isinstance(process.env, Missing) else hide_env(process.env, source)
    argv = process.argv if isinstance(process.argv, Missing) else hide_argv(process.argv, source)
    return replace(process, env=env, argv=argv)


def reveal(text: str) -> str:
    """With every alias turned back. Raises HostProblem where what it stands for is gone."""
    return _ALIAS.sub(lambda found: _secret(found[1], found[2]), text) if MARK in text else text


def reveal_env(env: Mapping[str, str]) -> dict[str, str]:
    return {name: reveal(value) for name, value in env.items()}


def reveal_launch(launch: Launch) -> Launch:
    return replace(launch, argv=tuple(map(reveal, launch.argv)), env=reveal_env(launch.env))


def _secret(source: str, name: str) -> str:
    if source == OWN:
        argv: Sequence[str] = ()
        env: Mapping[str, str] = os.environ
    else:
        process = foreign.find(int(source))
        env = process.env if process and not isinstance(process.env, Missing) else {}
        argv = process.argv if process and not isinstance(process.argv, Missing) else ()
    try:
        if not name.startswith("#"):
            return env[name]
        position = int(name[1:])
        values = {place: value for place, key, value in named_arguments(argv) if given_is_secret(key, value)}
        return values.get(position, argv[position])
    except (KeyError, IndexError):
        whose = "that machine's environment" if source == OWN else f"process {source}"
        raise HostProblem(
            f"the secret {name} of {whose} cannot be read any more",
            "secrets do not leave their machine: give it again with the command",
        ) from None
