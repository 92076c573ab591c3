"""Tier 3 of the isolation benchmark: real engines on a CPU, one planted cause a launch.

    python benchmarks/isolate_engines.py [--only ID,ID] [--again] [--list] [--lock FILE]

Each row of `engine_causes.py` is isolated as a user would, `shakedown isolate --json -- …`, one at a time.
Right means: exactly the planted factors are blamed, the whole certificate holds, and nothing else is proven.
What was measured goes to `results/isolate_engines.json` row by row; rows that are there are not run again
unless --again says so. --lock: a file that others lock too, who start engines on this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine_causes import ROWS, VARIABLES, Planted, command_of, matches
from fault_rows import filled
from real_faults import OWN_VARIABLES, VERSIONS_SCRIPT

from shakedown import __version__
from shakedown.host.reach import free_port
from shakedown.provision import SGLANG, VLLM, prepare_engine, prepare_model

RESULTS = Path(__file__).parent / "results" / "isolate_engines.json"
GIVE_UP_S = 1800
COLUMNS = "{:20} {:24} {:8} {:6} {:6} {:9} {:>8} {:>7}  {}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def locked(path: str | None) -> Iterator[None]:
    if path is None:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def isolate(row: Planted, python: Path, model: Path, work: Path) -> dict[str, Any]:
    """What `shakedown isolate` said of one row, its seconds and its exit code."""
    model = row.make(work, model) if row.make else model
    names = {
        "python": str(python),
        "model": str(model),
        "work": str(work),
        "port": str(free_port()),
        "other_port": str(free_port()),
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)}
    env |= {"HF_HUB_OFFLINE": "1", "PATH": f"{python.parent}:{os.environ['PATH']}"}
    env |= {name: filled(value, names) for name, value in {**VARIABLES[row.engine], **row.env}.items()}
    ours = [sys.executable, "-m", "shakedown", "isolate", "--json", "--ledger", str(work / "ledger.db")]
    command = [filled(word, names) for word in command_of(row)]
    began_s = time.monotonic()
    done = subprocess.run(
        [*ours, *row.options, "--", *command],
        env=env,
        cwd=work,
        capture_output=True,
        text=True,
        timeout=GIVE_UP_S,
        stdin=subprocess.DEVNULL,
    )
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = {"verdict": None, "error": done.stderr[-2000:]}
    return {"document": document, "seconds": time.monotonic() - began_s, "code": done.returncode}


def judged(row: Planted, said: dict[str, Any]) -> dict[str, Any]:
    document = said["document"]
    causes = document.get("causes") or []
    named = tuple(factor["name"] for cause in causes for factor in cause["factors"])
    exact, contains, innocents = matches(named, row.truth)
    checks = {name: check["value"] for name, check in (document.get("certificate") or {}).items()}
    proven = said["code"] == 0 and bool(causes) and all(checks.values())
    trials = document.get("trials") or []
    return {
        "kind": row.kind,
        "planted": list(row.truth),
        "named": list(named),
        "verdict": document.get("verdict"),
        "phase": (document.get("failing") or {}).get("phase"),
        "cause": (document.get("failing") or {}).get("cause", document.get("error", ""))[:300],
        "exact": exact,
        "contains": contains,
        "proven": proven,
        "certificate": checks,
        "innocent_proven": list(innocents) if proven else [],
        "by_value": causes[0].get("value_note", "") if causes else "",
        "changes": causes[0].get("changes", []) if causes else [],
        "launches": document.get("launches"),
        "ended_early": sum(trial.get("passed") is not None for trial in trials),
        "factors": len(document.get("cleared", [])) + len(document.get("not_cleared", [])) + len(named),
        "seconds": round(said["seconds"], 1),
        "exit_code": said["code"],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def versions(python: Path) -> dict[str, str]:
    done = subprocess.run([str(python), "-c", VERSIONS_SCRIPT], capture_output=True, text=True)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def read_results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"rows": {}}


def show(rows: dict[str, Any]) -> None:
    print(
        COLUMNS.format("row", "planted", "verdict", "exact", "proven", "innocent", "launches", "s", "named")
    )
    for name, row in rows.items():
        innocent = ", ".join(row["innocent_proven"]) or "none"
        line = COLUMNS.format(
            *(name, row["kind"], row["verdict"] or "none", _yes(row["exact"]), _yes(row["proven"])),
            *(innocent, row["launches"] or 0, round(row["seconds"]), ", ".join(row["named"]) or row["cause"]),
        )
        print(line[:220])
    count = len(rows)
    exact, proven = (sum(row[key] for row in rows.values()) for key in ("exact", "proven"))
    blamed = sum(bool(row["innocent_proven"]) for row in rows.values())
    launches = sum(row["launches"] or 0 for row in rows.values())
    print(
        f"{count} launches: {exact} exactly right, {proven} proven with the whole certificate, "
        f"{blamed} with an innocent proven; {launches / max(count, 1):.1f} launches each"
    )


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--lock")
    args = parser.parse_args()
    wanted = args.only.split(",") if args.only else [row.id for row in ROWS]
    results = read_results()
    if not args.list:
        pythons = {"vllm": prepare_engine(VLLM, say), "sglang": prepare_engine(SGLANG, say)}
        model = prepare_model(pythons["vllm"], say)
        for row in ROWS:
            if row.id not in wanted or (row.id in results["rows"] and not args.again):
                continue
            with locked(args.lock), tempfile.TemporaryDirectory(prefix="isolate-") as work:
                say(f"{row.id}: {row.kind}")
                said = isolate(row, pythons[row.engine], model, Path(work))
            results = read_results()
            results["rows"][row.id] = judged(row, said)
            order = [it.id for it in ROWS]
            results = {
                "shakedown": __version__,
                "engines": {name: versions(python) for name, python in pythons.items()},
                "python": platform.python_version(),
                "cores": os.cpu_count(),
                "rows": dict(sorted(results["rows"].items(), key=lambda item: order.index(item[0]))),
            }
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            say(json.dumps(results["rows"][row.id]))
    show(results["rows"])


if __name__ == "__main__":
    main()
