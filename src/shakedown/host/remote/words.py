"""The words that give a shell on another machine: the user's own ssh, or whatever he names.

It starts nothing and reads no configuration: ssh does.
"""

from __future__ import annotations

import shlex

from shakedown.errors import UsageError

# No question can be answered, a dead line is noticed in 15 s, and nothing of the user's configuration that
# is for a session at the keyboard gets in the way. Keys, jump hosts, known hosts, agents and a shared
# connection (ControlPath) are as configured. An OpenSSH of 7.6 knows all of these options.
_SSH = (
    "ssh", "-T", "-x",
    "-o", "BatchMode=yes",
    "-o", "ConnectTimeout=15",
    "-o", "ServerAliveInterval=5",
    "-o", "ServerAliveCountMax=3",
    "-o", "ClearAllForwardings=yes",
    "-o", "RemoteCommand=none",
    "--",
)  # fmt: skip
_SHELL = "sh"


def over_ssh(host: str) -> tuple[str, ...]:
    if not host or host.startswith("-") or any(character.isspace() for character in host):
        raise UsageError(f"{host!r} is no host", "as in: --host user@box, or a name of ~/.ssh/config")
    return (*_SSH, host, _SHELL)


def by_way_of(text: str) -> tuple[str, ...]:
    """The words, with `sh` behind them; no shell of this machine reads them."""
    try:
        words = shlex.split(text)
    except ValueError as problem:
        raise UsageError(f"--via {text!r} cannot be read: {problem}") from problem
    if not words:
        raise UsageError("--via names no command", "as in: --via 'docker exec -i CONTAINER'")
    return (*words, _SHELL)
