"""A search on a real local Ray cluster against one here: rounds, wall time, overhead per launch, and whether
the local path got slower.

    python benchmarks/isolate_executor.py [--pairs 10] [--before SRC]

"overhead": one launch of a stand-in server that serves, taken in turn here and as a Ray task with nothing
beside it; the difference of a pair. "search": sixteen flags, of which one fails, or two only together.
`--before` is the src folder of an earlier Shakedown: the same search, here, by turns with that and with this.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from shakedown import __version__
from shakedown.core import Experiment, Purpose
from shakedown.engines import identify
from shakedown.host.local import LocalHost
from shakedown.host.reach import free_port
from shakedown.isolate.factors import factors_of
from shakedown.jobs.fleet import Fleet
from shakedown.jobs.oracle import TrialOracle
from shakedown.jobs.parallel import open_oracle
from shakedown.jobs.reading import read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.ledger import Kind, Ledger

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "isolate_executor.json"
SERVER = HERE.parent / "tests" / "bad_servers" / "stand_in.py"
FLAGS = tuple(f"--option-{number}" for number in range(1, 17))
FAULTS = ("crash:--option-11", "crash:--option-4+--option-13")


class Silent:
    def say(self, text: str) -> None: ...
    def progress(self, progress: object) -> None: ...


def command(port: int) -> tuple[str, ...]:
    return (sys.executable, str(SERVER), "--model", f"bench-{port}", "--port", str(port), *FLAGS)


def overhead(pairs: int, folder: Path) -> dict[str, Any]:
    """Seconds of each launch, asked of either oracle by turns."""
    request = LaunchRequest.here(command(free_port()))
    host, talk = LocalHost(), Silent()
    with Ledger.open(folder / "overhead.db") as ledger:
        reading = read_request(request, host, talk, live=False)
        factors = factors_of(reading.command, reading.table)
        given = (ledger, host, reading, request, factors, ledger.new_id(Kind.SEARCH), talk)
        kept = frozenset(factor.name for factor in factors)
        local = TrialOracle(*given, max_launches=10_000)
        began = time.perf_counter()
        with open_oracle(Fleet(workers=2), *given, max_launches=10_000) as ray:
            opened_s = time.perf_counter() - began
            took: dict[str, list[float]] = {"local": [], "ray": []}
            for turn in range(2 * pairs + 2):  # the first pair warms up, and is not counted
                name, oracle = (("local", local), ("ray", ray))[turn % 2]
                asked = Experiment(kept=kept, purpose=Purpose.REPRODUCE, reason="overhead", repeat=turn)
                began = time.perf_counter()
                assert oracle(asked).judgement.serves
                if turn >= 2:
                    took[name].append(time.perf_counter() - began)
    more = sorted(b - a for a, b in zip(took["local"], took["ray"], strict=True))
    return {
        "pairs": pairs,
        "cluster_opened_s": round(opened_s, 2),
        "local_s": round(median(took["local"]), 3),
        "ray_s": round(median(took["ray"]), 3),
        "overhead_s": round(median(more), 3),
        "overhead_most_s": round(more[-1], 3),
    }


def search(folder: Path, fault: str, *options: str, source: Path | None = None) -> dict[str, Any]:
    """One whole search as a user starts it: cause, launches, rounds, seconds."""
    ledger = folder / f"{time.monotonic_ns()}.db"
    told = {"STAND_IN_FAULT": fault, **({"PYTHONPATH": str(source)} if source else {})}
    argv = [sys.executable, "-m", "shakedown", "isolate", *options, "--ledger", str(ledger), "--json"]
    began = time.perf_counter()
    done = subprocess.run(
        [*argv, "--", *command(free_port())], env={**os.environ, **told}, capture_output=True, text=True
    )
    took_s = time.perf_counter() - began
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(ledger)) as connection:
        rows = connection.execute("SELECT record FROM entry WHERE kind = 'trial'").fetchall()
    beside = [int(dict(json.loads(row[0])["facts"]).get("beside", 0)) for row in rows]
    return {
        "cause": [factor["name"] for factor in found["cause"]["factors"]],
        "launches": found["launches"],
        "rounds": round(sum(1 / (1 + others) for others in beside)),
        "seconds": round(took_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    assert identify(command(1), {}).name
    found: dict[str, Any] = {
        "shakedown": __version__,
        "ray": metadata.version("ray"),
        "python": platform.python_version(),
        "machine": {
            "kind": platform.machine(),
            "cores": os.cpu_count(),
            "used": len(os.sched_getaffinity(0)),
        },
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found["overhead"] = overhead(args.pairs, folder)
        print("overhead ", found["overhead"], flush=True)
        found["searches"] = []
        for fault in FAULTS:
            for options in (
                (),
                ("--executor", "ray", "--workers", "1"),
                ("--executor", "ray", "--workers", "2"),
            ):
                row = {"options": " ".join(options) or "here", **search(folder, fault, *options)}
                found["searches"].append(row)
                print("search   ", row, flush=True)
        if args.before:
            pairs = []
            for turn in range(args.pairs):
                both = {"before": args.before, "now": HERE.parent / "src"}
                order = sorted(both, reverse=bool(turn % 2))
                pairs.append(
                    {each: search(folder, FAULTS[0], source=both[each])["seconds"] for each in order}
                )
                print("local    ", pairs[-1], flush=True)
            more = [pair["now"] - pair["before"] for pair in pairs]
            found["local"] = {
                "pairs": len(pairs),
                "before_s": round(median(pair["before"] for pair in pairs), 2),
                "now_s": round(median(pair["now"] for pair in pairs), 2),
                "more_s": round(median(more), 2),
                "slower": sum(each > 0 for each in more),
            }
            print("local    ", found["local"], flush=True)
    args.results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
