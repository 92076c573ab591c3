"""Contestants of the simulation: ours, and others told what they can be told.

None is told the causes, all are told what needs what: a factor goes with what it needs. One at a time
and splitting are written here; ddmin is picire's DD, EnvCause is EnvCause's own `reduce_environment`. All
but EnvCause are told q and repeat a pass until a miss is below 5 %. Null first: safe mode before all else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from isolate_worlds import Causes, Kind, World

from shakedown.core import CauseKind, Conclusion, Ended
from shakedown.isolate import Clues, SearchLimits, isolate
from shakedown.isolate.arena import Arena
from shakedown.isolate.judge import Showing, classify
from shakedown.isolate.split import split

MOST_LAUNCHES = 150
MISS = 0.05
BASE: Causes = (frozenset(),)


@dataclass(frozen=True, slots=True)
class Answer:
    """Causes named (None: refused), whether they are called proven, and the stated probability."""

    causes: Causes | None
    proven: bool = False
    probability: float | None = None


REFUSED = Answer(causes=None)


def ours(world: World, *, intermittent: bool = False) -> Answer:
    conclusion = isolate(
        world.factors,
        world.oracle,
        seed=1,
        clues=Clues(
            weights=world.weights,
            seen=world.failure if world.kind is Kind.GONE else None,
            intermittent=intermittent,
        ),
        limits=SearchLimits(max_launches=MOST_LAUNCHES),
    )
    return answer_of(conclusion)


def answer_of(conclusion: Conclusion) -> Answer:
    causes = conclusion.causes
    if not causes:
        return REFUSED
    if causes[0].kind is CauseKind.BASE:
        return Answer(causes=BASE, proven=True)
    named = tuple(frozenset(cause.factors) for cause in causes)
    return Answer(causes=named, proven=conclusion.ended is Ended.PROVEN, probability=conclusion.probability)


class Look:
    """A rival's test of a set, answered once: does it show the failure?"""

    def __init__(self, world: World) -> None:
        self.world = world
        self.passes = 1 if world.q >= 1 else math.ceil(math.log(MISS) / math.log(1 - world.q))
        self.known: dict[frozenset[str], bool] = {}

    def __call__(self, kept: frozenset[str]) -> bool:
        kept = self.world.needs.closed(kept)
        if kept not in self.known:
            self.known[kept] = any(self._fails(kept) for _ in range(self.passes))
        return self.known[kept]

    def _fails(self, kept: frozenset[str]) -> bool:
        return classify(self.world.launch(kept), self.world.failure.signature) is Showing.FAILS


Contestant = Callable[[World], Answer]
Reduce = Callable[[World, Look], frozenset[str]]


def rival(reduce: Reduce, *, null_first: bool) -> Contestant:
    def contest(world: World) -> Answer:
        look = Look(world)
        if not look(world.everything):
            return REFUSED
        if null_first and look(frozenset()):
            return Answer(causes=BASE, proven=True)
        found = world.needs.core(reduce(world, look))
        return Answer(causes=(found,), proven=True) if found else REFUSED

    return contest


def one_at_a_time(world: World, look: Look) -> frozenset[str]:
    """Whatever helps when it alone is removed."""
    return frozenset(n for n in sorted(world.everything) if not look(world.everything - {n}))


def ddmin(world: World, look: Look) -> frozenset[str]:
    from picire import DD, ConfigCache, Outcome, config_splitters

    def judged(kept: Sequence[str], _: object) -> Outcome:
        return Outcome.FAIL if look(frozenset(kept)) else Outcome.PASS

    search = DD(judged, cache=ConfigCache(), split=config_splitters.ZellerSplit())
    return frozenset(search(sorted(world.everything)))


def splitting(world: World, look: Look) -> frozenset[str]:
    """Binary search for one member after another, all alike: our own fallback without prior or proof."""
    arena = Arena(
        universe=world.everything,
        floor=frozenset(),
        target=world.failure.signature,
        needs=world.needs,
    )
    alike = dict.fromkeys(world.everything, 1.0)
    return split(
        arena,
        world.everything,
        alike,
        lambda kept, _: Showing.FAILS if look(kept) else Showing.SERVES,
    )


class _InWorld:
    """EnvCause's way to run a candidate elsewhere: here the world says which of two programs to run."""

    description = "a simulated launch"
    parallel_safe = False
    cache_identity: Mapping[str, object] = {}

    def __init__(self, world: World) -> None:
        self.world = world

    def prepare(
        self, command: Sequence[str], env: Mapping[str, str], cwd: str | None
    ) -> tuple[list[str], dict[str, str], str | None]:
        kept = frozenset(name for name in self.world.everything if env.get(name) == "bad")
        judgement = self.world.launch(self.world.needs.closed(kept))
        fails = classify(judgement, self.world.failure.signature) is Showing.FAILS
        return ["false" if fails else "true"], {"PATH": env["PATH"]}, cwd


def envcause(world: World) -> Answer:
    """It checks both ends itself, and trusts one run each time, as by default."""
    from envcause.core import EnvCauseError, reduce_environment

    names = sorted(world.everything)
    try:
        result = reduce_environment(
            dict.fromkeys(names, "good"),
            dict.fromkeys(names, "bad"),
            ["launch"],
            process_env={"PATH": os.environ["PATH"]},
            adapter=_InWorld(world),
        )
    except EnvCauseError as refused:
        known_good = "Known-good" in str(refused)
        return Answer(causes=BASE, proven=True) if known_good else REFUSED
    found = world.needs.core(frozenset(change.key for change in result.changes))
    return Answer(causes=(found,), proven=True)


RIVALS: dict[str, Contestant] = {
    "one at a time": rival(one_at_a_time, null_first=False),
    "one at a time, null first": rival(one_at_a_time, null_first=True),
    "ddmin (picire)": rival(ddmin, null_first=False),
    "ddmin (picire), null first": rival(ddmin, null_first=True),
    "EnvCause (null first by itself)": envcause,
    "splitting": rival(splitting, null_first=False),
    "splitting, null first": rival(splitting, null_first=True),
}
