"""What the looks at the stacks of a silence come to: where each process stands, works, spins, or moves on.

It never takes a stack itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shakedown.core import Engine, Frame, Phase, StackDump
from shakedown.watch.stacks import (
    StackMemory,
    awake_threads,
    compiles,
    idles,
    is_in_driver,
    is_tracker,
    main_frames,
    meets_ranks,
    phase_of,
    places,
    spins,
    tunes,
    waits_for_other,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What the stacks of one process say of it; the counts are of looks since something moved."""

    frames: tuple[Frame, ...] = ()
    tracker: bool = False
    waits: bool = False
    idles: bool = False  # in a loop that polls for requests
    meets: bool = False
    compiles: bool = False
    tunes: bool = False
    phase: Phase | None = None
    looks: int = 0
    awake: int = 0  # with a thread that ran or wanted to
    natives: int = 0
    spun: int = 0  # in which all that is at work spins
    held: int = 0  # in which one of them is in the GPU's driver
    native: tuple[Frame, ...] = ()  # of the latest

    @property
    def works(self) -> bool:
        """Whether a thread, not only the main one, runs or wants to in most looks."""
        return 2 * self.awake > self.looks

    @property
    def spins(self) -> bool:
        """In half of the looks: a kernel of many threads is in a barrier now and then, and moves on."""
        return 2 * self.spun >= self.natives if self.natives else spins(self.frames)

    @property
    def is_idle(self) -> bool:
        """A loop that polls for requests does not wait for the GPU, look after look."""
        return self.idles and not (self.natives and 4 * self.held >= self.natives)

    @property
    def computes(self) -> bool:
        """A compiler does not wait for the GPU; what it has compiled may, under the same frames."""
        return self.tunes or (self.compiles and not (self.natives and self.spins))


UNSEEN = Traits()


class Looks:
    """Remembers the looks of a silence, process by process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._memory = StackMemory()
        self._traits: dict[int, Traits] = {}

    def of(self, pid: int) -> Traits:
        return self._traits.get(pid, UNSEEN)

    def see(self, pid: int, dump: StackDump, at_s: float) -> bool:
        """Takes in one look; True if the process is where it was not in the last minute.

        The main thread counts, and every thread that is at work: a server's main thread waits for
        requests while another one answers them.
        """
        frames, awake = main_frames(dump), awake_threads(dump)
        threads = {"MainThread": frames, **awake}
        new = [self._memory.is_new(pid, name, places_, at_s) for name, places_ in threads.items()]
        before = self.of(pid)
        self._traits[pid] = Traits(
            frames=frames,
            tracker=is_tracker(frames),
            waits=waits_for_other(frames, self._engine),
            idles=idles(frames, self._engine),
            meets=meets_ranks(frames),
            compiles=any(compiles(each, self._engine) for each in threads.values()),
            tunes=any(tunes(each) for each in threads.values()),
            phase=phase_of(places(frames), self._engine),
            looks=before.looks + 1,
            awake=before.awake + bool(awake),
            natives=before.natives,
            spun=before.spun,
            held=before.held,
            native=before.native,
        )
        return any(new) and not (is_tracker(frames) or self._traits[pid].idles)

    def see_native(self, pid: int, dump: StackDump) -> None:
        """The same place with its native frames. A main thread that waits says nothing of one at work."""
        traits = self.of(pid)
        working = awake_threads(dump) or {"MainThread": main_frames(dump)}
        spun = all(spins(frames) for frames in working.values())
        self._traits[pid] = replace(
            traits,
            natives=traits.natives + 1,
            spun=traits.spun + spun,
            held=traits.held + any(is_in_driver(frames) for frames in working.values()),
            native=next(iter(working.values())),
        )

    def forget(self, at_s: float, *, keep: bool) -> None:
        """Something moved. `keep`: it was only a stack, so where everybody stands is still known."""
        if keep:
            for pid, traits in self._traits.items():
                self._traits[pid] = replace(traits, looks=0, awake=0, natives=0, spun=0, held=0, native=())
        else:
            self._traits.clear()
            self._memory.forget(at_s)
