"""Records what the watch of a launch is given and says, and measures times on it.

It changes nothing of what the watch sees, and never judges.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from fault_rows import without_places

from shakedown.core import Judgement, Launch, Missing, Phase, ProcessSample, Run, StackDump, Verdict
from shakedown.host.local import LocalHost
from shakedown.watch import Assessment, State

TALK_S = 30.0  # a log with lines all through the last half minute of a hang is a talking one
SILENCES_S = (60, 120, 300)
ANSWERS = "answers"
ALARM = re.compile(r"(\w+) watchdog timeout \(")


class RecordingHost(LocalHost):
    """This machine; every reading of processes and stacks goes to files in the form of `host/replay`.

    `groups`: files of control groups that get the leader as soon as it runs.
    """

    def __init__(self, stem: Path, groups: Sequence[Path] = ()) -> None:
        super().__init__()
        self._groups = groups
        self.started_s = 0.0
        self._samples: TextIO = stem.with_name(stem.name + ".proc.jsonl").open("w")
        self._stacks: TextIO = stem.with_name(stem.name + ".stacks").open("w")
        self.stopped_s: float | None = None  # since when a process is in state T
        self.waits_s: dict[str, float] = {}  # since when a wait channel is there without a break

    def start(self, launch: Launch, folder: Path, *, detach: bool = False) -> Run:
        run = super().start(launch, folder, detach=detach)
        for group in self._groups:
            group.write_text(str(run.leader.pid))
        self.started_s = run.started_s
        return run

    def processes(self, run: Run) -> tuple[ProcessSample, ...] | Missing:
        samples = super().processes(run)
        if not isinstance(samples, Missing):
            now_s = round(self.clock_s() - run.started_s, 2)
            row = {"t": now_s, "procs": [as_recorded(sample) for sample in samples]}
            self._samples.write(json.dumps(row) + "\n")
            self._note(samples, now_s)
        return samples

    def _note(self, samples: Sequence[ProcessSample], now_s: float) -> None:
        if any(sample.state == "T" for sample in samples):
            self.stopped_s = now_s if self.stopped_s is None else self.stopped_s
        channels = {sample.wchan for sample in samples}
        self.waits_s = {channel: self.waits_s.get(channel, now_s) for channel in channels}

    def stacks(self, pid: int, *, native: bool = False) -> StackDump | Missing:
        dump = super().stacks(pid, native=native)
        if not isinstance(dump, Missing):
            kind = " native" if native else ""
            lines = [f"===== watch{kind} t={self.clock_s() - self.started_s:.2f}", f"--- {{'pid': {pid}, }}"]
            for thread in dump.threads:
                lines.append(f'Thread 1 ({"active" if thread.active else "idle"}): "{thread.name}"')
                lines += [f"    {frame.function} ({frame.file}:{frame.line})" for frame in thread.frames]
            self._stacks.write("\n".join(lines) + "\n")
        return dump

    def close(self) -> None:
        self._samples.close()
        self._stacks.close()


def as_recorded(sample: ProcessSample) -> dict[str, Any]:
    return {
        "pid": sample.pid,
        "ppid": sample.ppid,
        "comm": sample.name,
        "state": sample.state,
        "wchan": sample.wchan,
        "ut": round(sample.cpu_s, 2),
        "st": 0.0,
        "children_cpu": round(sample.children_cpu_s, 2),
        "rss_mb": round(sample.rss_bytes / (1 << 20), 2),
        "minflt": sample.minor_faults,
        "rchar": sample.read_bytes,
        "wchar": sample.written_bytes,
        "thr": sample.threads,
    }


@dataclass(slots=True)
class Story:
    """What the watch said from step to step."""

    log: TextIO
    line_s: list[float] = field(default_factory=list)
    ready_s: float | None = None
    suspect_s: float | None = None  # first time
    called_slow_s: float | None = None  # "slow, no progress seen"
    stuck_line_s: float | None = None
    now_s: float = 0.0
    phase: str = ""
    progress: str = ""
    progress_s: float = 0.0
    watchdogs_s: dict[str, float] = field(default_factory=dict)  # SGLang's own, by process: the first alarm
    answered_s: float | None = None
    silences: dict[str, float] = field(default_factory=dict)  # longest of hard progress, per phase

    def hear(self, assessment: Assessment) -> None:
        self.now_s = assessment.now_s
        self.phase = assessment.phase.value
        longest_s = max(assessment.quiet_s, self.silences.get(self.phase, 0.0))
        self.silences[self.phase] = round(longest_s, 1)
        for seen in assessment.new_lines:
            self.line_s.append(seen.line.at_s)
            self.log.write(f"{seen.line.at_s:.2f} {seen.text}\n")
            if '"POST /v1/' in seen.text and "200 OK" in seen.text:
                self.answered_s = self.answered_s or seen.line.at_s
            if "deliberately stuck for" in seen.text and " start " in seen.text:
                self.stuck_line_s = self.stuck_line_s or seen.line.at_s
            if alarm := ALARM.search(seen.text):
                self.watchdogs_s.setdefault(alarm[1], seen.line.at_s)
        if self.ready_s is None:
            ready = [
                span.started_s for span in assessment.phases if span.phase in (Phase.READY, Phase.SERVING)
            ]
            self.ready_s = min(ready, default=None)
        if assessment.state is State.SUSPECT:
            self.suspect_s = self.suspect_s or assessment.now_s
            if assessment.note.startswith("slow"):
                self.called_slow_s = self.called_slow_s or assessment.now_s
        if (last := assessment.last_progress) is not None:
            self.progress, self.progress_s = f"{last.signal} {last.name}".strip(), last.at_s

    def longest_silence_s(self) -> float:
        """Of the log, until ready."""
        end_s = self.ready_s if self.ready_s is not None else self.now_s
        times = [0.0, *(at_s for at_s in self.line_s if at_s < end_s), end_s]
        return max(later - earlier for earlier, later in pairwise(times))

    def silence_says_s(self, limit_s: float, moved_s: float) -> float | None:
        """When a clock on the log's silence would have struck; None: the hang goes on talking."""
        times = [0.0, *self.line_s]
        for earlier, later in pairwise(times):
            if later - earlier >= limit_s and earlier + limit_s >= moved_s:
                return earlier + limit_s
        lately = [at_s for at_s in self.line_s if at_s > max(moved_s, self.now_s - TALK_S)]
        return None if len(lately) >= 2 else times[-1] + limit_s


def last_true_progress(story: Story, host: RecordingHost, stamp: Path) -> tuple[float, str]:
    """When a hung start last moved, and what tells it: the watch's own word only where nothing else does."""
    if stamp.is_file():
        return float(stamp.read_text()) - host.started_s, "its own stamp"
    if host.stopped_s is not None:
        return host.stopped_s, "state T"
    for channel in ("wait_for_partner", "request_wait_answer"):
        if channel in host.waits_s:
            return host.waits_s[channel], f"wait channel {channel}"
    if story.stuck_line_s is not None:
        return story.stuck_line_s, "a line of its log"
    return story.progress_s, "the watch"


def told(judgement: Judgement | None, story: Story, names: Mapping[str, str]) -> dict[str, Any]:
    """`answers` is no verdict: the start had begun to answer and was ended there."""
    return {
        "verdict": judgement.verdict.value if judgement else ANSWERS,
        "wait": judgement.wait.value if judgement and judgement.wait else None,
        "phase": judgement.phase.value if judgement else story.phase,
        "cause": without_places(judgement.cause, names)[:200] if judgement else "",
        "said_s": round(story.now_s, 1),
        "suspect_s": rounded(story.suspect_s),
        "called_slow_s": rounded(story.called_slow_s),
    }


def how_long(story: Story) -> dict[str, Any]:
    """What a clock would have had to wait for."""
    return {
        "ready_s": rounded(story.ready_s),
        "log_silence_s": round(story.longest_silence_s(), 1),
        "silences": story.silences,
    }


def how_late(judgement: Judgement | None, story: Story, host: RecordingHost, stamp: Path) -> dict[str, Any]:
    """From the last true progress to the word `hung`, and when others would have spoken."""
    moved_s, told_by = last_true_progress(story, host, stamp)
    called = judgement is not None and judgement.verdict is Verdict.HUNG
    silence = {limit_s: story.silence_says_s(limit_s, moved_s) for limit_s in SILENCES_S}
    return {
        "moved_s": round(moved_s, 1),
        "moved_by": told_by,
        "last_progress": without_places(story.progress, {}),
        "latency_s": round(story.now_s - moved_s, 1) if called else None,
        "log_silence_latency_s": {
            str(limit_s): None if at_s is None else round(at_s - moved_s, 1)
            for limit_s, at_s in silence.items()
        },
        "engine_watchdogs_s": {
            name: round(at_s - moved_s, 1) for name, at_s in sorted(story.watchdogs_s.items())
        },
    }


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
