"""A running server of another machine that we did not start, as a host of its one run.

It never starts, signals or ends anything; after a lost connection it reads its log on from where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shakedown.core import (
    Exit,
    Host,
    Identity,
    Listener,
    Missing,
    ProcessSample,
    Run,
)
from shakedown.errors import HostProblem
from shakedown.host.onlooker import Onlooker
from shakedown.host.remote.logs import HomeLog

NOT_ATTACHED = "not attached"


class FarAttached(Onlooker):
    """`call` asks the agent; `base` is the folder of ours over there, `folder` the run's over here."""

    def __init__(
        self,
        host: Host,
        call: Callable[..., Any],
        base: Path,
        root: Identity,
        folder: Path,
        *,
        log: Path | None,
    ) -> None:
        super().__init__(host)
        self._call, self._base, self._root, self._log = call, base, root, log
        self._home = HomeLog(folder)
        self.names: list[str] = []  # of its folders over there, one for each connection
        self._settled: int | None = None  # where in the server's log news begin
        self._shift = 0  # of the copy over there: where in ours it began
        self.tail = b""
        self.run = self._attach(folder)

    def _attach(self, folder: Path) -> Run:
        self.names.append(f"{folder.name}-{len(self.names) + 1}")
        attached = (self._base, self._root, self.names[-1], self._log, self._settled)
        there: Run
        there, tail, self._settled, self._log = self._call("attach_to", *attached)
        self._there, self.tail = there, self.tail or tail
        self._home.add(tail, 0, len(tail))
        return replace(there, folder=folder, started_s=self._host.clock_s())

    def _reading(self, name: str, *arguments: Any) -> Any:
        """By a new agent, after a lost connection, it is attached anew."""
        while True:
            try:
                return self._call("attached", self._there.folder, name, arguments)
            except HostProblem as problem:
                if problem.message != NOT_ATTACHED:
                    raise
                self._attach(self.run.folder)
                self._shift = self._home.offset

    def clock_s(self) -> float:
        return self._host.clock_s()

    def processes(self, run: Run) -> tuple[ProcessSample, ...] | Missing:
        found: tuple[ProcessSample, ...] | Missing = self._reading("processes", self._there)
        return found

    def read_log(self, run: Run, offset: int) -> tuple[bytes, int]:
        """What was written since we came; a copy also lies in the run's folder here."""
        name = self.names[-1]
        data, after, settled = self._reading("read_log", self._there, max(0, offset - self._shift))
        if name != self.names[-1]:  # attached anew in between: what it told belongs to a new copy
            return self.read_log(run, self._shift)
        self._settled = settled
        self._home.add(data, max(offset, self._home.offset), after + self._shift)
        return data, after + self._shift

    def exit_of(self, run: Run) -> Exit | Missing | None:
        found: Exit | Missing | None = self._reading("exit_of", self._there)
        return found

    def listener(self, port: int, run: Run | None = None) -> Listener | None:
        found: Listener | None = self._reading("listener", port)
        return found
