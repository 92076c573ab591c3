"""What commands ask of a machine besides the launch on it: files, foreign processes, a way to its ports.

It never says which machine it is: this one and a far one answer alike.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ParamSpec, Protocol, Self, TypeVar

from shakedown.core import Gap, Host, Identity, Run
from shakedown.errors import UsageError

P = ParamSpec("P")
FOLDER_FACT = "far_folder"  # of a record: where all of ours lies on a far machine
T = TypeVar("T")


class Attached(Host, Protocol):
    """A running server that we did not start, as a host of its one run. `tail`: its log before we came."""

    run: Run
    tail: bytes


class Machine(Host, Protocol):
    """A host with all that a command wants to know of it. `name` is "" for this machine."""

    name: str

    def attach_run(self, folder: Path, *, patience_s: float = 0.0) -> Run: ...
    def attach_to(self, root: Identity, folder: Path, *, log: Path | None) -> Attached: ...
    def ask(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...
    def surroundings(self) -> tuple[Mapping[str, str], Path]: ...
    def facts(self) -> Mapping[str, str]: ...
    def place(self, folder: Path) -> Path: ...
    def reach(self, url: str) -> str: ...
    def python(self) -> str: ...
    def gaps(self) -> tuple[Gap, ...]: ...
    def close(self) -> None: ...


class Here:
    """The part of a `Machine` that needs nothing but being here."""

    name = ""

    def ask(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The answer of a function of this room, on the machine."""
        return question(*args, **kwargs)

    def surroundings(self) -> tuple[Mapping[str, str], Path]:
        """The environment and the folder that a launch gets where nobody says another."""
        try:
            return dict(os.environ), Path.cwd()
        except FileNotFoundError:
            raise UsageError(
                "the folder that this shell stands in was removed: nothing can be launched there",
                "cd to one that exists",
            ) from None

    def facts(self) -> Mapping[str, str]:
        """How a record names the machine."""
        return {"host": platform.node()}

    def place(self, folder: Path) -> Path:
        """Where a folder of our state lies there."""
        return folder

    def reach(self, url: str) -> str:
        """The URL under which a server of that machine can be asked from here."""
        return url

    def python(self) -> str:
        """An interpreter of that machine, where the launch names none."""
        return sys.executable

    def gaps(self) -> tuple[Gap, ...]:
        """When it could not be seen; its clock stands still meanwhile."""
        return ()

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()
