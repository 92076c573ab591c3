"""Real SGLang and vLLM on GPUs with planted faults: what Shakedown says of them, and how soon.

    python benchmarks/gpu_servers.py --model FOLDER [--sglang PYTHON] [--vllm PYTHON] [--seconds S]
                                     [--only TEXT,TEXT] [--without TEXT,TEXT] [--list] [--cpu]

All cases (gpu_cases.py) run side by side as on a busy host, those that need compiled kernels once the first
start of their engine is ready: on one GPU those of one rank, on two those of tensor parallel 2 as well.
FOLDER needs config.json and a tokenizer; the weights are made up, and the shape is cut so that two ranks can
share its heads. Rows are written one by one to results/gpu_servers.json (or --out); `--cpu` tries what goes
without a GPU, one case after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from gpu_cases import CASES, SGLANG, VLLM, Case
from gpu_trial import ENDING_S, Trial

from shakedown.host.stacks import find_spy

RESULTS = Path(__file__).parent / "results" / "gpu_servers.json"
FIRST_PORT, PORTS = 20100, 700  # SGLang takes a second port some hundreds further
FIRST_START_S = 300.0
ROW = "{:<48} {:<18} {:<13} {:>7}  {}"


class Book:
    """The rows on disk: a run that is cut keeps those it had."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.Lock()
        self._all = json.loads(file.read_text()) if file.is_file() else {}
        self._all.setdefault("servers", {})

    def write(self, name: str, row: dict[str, Any]) -> None:
        with self._lock:
            self._all["servers"][name] = row
            fresh = self._file.with_suffix(".new")
            fresh.write_text(json.dumps(self._all, indent=1, ensure_ascii=False) + "\n")
            fresh.replace(self._file)


def show(name: str, row: dict[str, Any]) -> None:
    said = f"{row['verdict']}" + (f" ({row['wait']})" if row.get("wait") else "")
    told = f"NOT RIGHT: {row['why_not']}" if row["why_not"] else (row.get("cause") or "")
    print(ROW.format(name, said, str(row.get("phase")), str(row.get("after_fault_s") or ""), told[:110]))
    for text in row.get("evidence", ()):
        if not text.startswith(("process", "progress")):
            print(f"    {text[:160]}")
    sys.stdout.flush()


def chosen(given: argparse.Namespace, gpus: int) -> list[Case]:
    """By name, by engine that was given, and by what this machine has."""
    pythons = {SGLANG: given.sglang, VLLM: given.vllm}
    cases = [case for case in CASES if pythons[case.engine]]
    if given.only:
        cases = [case for case in cases if any(word in case.name for word in given.only.split(","))]
    if given.without:
        cases = [case for case in cases if not any(word in case.name for word in given.without.split(","))]
    if given.cpu:
        return [case for case in cases if case.on_cpu]
    return [case for case in cases if max(case.ranks, case.gpu + 1) <= gpus]


def missing(given: argparse.Namespace) -> str:
    """What would spoil every row, said before anything is started; "" where all is there."""
    if not (given.model / "config.json").is_file():
        return f"{given.model} holds no config.json"
    for python in filter(None, (given.sglang, given.vllm)):
        if not os.access(python, os.X_OK):
            return f"{python} is no interpreter"
    if find_spy() is None:
        return f"{sys.executable} has no py-spy: pip install py-spy"
    return ""


def gpu_count() -> int:
    try:
        done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(done.stdout.splitlines())


def wait_for_kernels(trial: Trial, trials: list[Trial]) -> None:
    """Until the first start of its engine is ready: who waits for a neighbour's compiler is no case here."""
    for other in trials if trial.case.needs_kernels else ():
        if other.case.cold and other.case.engine == trial.case.engine:
            until_s = time.monotonic() + FIRST_START_S
            while not (other.ready.wait(1.0) or trial.stop.is_set()) and time.monotonic() < until_s:
                pass


def run_one(trial: Trial, given: argparse.Namespace, until_s: float, book: Book) -> dict[str, Any]:
    python = given.sglang if trial.case.engine == SGLANG else given.vllm
    try:
        row = trial.run(python, given.model.resolve(), until_s, cpu=given.cpu)
    except (OSError, LookupError, ValueError, TypeError, subprocess.SubprocessError) as problem:
        # One broken case must not take the others' only hour with it.
        row = {"verdict": None, "why_not": f"the benchmark failed: {type(problem).__name__}: {problem}"}
    finally:
        trial.ready.set()
    book.write(trial.case.name, row)
    show(trial.case.name, row)
    return row


def main() -> None:
    given = read_arguments()
    cases = chosen(given, 0 if given.cpu else gpu_count())
    if given.list or not cases:
        for case in cases:
            print(f"{case.name:<48} ranks {case.ranks}, gpu {case.gpu}, within {case.within_s:.0f} s")
        sys.exit(0 if given.list else "no case fits: no engine given, none named so, or too few GPUs")
    if lacking := missing(given):
        sys.exit(f"cannot begin: {lacking}")
    stop = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop.set()

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, interrupt)
    book = Book(given.out)
    rows: dict[str, Any] = {}
    print(ROW.format("case", "said", "phase", "s after", "cause"), flush=True)
    with tempfile.TemporaryDirectory(prefix="shakedown-gpu-", ignore_cleanup_errors=True) as work:
        cold = {case.engine for case in cases if case.cold}
        trials = []
        for number, case in enumerate(cases):
            shares = case.engine in cold and (case.cold or case.needs_kernels)
            caches = Path(work) / f"caches-{case.engine}" if shares else None
            folder = Path(work) / f"{number:02}"
            trials.append(Trial(case, folder, FIRST_PORT + PORTS * number, stop, caches))
        began_s = time.monotonic()

        def keep(trial: Trial) -> None:
            wait_for_kernels(trial, trials)
            until_s = (time.monotonic() if given.cpu else began_s) + given.seconds
            rows[trial.case.name] = run_one(trial, given, until_s, book)

        threads = [threading.Thread(target=keep, args=(trial,)) for trial in trials]
        for thread in threads:
            thread.start()
            if given.cpu:  # two cores bear one server
                thread.join()
        for thread in threads:
            thread.join(timeout=given.seconds + ENDING_S + 120.0)
    print(f"\n{sum(not row['why_not'] for row in rows.values())} of {len(cases)} as they should be:")
    for case in cases:
        row = rows.get(case.name, {"verdict": None, "why_not": "no row"})
        print(f"  {case.name:<48} {row['why_not'] or 'right'}")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sglang", metavar="PYTHON", help="an interpreter that has SGLang")
    parser.add_argument("--vllm", metavar="PYTHON", help="an interpreter that has vLLM")
    parser.add_argument("--seconds", type=float, default=480.0, help="for all; with --cpu for each")
    parser.add_argument("--only", metavar="TEXT[,TEXT]", help="cases whose name holds one of these")
    parser.add_argument("--without", metavar="TEXT[,TEXT]")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
