"""The nouns every room speaks in: launches, samples, verdicts, factors and the seams between rooms.

It never touches a process, a file, a clock or a sibling module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

# --------------------------------------------------------------------------- what is launched


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One command as a user would start it.

    `argv` is verbatim, wrappers (`env K=V`, `numactl`, `nohup` …) included. `env` is the complete
    environment the process gets, secrets included; it therefore never appears in `repr`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path


# --------------------------------------------------------------------------- verdicts


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
class Judgement:
    """A verdict with everything behind it.

    `cause` is the first cause in one line ("" when it serves). `fingerprint` is that cause with
    pids, addresses, times and paths taken out, so that equal failures have equal fingerprints.
    `exited` is False for a crash whose other processes wait for ever. `environment` marks a
    failure of the surroundings (held port, neighbour on the GPU), which never counts as evidence.
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


# --------------------------------------------------------------------------- readings


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A reading that could not be taken: a value, not an exception."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """One process of the launch at one moment. Counters only grow; `pid` + `started_ticks` identify it."""

    pid: int
    started_ticks: int
    ppid: int
    name: str
    state: str  # one letter of /proc/PID/stat: R S D T Z …
    wchan: str
    cpu_s: float
    children_cpu_s: float  # of reaped children
    rss_bytes: int
    minor_faults: int
    read_bytes: int  # rchar: includes the page cache, excludes recv()
    written_bytes: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStack:
    """Frames of one thread, innermost first."""

    name: str
    active: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDump:
    pid: int
    threads: tuple[ThreadStack, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What one process of ours holds on the GPUs of the host."""

    pid: int
    used_bytes: int
    utilisation_percent: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of the server's output, redacted and free of escape codes; seconds since start."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How the leader ended. `signal` is the number that ended it, else None."""

    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who listens on a TCP port. `ours`: provably a process of the run asked about."""

    port: int
    pid: int | None
    program: str
    ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A process for good: a pid alone may be handed out again."""

    pid: int
    started_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A started launch: its folder (log, state), its supervisor and its leader."""

    folder: Path
    supervisor: Identity
    leader: Identity
    started_s: float  # host clock at start


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What stopping left: processes that would not die, and shared memory that was swept."""

    seconds: float
    left: tuple[ProcessSample, ...]
    swept_shm: tuple[str, ...]
    forced: bool  # a KILL was needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A short program run to its end (or to its deadline) on the host."""

    code: int | None
    stdout: str
    stderr: str
    timed_out: bool
    seconds: float


class Host(Protocol):
    """Acting on a machine. Every call has a deadline of its own and returns `Missing` rather than raise."""

    def clock_s(self) -> float: ...
    def start(self, launch: Launch, folder: Path, *, detach: bool = False) -> Run: ...
    def processes(self, run: Run) -> tuple[ProcessSample, ...] | Missing: ...
    def read_log(self, run: Run, offset: int) -> tuple[bytes, int]: ...
    def exit_of(self, run: Run) -> Exit | None: ...
    def stacks(self, pid: int, *, native: bool = False) -> StackDump | Missing: ...
    def socket_bytes(self, pids: Sequence[int]) -> Mapping[int, int] | Missing: ...
    def gpu_use(self, pids: Sequence[int]) -> tuple[GpuUse, ...] | Missing: ...
    def listener(self, port: int, run: Run | None = None) -> Listener | None: ...
    def end(self, run: Run, *, grace_s: float) -> Ending: ...
    def disarm(self, run: Run) -> None: ...
    def execute(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str = "",
        deadline_s: float,
    ) -> Execution: ...


# --------------------------------------------------------------------------- engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A log line that says a phase has begun. `pattern` is a linear-time regular expression."""

    phase: Phase
    pattern: str


class Values(StrEnum):
    """How many values a flag takes."""

    NONE = "none"
    ONE = "one"
    OPTIONAL = "optional"
    MANY = "many"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag of an engine's own parser; `names[0]` is the canonical long form."""

    names: tuple[str, ...]
    values: Values
    choices: tuple[str, ...] = ()
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagTable:
    """All flags of one engine version, and where the table came from ("live" or "shipped")."""

    engine: str
    version: str
    source: str
    flags: tuple[Flag, ...]
    env: frozenset[str] = frozenset()  # variables the engine itself names


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A default-on feature (or an engine-picked backend) and what turns it off (or conservative).

    It is a factor only where each flag of `argv` exists in the flag table and none of `settled_by`
    is set to the safe side by the user already.
    """

    feature: str
    argv: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    settled_by: tuple[str, ...] = ()  # flags or variables by which a user decides this feature
    backend: bool = False
    devices: frozenset[str] = frozenset({"cuda", "cpu"})


class LogprobStyle(StrEnum):
    """How a server is asked for the log-probabilities of given text."""

    PROMPT_LOGPROBS = "prompt_logprobs"  # vLLM
    ECHO = "echo"  # completions with echo and max_tokens >= 1
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Everything Shakedown knows of one engine, as data. Patterns are matched line by line."""

    name: str
    entries: tuple[str, ...]  # modules, scripts or programs that start it
    markers: tuple[Marker, ...]
    frame_phases: tuple[tuple[str, Phase], ...]  # "function (file" fragments that place a silent process
    waits_for_child: tuple[str, ...]  # frames in which a process waits for another of the same launch
    waiting_phrases: tuple[str, ...]  # never count as progress
    noise: tuple[str, ...]  # folded in the live view
    fatal: tuple[str, ...]  # a required process has died of an exception
    not_a_cause: tuple[str, ...]  # error lines that only repeat an earlier cause
    rank_pattern: str  # named groups `rank` and maybe `pid` of a line's prefix
    groups: tuple[tuple[str, tuple[str, ...]], ...]  # (name, flag names or prefixes ending in *)
    switches: tuple[Switch, ...]
    essential_flags: frozenset[str]
    essential_env: frozenset[str]
    fit_flags: frozenset[str]
    default_port: int | None
    port_flags: tuple[str, ...]
    host_flags: tuple[str, ...]
    model_flags: tuple[str, ...]
    served_name_flags: tuple[str, ...]
    api_key_flags: tuple[str, ...]
    random_weight_settings: tuple[tuple[str, str], ...]  # (flag, value): meant to have random weights
    health_path: str | None
    logprobs: LogprobStyle
    flags_script: str  # Python source, run in the launch's interpreter: prints the flag table as JSON


# --------------------------------------------------------------------------- isolation


class FactorKind(StrEnum):
    FLAG = "flag"
    GROUP = "group"
    ENV = "env"
    DEFAULT = "default"
    BACKEND = "backend"
    FIT = "fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One thing that can be kept as it `was` or changed to what it is `now` in safe mode.

    Changing it drops `drop_argv` (positions in `Launch.argv`) and `drop_env`, and appends
    `add_argv` and `add_env`. Factors of one launch touch disjoint positions, so any subset composes.
    `needs` names factors without which this one means nothing: changing those changes this too.
    `dear` orders remedies: the higher, the less a user likes to lose it.
    """

    name: str
    kind: FactorKind
    was: str
    now: str
    drop_argv: tuple[int, ...] = ()
    drop_env: tuple[str, ...] = ()
    add_argv: tuple[str, ...] = ()
    add_env: tuple[tuple[str, str], ...] = ()
    needs: frozenset[str] = frozenset()
    dear: int = 0


class Purpose(StrEnum):
    """Why a trial is run."""

    RUN = "run"
    REPRODUCE = "reproduce"
    SAFE_MODE = "safe_mode"
    PLAIN_NULL = "plain_null"
    SPLIT = "split"
    ALONE = "alone"
    ONE_LESS = "one_less"
    WORKAROUND = "workaround"
    VALUE = "value"
    PEEL = "peel"
    EVIDENCE = "evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A launch to try: the factors kept as the user had them; all others are in safe mode.

    `substitutes` overrides single factors by another value: (factor name, argv tokens to add).
    `repeat` tells repetitions of one configuration apart.
    """

    kept: frozenset[str]
    purpose: Purpose
    reason: str
    substitutes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    repeat: int = 0
    debug: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an experiment showed."""

    trial_id: str
    judgement: Judgement
    seconds: float


class Oracle(Protocol):
    """Runs one experiment, or recalls it; raises `BudgetSpent` when no further launch is allowed."""

    def __call__(self, experiment: Experiment) -> Outcome: ...
