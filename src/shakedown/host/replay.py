"""Plays a recorded launch back as a host, on a clock that the caller moves.

It never touches a process: acting on the machine is refused.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from shakedown.core import (
    Ending,
    Execution,
    Exit,
    Frame,
    GpuUse,
    Identity,
    Launch,
    Listener,
    LockHolder,
    Missing,
    ProcessSample,
    Run,
    StackDump,
    ThreadStack,
)
from shakedown.errors import HostProblem

_THREAD = re.compile(r'^Thread (?:0x)?[0-9A-Fa-f]+ \((\w[\w+]*)\): "(.*)"$')
_FRAME = re.compile(r"^    (.+) \((.+?)(?::(\d+))?\)$")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A recorded launch. `lines`, `samples` and `dumps` are ordered by seconds since its start.

    `ended_s` is when the leader was seen to have exited, with `exit`; both None for one that never did.
    """

    lines: tuple[tuple[float, str], ...]
    samples: tuple[tuple[float, tuple[ProcessSample, ...]], ...]
    dumps: tuple[tuple[float, StackDump], ...] = ()
    natives: tuple[tuple[float, StackDump], ...] = ()
    exit: Exit | None = None
    ended_s: float | None = None

    @property
    def seconds(self) -> float:
        """How long the recording is."""
        last = [row[-1][0] for row in (self.lines, self.samples) if row]
        return max([*last, self.ended_s or 0.0])

    @classmethod
    def read(cls, stem: Path, *, exit: Exit | None = None, ended_s: float | None = None) -> Trace:
        """Reads STEM.times, STEM.proc.jsonl and STEM.stacks, each also gzipped; one may be absent."""
        stacks = _text(stem, ".stacks")
        return cls(
            lines=tuple(_timed_lines(_text(stem, ".times"))),
            samples=tuple(_samples(_text(stem, ".proc.jsonl"))),
            dumps=tuple(_dumps(stacks, native=False)),
            natives=tuple(_dumps(stacks, native=True)),
            exit=exit,
            ended_s=ended_s,
        )


class ReplayHost:
    """A `Host` that answers from a trace as it was at the current moment of its own clock."""

    def __init__(self, trace: Trace, *, listener: Listener | None = None, started_s: float = 1000.0) -> None:
        self._trace = trace
        self._listener = listener
        self._now_s = 0.0
        self._line_times = [at_s for at_s, _ in trace.lines]
        self._sample_times = [at_s for at_s, _ in trace.samples]
        self._log = [f"{text}\n".encode() for _, text in trace.lines]
        self.asked_for_stacks = 0
        leader = trace.samples[0][1][0].pid if trace.samples and trace.samples[0][1] else 0
        self.run = Run(
            folder=Path(),
            supervisor=Identity(pid=0, started_ticks=0),
            leader=Identity(pid=leader, started_ticks=0),
            started_s=started_s,
        )

    def advance(self, seconds: float) -> None:
        """Moves the clock on."""
        self._now_s += seconds

    def clock_s(self) -> float:
        return self.run.started_s + self._now_s

    def processes(self, run: Run) -> tuple[ProcessSample, ...] | Missing:
        index = bisect_right(self._sample_times, self._now_s) - 1
        if index < 0:
            return Missing(what="processes", why="nothing recorded yet")
        if self._has_exited and self._trace.ended_s is not None and index == len(self._sample_times) - 1:
            return ()  # the recording stops with the leader
        return self._trace.samples[index][1]

    def read_log(self, run: Run, offset: int) -> tuple[bytes, int]:
        """`offset` counts lines here, not bytes; callers may only hand back what they were given."""
        end = bisect_right(self._line_times, self._now_s)
        return b"".join(self._log[offset:end]), max(offset, end)

    def exit_of(self, run: Run) -> Exit | None:
        return self._trace.exit if self._has_exited else None

    @property
    def _has_exited(self) -> bool:
        return self._trace.ended_s is not None and self._now_s >= self._trace.ended_s

    def stacks(self, pid: int, *, native: bool = False) -> StackDump | Missing:
        """The latest dump of that process up to now; recordings hold a few dumps, taken in silences."""
        self.asked_for_stacks += 1
        dumps = self._trace.natives if native else self._trace.dumps
        found = [dump for at_s, dump in dumps if at_s <= self._now_s and dump.pid == pid]
        return found[-1] if found else Missing(what=f"stack of {pid}", why="not recorded")

    def socket_bytes(self, pids: Sequence[int]) -> Mapping[int, int] | Missing:
        return Missing(what="socket bytes", why="not recorded")

    def gpu_use(self, pids: Sequence[int]) -> tuple[GpuUse, ...] | Missing:
        return Missing(what="GPU use", why="not recorded")

    def lock_holders(self) -> tuple[LockHolder, ...] | Missing:
        return Missing(what="file locks", why="not recorded")

    def listener(self, port: int, run: Run | None = None) -> Listener | None:
        return self._listener

    def start(self, launch: Launch, folder: Path, *, detach: bool = False) -> Run:
        _refuse("start a launch")

    def end(self, run: Run, *, grace_s: float) -> Ending:
        _refuse("end a run")

    def disarm(self, run: Run) -> None:
        _refuse("disarm a run")

    def execute(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str = "",
        deadline_s: float,
    ) -> Execution:
        _refuse("execute a program")


def _refuse(what: str) -> NoReturn:
    raise HostProblem(f"a recording cannot {what}")


def _text(stem: Path, suffix: str) -> str:
    plain, packed = stem.with_name(stem.name + suffix), stem.with_name(stem.name + suffix + ".gz")
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode("utf-8", "replace")
    return plain.read_text("utf-8", "replace") if plain.exists() else ""


def _timed_lines(text: str) -> Iterator[tuple[float, str]]:
    """`12.34 the line`; a line without a time (a progress bar's) belongs to the moment before it."""
    at_s = 0.0
    for line in text.split("\n"):
        stamp, _, rest = line.partition(" ")
        try:
            at_s = float(stamp)
        except ValueError:
            rest = line
        yield at_s, rest


def _samples(text: str) -> Iterator[tuple[float, tuple[ProcessSample, ...]]]:
    first_seen: dict[int, int] = {}
    for line in text.splitlines():
        row = json.loads(line)
        for entry in row["procs"]:
            first_seen.setdefault(entry["pid"], int(row["t"] * 100))
        yield row["t"], tuple(_sample(entry, first_seen[entry["pid"]]) for entry in row["procs"])


def _sample(entry: dict[str, Any], started_ticks: int) -> ProcessSample:
    """Faults and the CPU of reaped children were not recorded: constant zero, so never progress."""
    return ProcessSample(
        pid=entry["pid"],
        started_ticks=started_ticks,
        ppid=entry["ppid"],
        name=entry["comm"],
        state=entry["state"],
        wchan="" if entry["wchan"] == "0" else entry["wchan"],
        cpu_s=entry["ut"] + entry["st"],
        children_cpu_s=entry.get("children_cpu", 0.0),
        rss_bytes=int(entry["rss_mb"] * _MIB),
        minor_faults=entry.get("minflt", 0),
        read_bytes=entry["rchar"],
        written_bytes=entry["wchar"],
        threads=entry["thr"],
    )


def _dumps(text: str, *, native: bool) -> Iterator[tuple[float, StackDump]]:
    """Sections `===== … [native] t=SECONDS`, in them per process `--- {'pid': N, …}` and py-spy's dump."""
    for section in re.split(r"^===+ ", text, flags=re.M)[1:]:
        head, _, body = section.partition("\n")
        when = re.search(r"t=([\d.]+)", head)
        if when is None or native != (" native " in head):
            continue
        for part in re.split(r"^--- \{'pid': ", body, flags=re.M)[1:]:
            threads = tuple(_threads(part))
            if threads:
                yield float(when[1]), StackDump(pid=int(part.split(",", 1)[0]), threads=threads)


def _threads(part: str) -> Iterator[ThreadStack]:
    name, active, frames = "", False, list[Frame]()
    for line in [*part.splitlines(), 'Thread 0 (idle): ""']:
        if head := _THREAD.match(line):
            if frames:
                yield ThreadStack(name=name, active=active, frames=tuple(frames))
            name, active, frames = head[2], head[1].startswith("active"), []
        elif frame := _FRAME.match(line):
            frames.append(Frame(function=frame[1], file=frame[2], line=int(frame[3] or 0)))
