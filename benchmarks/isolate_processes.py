"""Tier 2 of the isolation benchmark: real processes with the flags and culprits of real incidents.

    python benchmarks/isolate_processes.py [--seed 1] [--cases N] [--jobs N] [--deadline-s 600] [--again]

Each case (`incident_cases.py`) is isolated by the program itself, from reading the command to the
certificate: only the server is a stand-in (`tests/bad_servers/engine_like.py`), which goes through an
engine's phases in hundredths of seconds, and the watch's patience is cut accordingly. Every launch counts.
Right means: exactly the culprits, proven; of a base failure, that no factor is blamed. Each case becomes a
line of `--rows` once it has ended, and one that is there is not run again unless --again says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.pool import IMapIterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy loads: one core a case
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "bad_servers"))

from incident_cases import PACE, Case, launch_of, make_cases
from isolate_measures import planner

from shakedown import __version__
from shakedown.core import Expectation
from shakedown.errors import ShakedownError
from shakedown.host.reach import free_port
from shakedown.isolate import Ladder
from shakedown.isolate.settings import PREFIXES
from shakedown.jobs import isolate as isolating
from shakedown.jobs import oracle
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.trials import subject_of
from shakedown.trial import Subject, asking, conduct
from shakedown.watch import Limits

RESULTS = Path(__file__).parent / "results" / "isolate_processes.jsonl"
MOST_LAUNCHES = 80
FIRST_PORT = 21_000  # below those that outgoing connections take
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


def run(case: Case, number: int) -> dict[str, Any]:
    """`number` is its own among those that run at once."""
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
        port = port_of(number)
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


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """The last row of each case."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return {row["id"]: row for row in map(json.loads, lines) if "id" in row}


def show(rows: Sequence[dict[str, Any]]) -> None:
    made = sorted({(row["planner"], row["python"], row["cores"]) for row in rows})
    print(f"{len(rows)} cases, shakedown {__version__}; planner, python and cores: {made}")
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


def port_of(number: int) -> int:
    """Nobody else's here: a port found free could be found by another case between two launches."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", FIRST_PORT + number))
        except OSError:
            return free_port()
    return FIRST_PORT + number


def run_before(work: tuple[Case, int, float]) -> dict[str, Any] | None:
    """None where the deadline has come before the case was begun."""
    case, number, stop_at = work
    return run(case, number) if time.time() < stop_at else None


def mingled(cases: Sequence[Case]) -> list[Case]:
    """The kinds in turn, so that a run that is cut has seen all of them evenly."""
    place: dict[str, float] = {}
    count = Counter(case.kind for case in cases)
    seen: Counter[str] = Counter()
    for case in cases:
        place[case.id] = (seen[case.kind] + 0.5) / count[case.kind]
        seen[case.kind] += 1
    return sorted(cases, key=lambda case: place[case.id])


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--only", help="cases with this in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="a case mostly waits")
    parser.add_argument("--deadline-s", type=float, default=1e9, help="no case is begun after this")
    parser.add_argument("--grace-s", type=float, default=1e9, help="what was begun may take so much longer")
    parser.add_argument("--rows", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="also what is known")
    parser.add_argument("--show", action="store_true", help="the table of the rows that are there")
    return parser.parse_args()


def main() -> None:
    args = read_arguments()
    stop_at = time.time() + args.deadline_s
    cases = mingled([case for case in make_cases(args.seed) if not args.only or args.only in case.id])
    cases = cases[: args.cases]
    known = read_results(args.rows)
    wanted = [] if args.show else [case for case in cases if args.again or case.id not in known]
    with multiprocessing.get_context("spawn").Pool(args.jobs if wanted else 1, maxtasksperchild=4) as pool:
        work = [(case, number, stop_at) for number, case in enumerate(wanted)]
        for done, row in enumerate(until(stop_at + args.grace_s, pool.imap_unordered(run_before, work)), 1):
            if row is not None:
                keep(row, args, known)
                mark = "" if row["right"] else "  MISS"
                told = f"{row['launches']} launches, {row['seconds']} s{mark}"
                print(f"{done}/{len(wanted)} {row['id']}: {told}", file=sys.stderr, flush=True)
    show([known[case.id] for case in cases if case.id in known])
    print(f"{sum(case.id not in known for case in cases)} of {len(cases)} cases not run or not ended")


def until(stop_at: float, results: IMapIterator[Any]) -> Iterator[Any]:
    """The results that come in time; what is still being made then is ended with its pool."""
    with contextlib.suppress(StopIteration, multiprocessing.TimeoutError):
        while True:
            yield results.next(timeout=max(stop_at - time.time(), 0.0))


def keep(row: dict[str, Any], args: argparse.Namespace, known: dict[str, dict[str, Any]]) -> None:
    """Adds the row to the file, which says of each row what it was made with."""
    made = {"shakedown": __version__, "planner": planner(), "seed": args.seed}
    made["python"] = sys.version.split()[0]
    known[row["id"]] = {**row, **made, "cores": os.cpu_count(), "jobs": args.jobs}
    with args.rows.open("a") as rows:
        rows.write(json.dumps(known[row["id"]]) + "\n")


if __name__ == "__main__":
    main()
