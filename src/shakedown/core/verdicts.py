"""What can become of a launch, and everything that stands behind such a judgement.

It never judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shakedown.core.marks import Measured


class Verdict(StrEnum):
    """What became of a launch. Only a generated token makes it `serves`."""

    SERVES = "serves"
    WRONG = "wrong"
    SLOW = "slow"
    HUNG = "hung"
    CRASHED = "crashed"
    UNDECIDED = "undecided"


class Wait(StrEnum):
    """The kind of a hang."""

    WAITING = "waiting"
    SPINNING = "spinning"
    STOPPED = "stopped"
    BLOCKED_IO = "blocked-io"


class Phase(StrEnum):
    """Where a launch is. Members stand in the order in which an engine passes them."""

    IMPORT = "import"
    CONFIG = "config"
    DOWNLOAD = "download"
    DIST_INIT = "dist_init"
    WEIGHT_LOAD = "weight_load"
    POST_LOAD = "post_load"
    COMPILE = "compile"
    KV_CACHE = "kv_cache"
    GRAPH_CAPTURE = "graph_capture"
    WARM_UP = "warm_up"
    BIND = "bind"
    READY = "ready"
    SERVING = "serving"

    @property
    def order(self) -> int:
        return list(Phase).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    """A phase as one process passed it; seconds since the launch started. `ended_s` None: still in it."""

    phase: Phase
    rank: str
    started_s: float
    ended_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation behind a verdict: what was read, from where, when (seconds since start)."""

    kind: str
    text: str
    at_s: float
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """The process that waits for no other of the launch, and where it stands."""

    pid: int
    name: str
    frame: str
    wchan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What makes two failures the same one."""

    verdict: Verdict
    phase: Phase
    fingerprint: str
    wait: Wait | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What loading the weights cost: all processes together, to a second before and after."""

    seconds: float
    disk_bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict with everything behind it.

    `cause` is the first cause in one line ("" when it serves). `fingerprint` is that cause with
    pids, addresses, times and paths taken out, so that equal failures have equal fingerprints.
    `exited` is False for a crash whose other processes wait for ever. `environment` marks a
    failure of the surroundings (held port, neighbour on the GPU), which never counts as evidence.
    `measured` are the marks the user stated, as this launch showed them. `passed`: it was ended on
    purpose once it had reached this phase in good order, which answers what a search had asked of it.
    `node` and `rank`: of a launch on several nodes, the one to blame.
    """

    verdict: Verdict
    phase: Phase
    cause: str = ""
    fingerprint: str = ""
    wait: Wait | None = None
    suspect: Suspect | None = None
    phases: tuple[PhaseSpan, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    would_change: str = ""
    exited: bool = True
    environment: bool = False
    measured: tuple[Measured, ...] = ()
    passed: Phase | None = None
    loading: Loading | None = None
    node: str = ""
    rank: int | None = None

    @property
    def signature(self) -> Signature:
        return Signature(verdict=self.verdict, phase=self.phase, fingerprint=self.fingerprint, wait=self.wait)

    @property
    def serves(self) -> bool:
        return self.verdict is Verdict.SERVES


class Match(StrEnum):
    """How two failures compare."""

    SAME = "same"
    COMPATIBLE = "compatible"
    DIFFERENT = "different"
