"""Rounds of a search with several workers, simulated: what launches at once save, and what limits it.

    python benchmarks/isolate_workers.py [--cases 40] [--seed 1] [--sizes 12 24 40] [--rates 1]
        [--workers 1 2 4 8 16]

A round is the time of the launches that run at once; one with a proof has that proof alone. "proofs" are the
rounds of launches by themselves after the first, "floor" is what no number of workers goes below: the opening
and one round for each proof of the cause that is there. Worlds and clues are those of isolate_simulation.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy loads: the planner is held to one core

from isolate_measures import judge, planner
from isolate_rivals import MOST_LAUNCHES, answer_of
from isolate_worlds import MIX, SIZES, Clue, Kind, World, make_world

from shakedown import __version__
from shakedown.core import Experiment, Outcome
from shakedown.isolate import Clues, SearchLimits, isolate
from shakedown.ledger.events import experiment_key

RESULTS = Path(__file__).parent / "results" / "isolate_workers.json"
HEAD = f"{'':22} cases  rounds  of one  (floor)  batches  proofs  launches   right  proven wrong  plan ms"
# Proofs by themselves: of a base safe mode and the look with debug logging; of k factors together the cause
# alone, one less for each (for a single one that is the workaround) and the workaround.
PROOFS = {Kind.BASE: 2, Kind.ONE: 2, Kind.TWO: 4, Kind.THREE: 5}


@dataclass(slots=True)
class Crew:
    """Answers as a world does, and counts rounds as an executor would make them."""

    world: World
    begun: dict[str, bool] = field(default_factory=dict)
    batches: int = 0
    proofs: int = 0
    slowest_s: float = 0.0
    asked_s: float = field(default_factory=time.perf_counter)

    def start(self, experiments: Sequence[Experiment]) -> None:
        self._thought()
        self.batches += 1
        self.begun = {experiment_key(each): len(experiments) == 1 for each in experiments}

    def __call__(self, experiment: Experiment) -> Outcome:
        alone = self.begun.pop(experiment_key(experiment), None)
        if alone is None:
            self._thought()
            self.proofs += 1
        outcome = replace(self.world.oracle(experiment), alone=alone is not False)
        self.asked_s = time.perf_counter()
        return outcome

    def _thought(self) -> None:
        self.slowest_s = max(self.slowest_s, time.perf_counter() - self.asked_s)


def run(world: World, workers: int) -> dict[str, Any]:
    crew = Crew(world)
    found = isolate(
        world.factors,
        crew,
        seed=1,
        clues=Clues(weights=world.weights),
        limits=SearchLimits(max_launches=MOST_LAUNCHES, workers=workers),
        start=crew.start,
    )
    case = judge(world, answer_of(found), crew.slowest_s, 0)
    return {
        "rounds": crew.batches + crew.proofs,
        "batches": crew.batches,
        "proofs": crew.proofs,
        "launches": case.launches,
        "right": case.right,
        "proven_innocent": case.proven_innocent,
        "slowest_s": crew.slowest_s,
    }


def row_of(size: int, rate: float, workers: int, args: argparse.Namespace) -> dict[str, Any]:
    kinds = random.Random(f"{args.seed} {size}").choices(list(MIX), list(MIX.values()), k=args.cases)
    worlds = (
        make_world(kind, size, rate, f"workers/{args.seed}/{size}/{at}", Clue.TOLD, "crash")
        for at, kind in enumerate(kinds)
    )
    cases = [run(world, workers) for world in worlds]
    means = {name: fmean(case[name] for case in cases) for name in cases[0]}
    return {
        "size": size,
        "rate": rate,
        "workers": workers,
        "cases": len(cases),
        **{name: round(value, 3) for name, value in means.items()},
        "floor": round(fmean(1 + PROOFS[kind] for kind in kinds), 3),
        "slowest_s": round(max(case["slowest_s"] for case in cases), 3),
    }


def show(row: dict[str, Any], alone: float) -> None:
    print(
        f"{row['size']:3} factors, q {row['rate']:.1f}, {row['workers']:2} {row['cases']:5}"
        f" {row['rounds']:7.2f} {row['rounds'] / alone:6.2f}x  ({row['floor']:.2f}) {row['batches']:9.2f}"
        f" {row['proofs']:7.2f} {row['launches']:9.2f} {row['right']:7.1%} {row['proven_innocent']:13.1%}"
        f" {row['slowest_s'] * 1000:14.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="*", default=[12, 24, 40])
    parser.add_argument("--rates", type=float, nargs="*", default=[1.0])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    assert set(SIZES) >= set(PROOFS) >= set(MIX)
    print(f"seed {args.seed}, shakedown {__version__}, python {platform.python_version()}\n{HEAD}")
    rows = []
    for size in args.sizes:
        for rate in args.rates:
            alone = None
            for workers in args.workers:
                rows.append(row_of(size, rate, workers, args))
                alone = alone or rows[-1]["rounds"]
                show(rows[-1], alone)
    told = {
        "shakedown": __version__,
        "planner": planner(),
        "python": platform.python_version(),
        "machine": {"kind": platform.machine(), "cores": os.cpu_count()},
        "seed": args.seed,
    }
    args.results.write_text(json.dumps({**told, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
