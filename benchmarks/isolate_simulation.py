"""Simulated launches with planted causes: how many experiments `isolate` needs, and how often it is right.

    python benchmarks/isolate_simulation.py [--cases 100] [--seed 1] [--sizes 24] [--rates 1] [--rivals]

A quarter of the factors need another one (known to all contestants). Every launch counts, the
reproduction and the certificate too; the failing launch itself is the first. A failure shows with
chance q where the cause is within the kept factors and never elsewhere. Evidence for a factor is
normal noise, shifted by 1.5 for the members of a cause, and handed in as the likelihood ratio it is.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy loads: the planner is held to one core

from shakedown.core import (
    CauseKind,
    Ended,
    Experiment,
    Factor,
    FactorKind,
    Judgement,
    Outcome,
    Phase,
    Verdict,
    Wait,
)
from shakedown.isolate import Clues, SearchLimits, isolate
from shakedown.isolate.closure import Dependencies

HUNG = Judgement(
    verdict=Verdict.HUNG, phase=Phase.GRAPH_CAPTURE, wait=Wait.WAITING, cause="no rank moves", fingerprint="x"
)
CRASH = Judgement(
    verdict=Verdict.CRASHED, phase=Phase.WARM_UP, cause="ValueError: x", fingerprint="ValueError: x"
)
SERVES = Judgement(verdict=Verdict.SERVES, phase=Phase.SERVING)
KINDS = ("base", "one", "two", "three", "apart")
MIX = {"base": 0.20, "one": 0.55, "two": 0.20, "three": 0.05}
SHIFT = 1.5

Causes = tuple[frozenset[str], ...]


@dataclass(slots=True)
class World:
    """One case. `causes`: sets each enough alone; one empty set is a broken base."""

    factors: list[Factor]
    causes: Causes
    q: float
    weights: dict[str, float]
    random: random.Random
    failure: Judgement
    launches: int = 0

    def fails(self, kept: frozenset[str]) -> bool:
        self.launches += 1
        can = any(cause <= kept for cause in self.causes)
        return can and (self.launches == 1 or self.random.random() < self.q)

    def oracle(self, experiment: Experiment) -> Outcome:
        failed = self.fails(experiment.kept)
        return Outcome(
            trial_id=f"t{self.launches}", judgement=self.failure if failed else SERVES, seconds=60.0
        )


def make_world(kind: str, count: int, q: float, seed: str, evidence: str, failure: Judgement = HUNG) -> World:
    rng = random.Random(seed)
    names = [f"f{index:02d}" for index in range(count)]
    needs = {
        name: frozenset({rng.choice(names[:index])}) if index and rng.random() < 0.25 else frozenset[str]()
        for index, name in enumerate(names)
    }
    factors = [
        Factor(name=n, kind=FactorKind.FLAG, was="on", now="", needs=needs[n], dear=rng.randrange(5))
        for n in names
    ]
    dependencies = Dependencies(factors)
    size = {"base": 0, "one": 1, "two": 2, "three": 3, "apart": 2}[kind]
    while True:
        drawn = frozenset(rng.sample(names, size))
        if dependencies.core(drawn) == drawn:
            break
    causes: Causes = tuple(frozenset({n}) for n in sorted(drawn)) if kind == "apart" else (drawn,)
    scores = {n: rng.gauss(SHIFT if n in drawn else 0.0, 1.0) for n in names}
    sign = {"prior": 1.0, "flat": 0.0, "inverted": -1.0}[evidence]
    weights = {n: math.exp(sign * SHIFT * score) for n, score in scores.items()}
    chance = random.Random(seed + "!")
    return World(factors=factors, causes=causes, q=q, weights=weights, random=chance, failure=failure)


@dataclass(frozen=True, slots=True)
class Answer:
    """Causes named (None: refused), and whether they are called proven."""

    causes: Causes | None
    proven: bool
    probability: float | None = None


def ours(world: World) -> Answer:
    conclusion = isolate(
        world.factors,
        world.oracle,
        seed=1,
        clues=Clues(weights=world.weights),
        limits=SearchLimits(max_launches=150),
    )
    causes = conclusion.causes
    if not causes:
        return Answer(causes=None, proven=False)
    if causes[0].kind is CauseKind.BASE:
        return Answer(causes=(frozenset(),), proven=True)
    named = tuple(frozenset(cause.factors) for cause in causes)
    return Answer(causes=named, proven=conclusion.ended is Ended.PROVEN, probability=conclusion.probability)


def looks(world: World) -> Callable[[frozenset[str]], bool]:
    """A rival's test: told q, it repeats passes until a miss is below 5 %; each set once."""
    passes = 1 if world.q >= 1 else math.ceil(math.log(0.05) / math.log(1 - world.q))
    known: dict[frozenset[str], bool] = {}

    def test(kept: frozenset[str]) -> bool:
        if kept not in known:
            known[kept] = any(world.fails(kept) for _ in range(passes))
        return known[kept]

    return test


def one_at_a_time(world: World, null_first: bool) -> Answer:
    test, needs = looks(world), Dependencies(world.factors)
    everything = frozenset(factor.name for factor in world.factors)
    test(everything)
    if null_first and test(frozenset()):
        return Answer(causes=(frozenset(),), proven=True)
    helps = frozenset(n for n in sorted(everything) if not test(needs.without(everything, {n})))
    return Answer(causes=(needs.core(helps),) if helps else None, proven=bool(helps))


def ddmin(world: World, null_first: bool) -> Answer:
    test, needs = looks(world), Dependencies(world.factors)
    everything = frozenset(factor.name for factor in world.factors)
    test(everything)
    if null_first and test(frozenset()):
        return Answer(causes=(frozenset(),), proven=True)
    current, parts = sorted(everything), 2
    while len(current) >= 2:
        size = math.ceil(len(current) / parts)
        chunks = [current[at : at + size] for at in range(0, len(current), size)]
        complements = [[n for n in current if n not in chunk] for chunk in chunks] if parts > 2 else []
        for index, candidate in enumerate([*chunks, *complements]):
            kept = needs.closed(candidate) if null_first else frozenset(candidate)
            if len(kept) < len(current) and test(kept):
                current, parts = sorted(kept), 2 if index < len(chunks) else max(parts - 1, 2)
                break
        else:
            if parts >= len(current):
                break
            parts = min(len(current), parts * 2)
    return Answer(causes=(needs.core(current),), proven=True)


def picire(world: World, null_first: bool) -> Answer:
    from picire import DD, CombinedIterator, ConfigCache, splitter
    from picire import Outcome as Verdicts

    test, needs = looks(world), Dependencies(world.factors)
    everything = frozenset(factor.name for factor in world.factors)
    test(everything)
    if null_first and test(frozenset()):
        return Answer(causes=(frozenset(),), proven=True)

    def judged(kept: Sequence[str], _: object) -> Verdicts:
        closed = needs.closed(kept) if null_first else frozenset(kept)
        return Verdicts.FAIL if test(closed) else Verdicts.PASS

    search = DD(judged, cache=ConfigCache(), split=splitter.ZellerSplit(), config_iterator=CombinedIterator())
    return Answer(causes=(needs.core(search(sorted(everything))),), proven=True)


Contestant = Callable[[World], Answer]


def row(title: str, contestant: Contestant, worlds: Sequence[World]) -> None:
    counts, right, partly, innocent, proven_wrong, refused = [], 0, 0, 0, 0, 0
    stated: list[tuple[float, bool]] = []
    slowest = 0.0
    for world in worlds:
        world.launches, began = 0, time.perf_counter()
        answer = contestant(world)
        slowest = max(slowest, (time.perf_counter() - began) / max(world.launches, 1))
        counts.append(world.launches)
        truth = frozenset().union(*world.causes)
        named = frozenset().union(*answer.causes) if answer.causes else frozenset[str]()
        exact = answer.causes is not None and set(answer.causes) == set(world.causes)
        right += exact
        partly += answer.causes is not None and truth <= named
        blamed = bool(named - truth)
        innocent += blamed
        proven_wrong += blamed and answer.proven
        refused += answer.causes is None
        if answer.probability is not None:
            stated.append((answer.probability, exact))
    total = len(worlds)
    tail = sorted(counts)[max(0, math.ceil(0.9 * total) - 1)]
    said = statistics.fmean(p for p, _ in stated) if stated else math.nan
    was = statistics.fmean(exact for _, exact in stated) if stated else math.nan
    print(
        f"{title:36} {statistics.fmean(counts):6.2f} {statistics.median(counts):5.0f} {tail:4d}"
        f" {right / total:7.1%} {partly / total:7.1%} {innocent / total:7.1%} {proven_wrong / total:7.1%}"
        f" {refused / total:7.1%}   {said:5.3f}/{was:5.3f} {slowest * 1000:6.0f}",
        flush=True,
    )


def worlds_of(
    kind: str, count: int, q: float, failure: Judgement, args: argparse.Namespace, evidence: str
) -> list[World]:
    kinds = [kind] * args.cases
    if kind == "mixed":
        kinds = [kind for kind, share in MIX.items() for _ in range(round(share * args.cases))]
    return [
        make_world(each, count, q, f"{args.seed}/{each}/{index}", evidence, failure)
        for index, each in enumerate(kinds)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="*", default=[12, 24, 40])
    parser.add_argument("--rates", type=float, nargs="*", default=[1.0, 0.7, 0.4])
    parser.add_argument("--kinds", nargs="*", default=["mixed", *KINDS])
    parser.add_argument("--evidence", nargs="*", default=["prior"], choices=["prior", "flat", "inverted"])
    parser.add_argument("--failures", nargs="*", default=["crash", "hang"], choices=["crash", "hang"])
    parser.add_argument("--rivals", action="store_true")
    args = parser.parse_args()
    print(f"cases {args.cases}, seed {args.seed}")
    print(
        f"{'':36} launches: mean, median, 90 % · exactly right · contains the cause · blamed an innocent"
        " · proven an innocent · refused · stated/true probability · slowest ms per launch"
    )
    failures = {"crash": CRASH, "hang": HUNG}
    for count, q, kind, failure in itertools.product(args.sizes, args.rates, args.kinds, args.failures):
        for evidence in args.evidence:
            worlds = worlds_of(kind, count, q, failures[failure], args, evidence)
            row(f"N={count} q={q} {failure} {kind}, {evidence}", ours, worlds)
        if args.rivals and failure == args.failures[0]:
            for (name, rival), null_first in itertools.product(RIVALS.items(), (False, True)):
                worlds = worlds_of(kind, count, q, failures[failure], args, "flat")
                label = f"  {name}{', null first' if null_first else ''}"
                row(label, lambda world, r=rival, n=null_first: r(world, n), worlds)


RIVALS: dict[str, Callable[[World, bool], Answer]] = {"one at a time": one_at_a_time, "ddmin": ddmin}
try:
    import picire as _picire  # noqa: F401

    RIVALS["picire"] = picire
except ImportError:
    pass

if __name__ == "__main__":
    main()
