"""Remembers every process of a launch and says which of them did something never seen of it before.

It never takes CPU time, context switches or a repeat for progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from shakedown.core import ProcessSample

RSS_STEP = 8 << 20  # bytes; below lies the jitter of allocators
GPU_STEP = 32 << 20
WINDOW_S = 5.0
FAULTS_PER_S = 100  # a loading worker has 22,000, every hang 0
BYTES_PER_S = 32 << 10  # a hung rendezvous polls 3,500
CHILD_SHARE = 0.10  # cores, of reaped children; a hung launch reaps none
COMPILER_SHARE = 0.05
BUSY_SHARE = 0.10  # a hung rendezvous burns 0.02
RUNNABLE_SHARE = 0.5  # of looks: where many want few cores, one that computes gets less than the above
SHARE_WINDOW_S = 8.0

COMPILERS = frozenset(
    (
        "nvcc", "cicc", "ptxas", "fatbinary", "cudafe++", "hipcc", "tileiras", "llc", "opt", "ninja", "cmake",
        "make", "cc1plus", "cc1", "g++", "gcc", "c++", "cc", "clang", "clang++", "collect2", "lto1", "as",
        "lto-wrapper", "ld", "lld", "ld.lld", "ld.gold",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One sign that a launch moves: which signal, of which process, when (seconds since start)."""

    signal: str
    pid: int | None
    name: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Vanished:
    """A process that was there and is not any more. `stopped_s`: how long it had been in state T."""

    pid: int
    name: str
    at_s: float
    lived_s: float
    stopped_s: float = 0.0


@dataclass(slots=True)
class Memory:
    """What is remembered of one process."""

    sample: ProcessSample
    first_s: float
    state_since_s: float
    rss_mark: int
    state_looks: int = 1  # in a row that found its state
    window: deque[tuple[float, ProcessSample]] = field(default_factory=deque)

    @property
    def compiles(self) -> bool:
        return self.sample.name in COMPILERS

    def state_s(self, now_s: float) -> float:
        return now_s - self.state_since_s

    @property
    def starved(self) -> bool:
        """Whether it wants a core more often than it sleeps, whatever it gets."""
        wanting = sum(sample.state == "R" for _, sample in self.window)
        return len(self.window) > 2 and wanting >= RUNNABLE_SHARE * len(self.window)

    def cpu_share(self) -> float | None:
        """Cores used over the last seconds; None before there is a window to speak of."""
        (then_s, then), (now_s, now) = self.window[0], self.window[-1]
        return (now.cpu_s - then.cpu_s) / (now_s - then_s) if now_s - then_s >= 2.0 else None


class ProcessBook:
    """Takes samples of all processes of a launch; returns what moved."""

    def __init__(self) -> None:
        self.memories: dict[tuple[int, int], Memory] = {}
        self.vanished: list[Vanished] = []
        self._most_of_name: dict[str, int] = {}

    def feed(self, samples: Iterable[ProcessSample], at_s: float) -> tuple[Progress, ...]:
        found: list[Progress] = []
        current = {(s.pid, s.started_ticks): s for s in samples if not _is_dead(s)}
        for key in [key for key in self.memories if key not in current]:
            found += self._bury(self.memories.pop(key), at_s)
        for key, sample in current.items():
            memory = self.memories.get(key)
            if memory is None:
                self.memories[key] = memory = Memory(
                    sample=sample, first_s=at_s, state_since_s=at_s, rss_mark=sample.rss_bytes
                )
                memory.window.append((at_s, sample))
                if memory.compiles:
                    found.append(_progress("compiler started", sample, at_s))
            else:
                found += self._compare(memory, sample, at_s)
        return (*found, *self._count_names(at_s))

    def _bury(self, memory: Memory, at_s: float) -> list[Progress]:
        sample = memory.sample
        if memory.compiles:
            return [_progress("compiler ended", sample, at_s)]
        if len(self.vanished) < 1000:
            self.vanished.append(
                Vanished(
                    pid=sample.pid,
                    name=sample.name,
                    at_s=at_s,
                    lived_s=at_s - memory.first_s,
                    stopped_s=memory.state_s(at_s) if sample.state == "T" else 0.0,
                )
            )
        return []

    def _compare(self, memory: Memory, sample: ProcessSample, at_s: float) -> list[Progress]:
        if sample.state != memory.sample.state:
            memory.state_since_s, memory.state_looks = at_s, 0
        memory.state_looks += 1
        memory.sample = sample
        memory.window.append((at_s, sample))
        while len(memory.window) > 2 and at_s - memory.window[1][0] >= SHARE_WINDOW_S:
            memory.window.popleft()
        return [_progress(signal, sample, at_s) for signal in self._signals(memory, at_s)]

    def _signals(self, memory: Memory, at_s: float) -> Iterable[str]:
        now = memory.sample
        if now.rss_bytes >= memory.rss_mark + RSS_STEP:
            memory.rss_mark = now.rss_bytes
            yield "memory"
        if _rose(memory, at_s, lambda s: s.minor_faults, FAULTS_PER_S):
            yield "page faults"
        # What a system call reads off a disk is in both; what a mapped file's pages are, in the second alone.
        calls = _rose(memory, at_s, lambda s: s.read_bytes + s.written_bytes, BYTES_PER_S)
        if calls or _rose(memory, at_s, lambda s: s.disk_bytes, BYTES_PER_S):
            yield "I/O"
        if memory.compiles and _rose(memory, at_s, lambda s: s.cpu_s, COMPILER_SHARE):
            yield "compiler works"
        if _rose(memory, at_s, lambda s: s.children_cpu_s, CHILD_SHARE):
            yield "children worked"

    def _count_names(self, at_s: float) -> Iterable[Progress]:
        """More processes of one name than ever before: a worker started, not a helper run again."""
        names: dict[str, int] = {}
        for memory in self.memories.values():
            if not memory.compiles:
                names[memory.sample.name] = names.get(memory.sample.name, 0) + 1
        for name, count in names.items():
            if count > self._most_of_name.get(name, 0):
                self._most_of_name[name] = count
                yield Progress(signal="process started", pid=None, name=name, at_s=at_s)


class Meter:
    """A counter per process that another tool reads, with its mark.

    `step` alone: the counter must rise that far over its highest value (GPU memory). `per_s`: it must
    rise at that rate between two readings, so that a slow trickle never adds up (socket bytes).
    """

    def __init__(self, signal: str, *, step: int = 0, per_s: int = 0) -> None:
        self._signal = signal
        self._step = step
        self._per_s = per_s
        self._marks: dict[int, tuple[float, int]] = {}

    def feed(self, values: Mapping[int, int], names: Mapping[int, str], at_s: float) -> tuple[Progress, ...]:
        """What rose far enough; a first reading only sets the mark."""
        found = []
        for pid, value in values.items():
            then_s, mark = self._marks.setdefault(pid, (at_s, value))
            rose = value - mark >= max(self._step, self._per_s * (at_s - then_s), 1)
            if rose:
                found.append(Progress(signal=self._signal, pid=pid, name=names.get(pid, ""), at_s=at_s))
            if rose or self._per_s:
                self._marks[pid] = (at_s, value)
        return tuple(found)


def _rose(memory: Memory, at_s: float, read: Callable[[ProcessSample], float], per_s: float) -> bool:
    """Whether a counter kept up a rate over the short window, or since the last look where that is longer
    ago (a look at the stacks may take a minute), the last interval included.

    The window tells a steady rate from a heartbeat's burst; the last interval dates the end of the
    movement to one step and not to one window.
    """
    now = read(memory.sample)
    *earlier, (before_s, before), _ = memory.window
    within = (each for each in earlier if at_s - each[0] <= WINDOW_S)
    start_s, start = next(within, (before_s, before))
    over_s = max(WINDOW_S, at_s - start_s)
    return now - read(start) > per_s * over_s and now - read(before) > per_s * (at_s - before_s)


def _is_dead(sample: ProcessSample) -> bool:
    """A zombie, though not one whose main thread alone has ended."""
    return sample.state in "ZX" and sample.threads <= 1


def _progress(signal: str, sample: ProcessSample, at_s: float) -> Progress:
    return Progress(signal=signal, pid=sample.pid, name=sample.name, at_s=at_s)
