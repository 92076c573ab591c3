"""The nouns of a decision: thresholds, what was seen of each process, and what a moment means.

It never decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shakedown.core import Exit, Frame, Phase, Signature, Suspect, Verdict, Wait
from shakedown.watch.causes import LoggedError
from shakedown.watch.proc import BUSY_SHARE, Vanished

JIT_LIMIT_S = 40 * 60.0  # an autotuner was seen silent for 40 min
LOAD_LIMIT_S = 20 * 60.0
OWN_MARGIN_S = 10.0  # an engine's timer begins a little after the silence does, and its end takes seconds
START_LIMIT_S = 5 * 60.0  # nothing an engine does before it loads keeps one call busy for minutes

HARD_LIMITS_S: Mapping[Phase, float] = {
    **dict.fromkeys(Phase, LOAD_LIMIT_S),
    **dict.fromkeys((Phase.IMPORT, Phase.CONFIG, Phase.DIST_INIT, Phase.BIND), START_LIMIT_S),
    **dict.fromkeys((Phase.POST_LOAD, Phase.COMPILE, Phase.GRAPH_CAPTURE, Phase.WARM_UP), JIT_LIMIT_S),
}

# A page fault or read that a file system, a disk or a full pipe does not answer.
_BLOCKED = (
    "wait_for_partner", "request_wait_answer", "fuse_", "nfs", "rpc_wait", "folio_wait", "wait_on_page",
    "io_schedule", "rq_qos_wait", "jbd2", "cifs", "ceph", "cl_sync_io", "p9_client", "pipe_write",
    "lock_page",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Thresholds in seconds. `learnt` is how long each phase may go without hard progress (see `learn`).

    `expected` is a failure already known: met twice, ten seconds apart, it needs no full confirmation.
    `own_s` is after how long the engine itself gives up in a phase, where the user has said so.
    """

    quiet_s: float = 10.0
    suspect_s: float = 30.0
    learnt: Mapping[Phase, float] = field(default_factory=dict)
    hard_s: Mapping[Phase, float] = field(default_factory=lambda: HARD_LIMITS_S)
    stopped_s: float = 2.0
    blocked_s: float = 20.0
    blocked_looks: int = 5  # that found the same state
    settle_s: float = 5.0  # of silence after a fatal line
    round_s: float = 5.0  # between stacks
    rounds: int = 3
    expected: Signature | None = None
    own_s: Mapping[Phase, float] = field(default_factory=dict)


class State(StrEnum):
    MOVING = "moving"
    QUIET = "quiet"  # no cheap signal for `quiet_s`
    SUSPECT = "suspect"
    FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockWait:
    """A file lock that a process waits for. `pid` None: who holds it is not seen.

    `idle_s`: for how long its holder has been seen to do nothing.
    """

    path: str = ""
    pid: int | None = None
    name: str = ""
    idle_s: float = 0.0

    @property
    def holder(self) -> str:
        return f"pid {self.pid} ({self.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """One live process as the readings leave it. `frames` are () where its stack could not be read.

    `cpu_share` is in cores, `state_s` how long it has been in its state, `state_looks` in how many looks
    without a break, `waits` that its stack waits for another process of the launch, `meets` that it waits
    where all ranks must come, `idle` that it polls for requests, `computes` and `spins` what its stack says
    of a busy core, `starved` that it wants a core whatever it gets.
    """

    pid: int
    ppid: int
    name: str
    state: str
    state_s: float
    wchan: str
    cpu_share: float | None
    frames: tuple[Frame, ...] = ()
    tracker: bool = False
    waits: bool = False
    meets: bool = False
    idle: bool = False
    computes: bool = False
    spins: bool = False
    gpu_busy: bool = False
    state_looks: int = 1
    starved: bool = False
    lock: LockWait | None = None

    @property
    def busy(self) -> bool:
        if self.idle:
            return False
        if self.cpu_share is None:
            return self.state == "R"
        return self.starved or self.cpu_share > BUSY_SHARE

    @property
    def blocked(self) -> bool:
        return self.state == "D" or any(part in self.wchan for part in _BLOCKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything a decision stands on. Times are seconds since the launch started.

    `quiet_s` is the time since the last hard progress, `budget_s` how much of it this phase may have;
    once ready, `quiet_s` counts only while a request is in flight (see `silence`).
    `rounds` counts the looks at all stacks in this quiet spell, `rounds_over` those after the budget,
    `rounds_span_s` the time the latter cover. `error` names the cause where this is an end, `earlier` is
    the log's first error where that is another. `blind` is why neither log nor exit can be read any more,
    `blind_s` for how long.
    """

    now_s: float
    phase: Phase
    quiet_s: float
    budget_s: float
    processes: tuple[ProcessView, ...] = ()
    rounds: int = 0
    rounds_over: int = 0
    rounds_span_s: float = 0.0
    met_expected_s: float = 0.0  # for how long the expected failure has been in sight
    error: LoggedError | None = None
    earlier: LoggedError | None = None
    last_error_s: float | None = None
    fatal: LoggedError | None = None
    last_words: str = ""
    exit: Exit | None = None
    exit_age_s: float = 0.0
    blind: str = ""
    blind_s: float = 0.0
    vanished: tuple[Vanished, ...] = ()
    port_is_foreign: bool = False

    @property
    def living(self) -> tuple[ProcessView, ...]:
        """All but Python's resource trackers, which outlive what they track."""
        return tuple(p for p in self.processes if not p.tracker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a situation means. `verdict` is None while nothing is final."""

    state: State
    verdict: Verdict | None = None
    wait: Wait | None = None
    cause: str = ""
    fingerprint: str = ""
    suspect: Suspect | None = None
    exited: bool = True
    environment: bool = False
    would_change: str = ""
    note: str = ""

    def matches(self, expected: Signature, phase: Phase) -> bool:
        mine = (self.verdict, self.wait, self.fingerprint, phase)
        return mine == (expected.verdict, expected.wait, expected.fingerprint, expected.phase)


def learn(silences: Iterable[Mapping[Phase, float]]) -> dict[Phase, float]:
    """Budgets from the longest silences of hard progress in good launches: three times, at least 15 s."""
    longest: dict[Phase, float] = {}
    for one in silences:
        for phase, seconds in one.items():
            longest[phase] = max(seconds, longest.get(phase, 0.0))
    return {phase: max(15.0, 3 * seconds) for phase, seconds in longest.items()}


def silence(phase: Phase, unmoved_s: float, pending_s: float | None) -> float:
    """How much of the time without hard progress counts as silence.

    An idle server looks hung in every reading, so after READY only a request in flight counts.
    """
    if pending_s is not None:
        return min(unmoved_s, pending_s)
    return 0.0 if phase.order >= Phase.READY.order else unmoved_s


def budget(limits: Limits, phase: Phase, overturned_s: float = 0.0) -> float:
    """How long a phase may be without hard progress; `overturned_s` is a silence that proved healthy."""
    return max(limits.learnt.get(phase, limits.suspect_s), 1.5 * overturned_s, patience(limits, phase))


def patience(limits: Limits, phase: Phase) -> float:
    """How long a wait is left to the engine's own timer: what ends by itself is no hang."""
    own_s = limits.own_s.get(phase)
    return own_s + OWN_MARGIN_S if own_s is not None else 0.0
