"""Tier 2 of the isolation benchmark: real processes with the flags and culprits of real incidents.

    python benchmarks/isolate_processes.py [--seed 1] [--cases N] [--workers 2] [--again] [--show]

Each case (`incident_cases.py`) is isolated by the program itself, from reading the command to the
certificate: only the server is a stand-in (`tests/bad_servers/engine_like.py`), which goes through an
engine's phases in hundredths of seconds, and the watch's patience is cut accordingly. Every launch counts.
Right means: exactly the culprits, proven; of a base failure, that no factor is blamed. Results go to
`results/isolate_processes.jsonl`, where a case that is there is not run again unless --again says so.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy loads: one core a case
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "bad_servers"))

from incident_cases import PACE, Case, launch_of, make_cases

from shakedown import __version__
from shakedown.core import Expectation
from shakedown.errors import ShakedownError
from shakedown.host.reach import free_port
from shakedown.isolate import Ladder
from shakedown.isolate.sorting import PREFIXES
from shakedown.jobs import isolate as isolating
from shakedown.jobs import oracle
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.trials import subject_of
from shakedown.trial import Subject, asking, conduct
from shakedown.watch import Limits

RESULTS = Path(__file__).parent / "results" / "isolate_processes.jsonl"
MOST_LAUNCHES = 80
RESAMPLES = 2000


class Quiet:
    def say(self, text: str) -> None:
        pass

    def progress(self, progress: object) -> None:
        pass


def hurry() -> None:
    """The stand-in's phases take hundredths of seconds: nobody need wait for it as for an engine."""
    conduct.STEP_S = asking.STEP_S = 0.1
    asking.READY_PAUSE_S, asking.CANARY_S = 0.1, 5.0
    asking.DEATH_SHOWS_S, asking.HANG_SHOWS_S = 1.5, 12.0
    oracle.subject_of = impatient(subject_of)
    isolating.ladder_of = lambda base, factors: Ladder()  # rungs are checked elsewhere


def impatient(make: Callable[..., Subject]) -> Callable[..., Subject]:
    def subject(*args: Any, **options: Any) -> Subject:
        limits = Limits(
            quiet_s=0.8, suspect_s=3.0, settle_s=0.6, round_s=0.3, expected=options.get("expected")
        )
        return replace(make(*args, **options), limits=limits)

    return subject


def run(case: Case) -> dict[str, Any]:
    hurry()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="incident-") as work:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
        like = {
            "LIKE_FAULTS": json.dumps(case.faults),
            "LIKE_WORDS": case.engine,
            "LIKE_STARTS": f"{work}/starts",
            "LIKE_SEED": case.id,
            "LIKE_PACE": PACE,
            "TORCHINDUCTOR_CACHE_DIR": f"{work}/inductor",  # what this machine has compiled is no part of it
            "HOME": work,
        }
        port = free_port()
        launch = launch_of(case, sys.executable, port, Path(work), kept | like)
        request = LaunchRequest(
            launch=launch,
            engine=case.engine,
            port=port,
            expect=tuple(map(Expectation.read, case.expect)),
            ledger=Path(work) / "ledger.db",
        )
        try:
            job = isolating.isolate_job(request, Quiet(), max_launches=MOST_LAUNCHES, resume=None, seed=1)
            document = job.document
        except ShakedownError as problem:
            document = {"error": problem.message}
    return judged(case, document, time.monotonic() - began_s)


def judged(case: Case, document: dict[str, Any], seconds: float) -> dict[str, Any]:
    causes = document.get("causes") or []
    named = [frozenset(factor["name"] for factor in cause["factors"]) for cause in causes]
    truth = [*case.truth]
    culprits, blamed = (frozenset[str]().union(*sets) for sets in (truth, named))
    proven = document.get("ended") == "proven"
    if not culprits:
        right = [cause["kind"] for cause in causes] == ["base"]
    else:
        right = proven and sorted(map(sorted, named)) == sorted(map(sorted, truth))
    return {
        "id": case.id,
        "kind": case.kind,
        "size": len(truth[0]) if len(truth) == 1 else -len(truth),
        "engine": case.engine,
        "factors": case.factors,
        "truth": [sorted(it) for it in truth],
        "named": [sorted(it) for it in named],
        "ended": document.get("ended"),
        "right": right,
        "contains": culprits <= blamed,
        "innocent": sorted(blamed - culprits),
        "innocent_proven": sorted(blamed - culprits) if proven else [],
        "launches": document.get("launches", 0),
        "probability": document.get("probability"),
        "seconds": round(seconds, 1),
        "verdict": document.get("verdict"),
        "note": document.get("note") or document.get("error", ""),
    }


def read_results() -> dict[str, dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.is_file() else []
    return {row["id"]: row for row in map(json.loads, lines) if "id" in row}


def show(rows: Sequence[dict[str, Any]]) -> None:
    print(
        f"{len(rows)} cases, shakedown {__version__}, python {sys.version.split()[0]}, {os.cpu_count()} cores"
    )
    head = (
        "cases",
        "launches: mean (95 %)",
        "median",
        "90 %",
        "right",
        "contains",
        "innocent",
        "proven",
        "s",
    )
    print(f"{'':34} {head[0]:>5} {head[1]:>22} {head[2]:>6} {head[3]:>5}", *(f"{it:>8}" for it in head[4:]))
    for title, chosen in groups(rows):
        if chosen:
            print(line(title, chosen))
    for row in rows:
        if not row["right"]:
            print(
                f"MISS {row['id']}: {row['ended']}, named {row['named']}, truth {row['truth']} {row['note']}"[
                    :300
                ]
            )


def groups(rows: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    def those(condition: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        return [row for row in rows if condition(row)]

    sure = those(lambda row: row["kind"] in {"as it was", "among others"} and "flaky" not in row["id"])
    return [
        ("all", list(rows)),
        *(
            (kind, those(lambda row, kind=kind: row["kind"] == kind))
            for kind in sorted({r["kind"] for r in rows})
        ),
        *(
            (f"sure: {name}", [r for r in sure if r["size"] == n])
            for n, name in enumerate(("base", "one", "two", "three"))
        ),
    ]


def line(title: str, rows: Sequence[dict[str, Any]]) -> str:
    counts = sorted(row["launches"] for row in rows)
    low, high = interval(counts)
    shares = [
        statistics.fmean(bool(row[key]) for row in rows)
        for key in ("right", "contains", "innocent", "innocent_proven")
    ]
    mean = f"{statistics.fmean(counts):.1f} ({low:.1f} to {high:.1f})"
    middle, tail = statistics.median(counts), counts[math.ceil(0.9 * len(counts)) - 1]
    told = " ".join(f"{share:>8.1%}" for share in shares)
    seconds = statistics.fmean(row["seconds"] for row in rows)
    return f"{title:34} {len(rows):>5} {mean:>22} {middle:>6.0f} {tail:>5} {told} {seconds:>8.1f}"


def interval(counts: Sequence[int]) -> tuple[float, float]:
    """Of the mean, by resampling."""
    chance = random.Random(1)
    means = sorted(statistics.fmean(chance.choices(counts, k=len(counts))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--only")
    args = parser.parse_args()
    cases = make_cases(args.seed)
    cases = [case for case in cases if not args.only or args.only in case.id][: args.cases]
    known = read_results()
    wanted = [] if args.show else [case for case in cases if args.again or case.id not in known]
    with multiprocessing.get_context("spawn").Pool(args.workers, maxtasksperchild=4) as pool:
        for done, row in enumerate(pool.imap_unordered(run, wanted), 1):
            known[row["id"]] = row
            mark = "" if row["right"] else "  MISS"
            print(
                f"{done}/{len(wanted)} {row['id']}: {row['launches']} launches, {row['seconds']} s{mark}",
                file=sys.stderr,
            )
            order = {case.id: at for at, case in enumerate(make_cases(args.seed))}
            rows = sorted(
                (row for row in known.values() if row["id"] in order), key=lambda row: order[row["id"]]
            )
            head = {
                "shakedown": __version__,
                "seed": args.seed,
                "python": sys.version.split()[0],
                "cores": os.cpu_count(),
            }
            RESULTS.write_text("".join(json.dumps(it) + "\n" for it in (head, *rows)))
    show([known[case.id] for case in cases if case.id in known])


if __name__ == "__main__":
    main()
