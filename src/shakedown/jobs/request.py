"""What a user asked to launch, from the command line to a parsed command.

It never starts the server itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shakedown.core import Expectation, Launch
from shakedown.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A launch and how to watch it, as given by the options that `run` and `isolate` share."""

    launch: Launch
    engine: str | None = None
    port: int | None = None
    ready_url: str | None = None
    ready_log: str | None = None
    deadline_s: float | None = None
    expect: tuple[Expectation, ...] = ()
    dry_run: bool = False
    ledger: Path | None = None
    notes: tuple[str, ...] = ()  # where the launch comes from, if not from the command line
    facts: tuple[tuple[str, str], ...] = ()
    host: str | None = None  # another machine, by ssh
    via: str | None = None  # or by words that give a shell there

    @classmethod
    def here(
        cls, command: tuple[str, ...], *, deadline: float | None = None, **options: Any
    ) -> LaunchRequest:
        """The command as this shell would start it: in this folder, with this environment."""
        try:
            cwd = Path.cwd()
        except FileNotFoundError:
            raise UsageError(
                "the folder that this shell stands in was removed: nothing can be launched there",
                "cd to one that exists",
            ) from None
        launch = Launch(argv=command, env=dict(os.environ), cwd=cwd)
        return cls(launch=launch, deadline_s=deadline, **options)

    def require_command(self) -> None:
        if not self.launch.argv:
            raise UsageError(
                "no command to launch", "write it after --, as in: shakedown run -- vllm serve MODEL"
            )
        if self.launch.argv[0] == "--":
            raise UsageError('no program is named "--"', "write -- once, between our options and the command")
