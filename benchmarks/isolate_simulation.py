"""Simulated launches with planted causes: how many experiments `isolate` needs, and how often it is right.

    python benchmarks/isolate_simulation.py [--cases 300] [--seed 1] [--sizes 24] [--rates 1] [--rivals]
        [--jobs N] [--deadline-s 600] [--show]

Every launch counts, the reproduction and the certificate too; the failing launch itself is the first.
A quarter of the factors need another one, and a launch without it is refused. The failure shows with
chance q where a cause is within the kept factors, and never elsewhere. Evidence for a factor is normal
noise, shifted by 1.5 for the members of a cause, and handed in as the likelihood ratio it is. "mixed" is
20 % base, 55 % one, 20 % two, 5 % three. Where a failure comes and goes, ours runs twice: as it is, and
told so (--intermittent). Each case becomes a line of `--rows` once it has ended, and one that is there is
not run again; the table is made of these rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy loads: the planner is held to one core

from isolate_measures import Case, calibration, judge, mixed, planner, summarise
from isolate_rivals import RIVALS, ours
from isolate_schedule import OURS, TOLD, Setting, Task, schedule
from isolate_worlds import FAILURES, MIX, Clue, Kind, make_world

from shakedown import __version__

RESULTS = Path(__file__).parent / "results"
HEAD = (
    f"{'':45} cases  launches (95 %)       median  90 %  minutes   right  contains  innocent  proven  refused"
    "  slowest ms"
)
Found = dict[Setting, dict[Kind, dict[int, Case]]]


def run(work: tuple[Task, int, float]) -> list[dict[str, Any]]:
    """The cases of a task as rows, those that are begun before the deadline."""
    task, seed, stop_at = work
    setting, rows = task.setting, []
    contestant = RIVALS.get(setting.who, partial(ours, intermittent=setting.who == TOLD))
    for index in range(task.first, task.first + task.count):
        if time.time() > stop_at:
            break
        name = f"{seed}/{task.kind}/{index}"
        world = make_world(task.kind, setting.size, setting.q, name, setting.clue, setting.failure)
        began = time.perf_counter()
        answer = contestant(world)
        took_s = (time.perf_counter() - began) / max(world.launches, 1)
        most_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        case = judge(world, answer, took_s, most_mb)
        rows.append({**asdict(setting), "kind": task.kind, "index": index, **asdict(case)})
    return rows


def read(path: Path) -> Found:
    """The rows so far, in the order of their numbers whatever the order they ended in."""
    found: Found = {}
    lines = path.read_text().splitlines() if path.is_file() else []
    for row in map(json.loads, lines):
        told = {name: row.pop(name) for name in ("who", "size", "q", "failure", "clue")}
        setting = Setting(**{**told, "clue": Clue(told["clue"])})
        kind, index = Kind(row.pop("kind")), row.pop("index")
        found.setdefault(setting, {}).setdefault(kind, {})[index] = Case.read(row)
    return found


def table(setting: Setting, kinds: Mapping[Kind, Mapping[int, Case]], seed: int) -> dict[str, Any]:
    """A row for each kind, one for the mix with its calibration, and which of our cases were wrong."""
    found = {kind: [kinds[kind][at] for at in sorted(kinds[kind])] for kind in Kind if kind in kinds}
    rows: dict[str, Any] = {}
    mix = mixed(found) if found.keys() >= MIX.keys() else []
    if mix:
        rows["mixed"] = {**summarise(mix, seed), "calibration": calibration(mix)}
    for kind, cases in found.items():
        rows[kind.value] = summarise(cases, seed)
        if setting.ours:
            rows[kind.value]["misses"] = [at for at in sorted(kinds[kind]) if not kinds[kind][at].right]
    return rows


def show(title: str, row: Mapping[str, Any]) -> None:
    low, high = row["launches_interval"]
    refused = row["refused_rightly"] + row["refused_wrongly"]
    print(
        f"{title:45} {row['cases']:5d} {row['launches']:6.2f} ({low:6.2f}-{high:6.2f}) {row['median']:7.1f}"
        f" {row['p90']:5.0f} {row['minutes']:8.1f} {row['right']:7.1%} {row['contains']:9.1%}"
        f" {row['innocent']:9.1%} {row['proven_innocent']:7.1%} {refused:8.1%}"
        f" {row['slowest_ms_a_launch']:11d}"
    )
    for line in row.get("calibration", ()):
        print(
            f"    stated {line['from']:.2f} to {line['to']:.2f}: {line['answers']:4d} answers,"
            f" {line['stated']:.3f} on average, {line['right']:.1%} right"
        )


def show_misses(setting: Setting, kinds: Mapping[Kind, Mapping[int, Case]]) -> None:
    for kind, cases in kinds.items():
        for at in sorted(cases):
            if not cases[at].right:
                told = f"named {cases[at].named}" if cases[at].named else "named nothing"
                print(f"MISS {setting.label}, {kind} {at}: {told}, {cases[at].launches} launches")


def report(found: Found, args: argparse.Namespace) -> None:
    print(f"seed {args.seed}, shakedown {__version__}, python {platform.python_version()}\n{HEAD}")
    tables: dict[str, Any] = {}
    order = sorted(found, key=lambda it: (not it.ours, it.size, -it.q, it.who, it.failure, it.clue))
    for setting in order:
        tables[setting.label] = table(setting, found[setting], args.seed)
        for kind, row in tables[setting.label].items():
            show(f"{setting.label}, {kind}", row)
    for setting in order if args.misses else ():
        if setting.ours:
            show_misses(setting, found[setting])
    every = [case for kinds in found.values() for cases in kinds.values() for case in cases.values()]
    most_mb = max((case.most_mb for case in every), default=0)
    print(f"{len(every)} cases, a process of planner and rivals at most {most_mb} MB")
    whole = {
        "shakedown": __version__,
        "planner": planner(),
        "rivals": {name: _version(name) for name in ("picire", "envcause")},
        "numpy": _version("numpy"),
        "python": platform.python_version(),
        "machine": {"kind": platform.machine(), "cores": os.cpu_count(), "jobs": args.jobs},
        "seed": args.seed,
        "cases": len(every),
        "most_mb": most_mb,
        "rows": tables,
    }
    args.table.write_text(json.dumps(whole, indent=1) + "\n")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def settings_of(args: argparse.Namespace) -> list[Setting]:
    found = [
        Setting(who=who, size=size, q=q, failure=failure, clue=clue)
        for who, size, q, failure, clue in itertools.product(
            args.who, args.sizes, args.rates, args.failures, args.clues
        )
        if who == OURS or q < 1
    ]
    if args.rivals:  # nothing is told to them but what needs what: once for each size and rate
        found += [
            Setting(who=name, size=size, q=q, failure="crash", clue=Clue.NONE)
            for size, q, name in itertools.product(args.sizes, args.rates, RIVALS)
        ]
    return found


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=300, help="of the mix, in each setting")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="*", default=[12, 24, 40])
    parser.add_argument("--rates", type=float, nargs="*", default=[1.0, 0.7, 0.4])
    parser.add_argument("--kinds", type=Kind, nargs="*", default=list(Kind))
    parser.add_argument("--clues", type=Clue, nargs="*", default=list(Clue))
    parser.add_argument("--failures", nargs="*", default=list(FAILURES), choices=list(FAILURES))
    parser.add_argument("--who", nargs="*", default=[OURS, TOLD], choices=[OURS, TOLD], help="of ours")
    parser.add_argument("--rivals", action="store_true", help="the others, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--deadline-s", type=float, default=1e9, help="no case is begun after this")
    parser.add_argument("--rows", type=Path, default=RESULTS / "isolate_simulation.rows.jsonl")
    parser.add_argument("--table", type=Path, default=RESULTS / "isolate_simulation.json")
    parser.add_argument("--show", action="store_true", help="the table of the rows that are there")
    parser.add_argument("--misses", action="store_true", help="print our wrong answers, too")
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    stop_at = time.time() + args.deadline_s
    known = read(args.rows)
    work = [] if args.show else schedule(settings_of(args), args.kinds, args.cases)
    work = [task for task in work if not _is_done(task, known)]
    with (
        args.rows.open("a") as rows,
        multiprocessing.get_context("spawn").Pool(args.jobs if work else 1) as pool,
    ):
        tasks = [(task, args.seed, stop_at) for task in work]
        for done, ended in enumerate(pool.imap_unordered(run, tasks), 1):
            rows.writelines(json.dumps(row) + "\n" for row in ended)
            rows.flush()
            if done % 200 == 0 and ended:
                print(f"{done} of {len(work)} tasks", file=sys.stderr)
    report(read(args.rows), args)


def _is_done(task: Task, known: Found) -> bool:
    have = known.get(task.setting, {}).get(task.kind, {})
    return all(index in have for index in range(task.first, task.first + task.count))


if __name__ == "__main__":
    main()
