"""Simulated launches with planted causes: how many experiments `isolate` needs, and how often it is right.

    python benchmarks/isolate_simulation.py [--cases 300] [--seed 1] [--sizes 24] [--rates 1] [--rivals]

Every launch counts, the reproduction and the certificate too; the failing launch itself is the first.
A quarter of the factors need another one, and a launch without it is refused. The failure shows with
chance q where a cause is within the kept factors, and never elsewhere. Evidence for a factor is normal
noise, shifted by 1.5 for the members of a cause, and handed in as the likelihood ratio it is. "mixed" is
the first 20 % base, 55 % one, 20 % two, 5 % three of the cases of those kinds. What was measured goes
to `results/isolate_simulation.json`, where rows of earlier runs stay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy loads: the planner is held to one core

from isolate_measures import Case, calibration, judge, summarise
from isolate_rivals import RIVALS, Contestant, ours
from isolate_worlds import FAILURES, MIX, Clue, Kind, make_world

from shakedown import __version__

RESULTS = Path(__file__).parent / "results" / "isolate_simulation.json"
FEWEST = 60  # cases of a kind that is rare in the mix
HEAD = (
    f"{'':44} launches (95 %)       median  90 %  minutes   right  contains  innocent  proven  refused"
    "  slowest ms"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the cases of some rows have in common; `cases` of the mix."""

    size: int
    q: float
    failure: str
    clue: Clue
    seed: int
    cases: int


def run_cases(contestant: Contestant, kind: Kind, count: int, setting: Setting) -> list[Case]:
    cases = []
    for index in range(count):
        seed = f"{setting.seed}/{kind}/{index}"
        world = make_world(kind, setting.size, setting.q, seed, setting.clue, setting.failure)
        began = time.perf_counter()
        answer = contestant(world)
        took = (time.perf_counter() - began) / max(world.launches, 1)
        cases.append(judge(world, answer, took))
    return cases


def rows_of(title: str, contestant: Contestant, kinds: Sequence[Kind], setting: Setting) -> dict[str, Any]:
    """A row for each kind, one for the mix, and the calibration of the mix."""
    counts = {kind: max(round(MIX.get(kind, 0) * setting.cases), FEWEST) for kind in kinds}
    found = {kind: run_cases(contestant, kind, count, setting) for kind, count in counts.items()}
    rows: dict[str, Any] = {}
    if set(MIX) <= found.keys():
        mixed = [case for kind, share in MIX.items() for case in found[kind][: round(share * setting.cases)]]
        rows["mixed"] = {**summarise(mixed, setting.seed), "calibration": calibration(mixed)}
    rows |= {kind.value: summarise(cases, setting.seed) for kind, cases in found.items()}
    for kind, row in rows.items():
        show(f"{title}, {kind}", row)
    return rows


def show(title: str, row: dict[str, Any]) -> None:
    low, high = row["launches_interval"]
    refused = row["refused_rightly"] + row["refused_wrongly"]
    print(
        f"{title:44} {row['launches']:6.2f} ({low:6.2f}-{high:6.2f}) {row['median']:7.1f} {row['p90']:5.0f}"
        f" {row['minutes']:8.1f} {row['right']:7.1%} {row['contains']:9.1%} {row['innocent']:9.1%}"
        f" {row['proven_innocent']:7.1%} {refused:8.1%} {row['slowest_ms_a_launch']:11d}",
        flush=True,
    )


def keep(label: str, rows: dict[str, Any], setting: Setting) -> None:
    old = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    whole = {
        "shakedown": __version__,
        "rivals": {name: _version(name) for name in ("picire", "envcause")},
        "numpy": _version("numpy"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "most_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "rows": {**old.get("rows", {}), label: {"seed": setting.seed, "cases": setting.cases, **rows}},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(whole, indent=1) + "\n")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def show_calibration(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        print(
            f"    stated {row['from']:.2f} to {row['to']:.2f}: {row['answers']:4d} answers,"
            f" {row['stated']:.3f} on average, {row['right']:.1%} right"
        )


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=300, help="of the mix")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="*", default=[12, 24, 40])
    parser.add_argument("--rates", type=float, nargs="*", default=[1.0, 0.7, 0.4])
    parser.add_argument("--kinds", type=Kind, nargs="*", default=list(Kind))
    parser.add_argument("--clues", type=Clue, nargs="*", default=list(Clue))
    parser.add_argument("--failures", nargs="*", default=list(FAILURES), choices=list(FAILURES))
    parser.add_argument("--rivals", action="store_true", help="the others, too: once for each size and rate")
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    print(f"cases {args.cases}, seed {args.seed}\n{HEAD}")
    for size, q in itertools.product(args.sizes, args.rates):
        for failure, clue in itertools.product(args.failures, args.clues):
            setting = Setting(size=size, q=q, failure=failure, clue=clue, seed=args.seed, cases=args.cases)
            label = f"N={size} q={q:g} {failure}, {clue}"
            rows = rows_of(label, ours, args.kinds, setting)
            show_calibration(rows.get("mixed", {}).get("calibration", ()))
            keep(label, rows, setting)
        for name, contestant in RIVALS.items() if args.rivals else ():
            setting = Setting(
                size=size, q=q, failure="crash", clue=Clue.NONE, seed=args.seed, cases=args.cases
            )
            label = f"N={size} q={q:g} {name}"
            keep(label, rows_of(label, contestant, args.kinds, setting), setting)
    print(f"planner at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
