"""Reads processes, sockets, GPUs, the port and stacks of a run, each only as often as it is worth.

It never raises for a reading that failed: what could not be read is kept and told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from shakedown.core import (
    Engine,
    Evidence,
    GpuUse,
    Host,
    Listener,
    Missing,
    Phase,
    ProcessSample,
    Run,
    StackDump,
)
from shakedown.watch.gpus import describe_gpus
from shakedown.watch.locks import Locks, describe
from shakedown.watch.looks import Looks
from shakedown.watch.proc import (
    BUSY_SHARE,
    BYTES_PER_S,
    GPU_STEP,
    Memory,
    Meter,
    ProcessBook,
    Progress,
    Vanished,
)
from shakedown.watch.rounds import Rounds
from shakedown.watch.situation import Limits, LockWait, ProcessView
from shakedown.watch.stacks import leaf, meaningful, show, waits_for_file_lock

METER_AFTER_S = 3.0  # sockets and GPU cost more than /proc: they are read only in a silence
METER_EVERY_S = 4.0
PORT_EVERY_S = 1.0
GIVE_UP_AFTER = 3  # failed looks at one process in one silence
STACKS_PER_ROUND = 24  # a compile pool has hundreds of sleeping children


class Readings:
    """All readings but the log. `cheap` each step, `sparse` when it has been quiet."""

    def __init__(self, host: Host, run: Run, engine: Engine, port: int | None, limits: Limits) -> None:
        self._host, self._run, self._engine, self._port = host, run, engine, port
        self._book = ProcessBook()
        self._sockets = Meter("sockets", per_s=BYTES_PER_S)
        self._gpu = Meter("GPU memory", step=GPU_STEP)
        self._gpu_use: tuple[GpuUse, ...] = ()
        self._looks = Looks(engine)
        self._locks = Locks()
        self._unreadable: dict[int, int] = {}
        self._ranks: dict[int, str] = {}
        self._missing: dict[str, tuple[str, float]] = {}
        self._metered_s = self._port_s = float("-inf")
        self.rounds = Rounds(limits)
        self._echo_until_s: float | None = None
        self.listening: Listener | None = None

    # --- cheap: every step ------------------------------------------------------------------------------

    def cheap(self, now_s: float) -> Iterator[Progress]:
        samples = self._host.processes(self._run)
        if isinstance(samples, Missing):
            self._miss(samples, now_s)
        else:
            yield from self._book.feed(samples, now_s)
        if self._port is not None and now_s - self._port_s >= PORT_EVERY_S * (5 if self.listening else 1):
            self._port_s = now_s
            listener = self._host.listener(self._port, self._run)
            if listener is not None and listener.ours and self.listening is None:
                yield Progress(signal="port opened", pid=listener.pid, name=listener.program, at_s=now_s)
            self.listening = listener if listener is not None and listener.ours else None

    def note_rank(self, pid: int | None, rank: str) -> None:
        """A log line has told the rank of a process."""
        if pid is not None and rank:
            self._ranks[pid] = rank

    def expect_echo(self, until_s: float) -> None:
        """What the looks find new up to then, and in the first one after it, was prompted by us."""
        self._echo_until_s = until_s

    def port_is_foreign(self) -> bool:
        listener = self._host.listener(self._port, self._run) if self._port is not None else None
        return listener is not None and not listener.ours

    # --- sparse: in a silence ---------------------------------------------------------------------------

    def sparse(self, now_s: float, quiet_s: float, budget_s: float) -> Iterator[Progress]:
        if quiet_s >= METER_AFTER_S and now_s - self._metered_s >= METER_EVERY_S:
            self._metered_s = now_s
            yield from self._read_meters(now_s)
        if self.rounds.is_due(now_s, quiet_s, budget_s):
            self.rounds.begin(now_s, over=quiet_s >= budget_s)
            yield from self._read_stacks(now_s, suspicious=quiet_s >= budget_s)

    def _read_meters(self, now_s: float) -> Iterator[Progress]:
        names = {m.sample.pid: m.sample.name for m in self._book.memories.values()}
        sockets = self._host.socket_bytes(tuple(names))
        if isinstance(sockets, Missing):
            self._miss(sockets, now_s)
        else:
            yield from self._sockets.feed(sockets, names, now_s)
        gpus = self._host.gpu_use(tuple(names))
        if isinstance(gpus, Missing):
            self._miss(gpus, now_s)
        else:
            self._gpu_use = gpus
            held: dict[int, int] = {}
            for use in gpus:  # one entry per GPU that the process holds
                held[use.pid] = held.get(use.pid, 0) + use.used_bytes
            yield from self._gpu.feed(held, names, now_s)

    def _read_stacks(self, now_s: float, *, suspicious: bool) -> Iterator[Progress]:
        looked_at = [m for m in self._book.memories.values() if self._can_be_read(m)]
        looked_at = sorted(looked_at, key=lambda m: -m.sample.rss_bytes)[:STACKS_PER_ROUND]
        at_one_place: list[Memory] = []
        for memory, dump in self._look_at(looked_at, native=False):
            pid = memory.sample.pid
            if isinstance(dump, Missing):
                self._unreadable[pid] = self._unreadable.get(pid, 0) + 1
                self._miss(Missing(what=f"stack of {memory.sample.name} {pid}", why=dump.why), now_s)
                continue
            if self._looks.see(pid, dump, now_s) and self._echo_until_s is None:
                yield Progress(signal="stack", pid=pid, name=memory.sample.name, at_s=now_s)
            elif suspicious and self._is_busy(memory):
                at_one_place.append(memory)
        # These looks stop each process for a moment, or for seconds.
        for memory, dump in self._look_at(at_one_place, native=True):
            pid = memory.sample.pid
            if isinstance(dump, Missing):
                self._miss(Missing(what=f"native stack of {memory.sample.name} {pid}", why=dump.why), now_s)
            else:
                self._looks.see_native(pid, dump)
        if self._echo_until_s is not None and now_s >= self._echo_until_s:
            self._echo_until_s = None
        if any(waits_for_file_lock(self._looks.of(memory.sample.pid).frames) for memory in looked_at):
            self._read_locks(now_s)

    def _look_at(
        self, processes: Sequence[Memory], *, native: bool
    ) -> list[tuple[Memory, StackDump | Missing]]:
        """Each look may take its whole deadline where a process is stuck; they must not add up."""
        pool = ThreadPoolExecutor(max_workers=4)
        try:
            look = partial(self._host.stacks, native=native)
            return list(zip(processes, pool.map(look, [m.sample.pid for m in processes]), strict=True))
        finally:  # an interrupt waits for no look: the clean-up is next
            pool.shutdown(wait=False, cancel_futures=True)

    def _read_locks(self, now_s: float) -> None:
        holders = self._host.lock_holders()
        if isinstance(holders, Missing):
            self._miss(holders, now_s)
        self._locks.feed(() if isinstance(holders, Missing) else holders, now_s)

    def _is_busy(self, memory: Memory) -> bool:
        return memory.starved or (memory.cpu_share() or 0.0) > BUSY_SHARE

    def _can_be_read(self, memory: Memory) -> bool:
        """A stopped process answers no debugger, a compiler has no Python stack, nor has a shell."""
        hopeless = self._unreadable.get(memory.sample.pid, 0) >= GIVE_UP_AFTER
        return not (memory.compiles or memory.sample.state == "T" or hopeless)

    def forget_rounds(self, now_s: float, *, keep: bool) -> None:
        """Something moved: the rounds of this silence are over. `keep`: it was only a stack."""
        self.rounds.forget(keep=keep)
        self._looks.forget(now_s, keep=keep)
        if not keep:
            self._unreadable.clear()
            self._locks.forget()

    # --- what the readings come to ----------------------------------------------------------------------

    @property
    def samples(self) -> tuple[ProcessSample, ...]:
        return tuple(memory.sample for memory in self._book.memories.values())

    @property
    def pids(self) -> tuple[int, ...]:
        """Every process seen so far; the kernel's log names the dead."""
        living = (memory.sample.pid for memory in self._book.memories.values())
        return (*living, *(gone.pid for gone in self._book.vanished))

    @property
    def vanished(self) -> tuple[Vanished, ...]:
        """Named as the log does where it does: a process is often lost before its title was read anew."""
        return tuple(replace(v, name=self._ranks.get(v.pid, v.name)) for v in self._book.vanished)

    def stack_phases(self) -> Iterable[tuple[str, Phase]]:
        """Where the latest stacks of a silence place each rank; one that waits for others is nowhere."""
        for memory in self._book.memories.values():
            pid = memory.sample.pid
            traits = self._looks.of(pid)
            if traits.phase is not None and not traits.waits:
                yield self._ranks.get(pid, ""), traits.phase

    def views(self, now_s: float) -> tuple[ProcessView, ...]:
        return tuple(self._view(memory, now_s) for memory in self._book.memories.values())

    def _view(self, memory: Memory, now_s: float) -> ProcessView:
        sample = memory.sample
        seen = self._looks.of(sample.pid)
        lock = self._lock(sample.pid)
        for_own = lock is not None and lock.pid != sample.pid and lock.pid in {it.pid for it in self.samples}
        return ProcessView(
            pid=sample.pid,
            ppid=sample.ppid,
            name=sample.name,
            state=sample.state,
            state_s=memory.state_s(now_s),
            state_looks=memory.state_looks,
            wchan="" if sample.wchan == "0" else sample.wchan,
            cpu_share=memory.cpu_share(),
            frames=seen.frames,
            tracker=seen.tracker or _looks_like_tracker(sample),
            idle=seen.is_idle,
            # For a child, as a shell does.
            waits=seen.waits or seen.is_idle or sample.wchan == "do_wait" or for_own,
            meets=seen.meets,
            computes=seen.computes,
            spins=seen.spins,
            gpu_busy=any(use.pid == sample.pid and use.utilisation_percent for use in self._gpu_use),
            starved=memory.starved or seen.works,
            lock=lock,
        )

    def _lock(self, pid: int) -> LockWait | None:
        frames = self._looks.of(pid).frames
        return self._locks.wait_of(pid, frames) if waits_for_file_lock(frames) else None

    def evidence(self, now_s: float) -> Iterator[Evidence]:
        for view in self.views(now_s) if self.rounds.count else ():
            share = "?" if view.cpu_share is None else f"{view.cpu_share:.0%}"
            place = show(meaningful(view.frames)[0]) if view.frames else "no stack"
            if native := self._looks.of(view.pid).native:
                place += f", natively {leaf(native)}"
            text = f"{view.name}: state {view.state}, {view.wchan or 'running'}, CPU {share}, {place}"
            yield Evidence(kind="process", text=text, at_s=now_s, pid=view.pid)
            if view.lock is not None:
                yield describe(view.lock, now_s)
        for gpu, text in describe_gpus(self._gpu_use, {view.pid: view.name for view in self.views(now_s)}):
            yield Evidence(kind="GPU", text=f"GPU {gpu}: {text}", at_s=now_s)
        for what, (why, at_s) in self._missing.items():
            yield Evidence(kind="not read", text=f"{what}: {why}", at_s=at_s)

    def _miss(self, missing: Missing, now_s: float) -> None:
        if len(self._missing) < 50:
            self._missing.setdefault(missing.what, (missing.why, now_s))


def _looks_like_tracker(sample: ProcessSample) -> bool:
    """Python's resource tracker, where its stack is not known: one thread that sleeps in a pipe."""
    small = sample.threads == 1 and sample.rss_bytes < 32 << 20 and sample.cpu_s < 1.0
    return small and "pipe_read" in sample.wchan
