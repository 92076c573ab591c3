"""Is a slow start ever called hung, and how soon is a hung one? Beside fixed clocks and the log's silence.

    python benchmarks/hangs.py [--only ID,ID] [--limit BATCHES] [--again] [--list] [--table]
                               [--lock FILE] [--traces FOLDER]

Real servers are started as `shakedown run` starts them, healthy but made hard, or hung; small programs hang
exactly. A row goes to `results/hangs.json` after every batch, and rows of earlier calls stay: a run that was
cut goes on where it stopped. `--lock` is held while real engines run, for some minutes at a time, so that
others get a turn.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hang_bench import Bench
from hang_starts import UNKNOWN_BUSY, WATCHED, all_starts, chosen
from hang_tables import tables

from shakedown import __version__
from shakedown.errors import ShakedownError

RESULTS = Path(__file__).parent / "results" / "hangs.json"
TURN_S = 4 * 60.0  # the batch that is running then may take two minutes more
NOT_CALLED = {UNKNOWN_BUSY, *WATCHED}  # by design
ROW = "{:<38} {:<18} {:>6} {:>7}  {}"


def kept() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text())) if RESULTS.is_file() else {}


def keep(rows: Mapping[str, Any], versions: Mapping[str, Any]) -> None:
    """Writes the new rows among those of earlier calls, and of one that runs beside this."""
    RESULTS.parent.mkdir(exist_ok=True)
    folder = os.open(RESULTS.parent, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    old = kept()
    order = {start.id: at for at, start in enumerate(all_starts())}
    found = {**old.get("starts", {}), **rows}
    whole = {
        "shakedown": __version__,
        "engines": {**old.get("engines", {}), **versions},
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "starts": {id_: found[id_] for id_ in sorted(found, key=lambda id_: order.get(id_, len(order)))},
    }
    RESULTS.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    os.close(folder)


def show(id_: str, row: Mapping[str, Any]) -> None:
    if why := row.get("not_made"):
        print(ROW.format(id_, "not made here", "", "", why), flush=True)
        return
    said = row["verdict"] + (f"({row['wait']})" if row["wait"] else "")
    late = f"{row['latency_s']}" if row.get("latency_s") is not None else ""
    wrong = (row["verdict"] == "hung") != row["hung"] and row["population"] not in NOT_CALLED
    remark = f"BROKE THE RULE: {row['cause']}" if wrong else ""
    print(ROW.format(id_, said, row["said_s"], late, remark), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", metavar="ID[,ID]", help="starts whose ids begin like that")
    parser.add_argument("--limit", type=int, metavar="BATCHES", help="no more than that many batches")
    parser.add_argument("--again", action="store_true", help="also those that have a row")
    parser.add_argument("--list", action="store_true", help="show all starts; launch nothing")
    parser.add_argument("--table", action="store_true", help="show what was measured; launch nothing")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="held while real engines run")
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="keep what the watch was given")
    given = parser.parse_args()
    if given.list:
        for start in all_starts():
            print(f"{start.id:<38} {start.engine:<13} {start.batch:<34} {', '.join(start.setups)}")
        return
    if not given.table:
        run(given)
    print(tables(kept().get("starts", {})))


class Turn:
    """A lock that many want: taken when it is needed, let go after some minutes."""

    def __init__(self, lock: Path | None) -> None:
        self._lock = lock
        self._file: int | None = None
        self._since_s = 0.0

    def take(self) -> None:
        if self._lock is None or (self._file is not None and time.monotonic() - self._since_s < TURN_S):
            return
        self.give()
        self._file = os.open(self._lock, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._since_s = time.monotonic()

    def give(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
            time.sleep(1)  # or who waits would come too late again


def run(given: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shakedown-hangs-")))
        traces = given.traces or work / "traces"
        traces.mkdir(parents=True, exist_ok=True)
        bench, turn = Bench(work, traces), Turn(given.lock)
        known = kept().get("starts", {})
        print(ROW.format("start", "said", "s", "latency", ""), flush=True)
        try:
            made = {id_ for id_, row in known.items() if "not_made" not in row}
            for batch in chosen(given.only, made, given.limit, given.again):
                turn.take() if any(start.real for start in batch) else turn.give()
                rows = bench.run(batch, known)
                known |= rows
                keep(rows, {start.engine: bench.versions(start.engine) for start in batch})
                for id_, row in rows.items():
                    show(id_, row)
        except ShakedownError as problem:
            raise SystemExit("\n  hint: ".join((problem.message, *problem.hints))) from None
    print()


if __name__ == "__main__":
    main()
