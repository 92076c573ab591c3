"""`check`, the base ladder and the price of stand-ins with real engines on a GPU host.

    python benchmarks/gpu_check.py --model FOLDER --head FOLDER [--sglang FILE] [--vllm FILE]
        [--parts check,ladder,costs] [--seconds S] [--out FILE] [--keep FOLDER] [--cpu]

check: `shakedown check --json` of each engine's launch with EAGLE-3, then again with a library on its path
that has code for sm_120 only. ladder: every rung that is a script, as `isolate` runs it, both engines side
by side, over as many ranks as there are GPUs (two at most). costs: launches of SGLang as given and as
stand-ins, side by side, but one of the large model at a time on a GPU. Rows go to results/gpu_check.json
(or --out) as they come; --keep is where logs are put. `--cpu` tries it without a GPU.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from gpu_check_tasks import LARGE_GIB, Task, lanes_of, tasks_of
from gpu_isolate import keep_files
from gpu_plants import hollow_model, planted_library, write_host
from isolate_engines import versions

from shakedown.core import Experiment, Launch, Phase, Purpose
from shakedown.host.local import LocalHost
from shakedown.isolate.factors import factors_of
from shakedown.jobs.oracle import TrialOracle
from shakedown.jobs.reading import read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Progress
from shakedown.jobs.rungs import ladder_of
from shakedown.jobs.searches import new_search
from shakedown.ledger import Kind, Ledger

RESULTS = Path(__file__).parent / "results" / "gpu_check.json"
CHECK_S = 90.0
STARTED: list[subprocess.Popen[str]] = []  # what an interrupt is passed on to
STARTING, OVER = threading.Lock(), threading.Event()  # nothing more is started once it is over


class Talk:
    """To standard error, for the one who waits."""

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def progress(self, progress: Progress) -> None:
        """Each launch's own log has it."""


def check(task: Task, given: argparse.Namespace, work: Path, more: str = "") -> dict[str, Any]:
    """What `shakedown check` said of a launch, and its seconds."""
    words = [sys.executable, "-m", "shakedown", "check", "--json", "--", *task.words(given, more)]
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            words, env=task.env(given, work), cwd=work, capture_output=True, text=True, timeout=CHECK_S
        )
        document = json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired) as problem:
        return {"seconds": round(time.monotonic() - began_s, 1), "error": str(problem)[:300]}
    levels: dict[str, list[str]] = {}
    for found in document["findings"]:
        said = f"{found['rule']}: {found['what']} {found['evidence']}".replace("\n", " ")
        levels.setdefault(found["level"], []).append(said[:300])
    found = {level: levels[level] for level in ("error", "warning", "unknown") if level in levels}
    count = {level: len(said) for level, said in levels.items()}
    return {
        "seconds": round(time.monotonic() - began_s, 1),
        "verdict": document["verdict"],
        "count": count,
        **found,
    }


def oracle_of(
    task: Task, given: argparse.Namespace, work: Path, ledger: Ledger, machine: LocalHost
) -> tuple[TrialOracle, frozenset[str]]:
    """The oracle of a search of this launch, opened as `isolate` opens it, and the names of its factors."""
    folder = work / task.name
    launch = Launch(argv=task.words(given), env=task.env(given, work), cwd=folder)
    request = LaunchRequest(launch=launch, ledger=ledger.path)
    talk = Talk()
    reading = read_request(request, machine, talk, live=True)
    factors = factors_of(reading.command, reading.table)
    search = ledger.new_id(Kind.SEARCH)
    oracle = TrialOracle(ledger, machine, reading, request, factors, search, talk, max_launches=99)
    ledger.open_search(new_search(search, reading, request, factors, 0, "", 60.0))
    return oracle, frozenset(factor.name for factor in factors)


def steps(task: Task, given: argparse.Namespace, work: Path) -> Iterator[dict[str, Any]]:
    """The rungs of a ladder, each in turn, or the one launch of a cost."""
    with Ledger.open(work / task.name / "ledger.db") as ledger, closing(LocalHost()) as machine:
        oracle, everything = oracle_of(task, given, work, ledger, machine)
        if task.kind == "cost":
            experiment = Experiment(
                kept=everything,
                purpose=Purpose.SPLIT,
                reason="its seconds",
                stand_in=task.name.endswith("stand-in"),
            )
            yield timed(task.name, lambda: oracle(experiment))
            return
        for rung in ladder_of(oracle.base, ()).rungs:
            if not rung.same:
                experiment = Experiment(
                    kept=frozenset(), purpose=Purpose.RUNG, reason=rung.title, rung=rung.name
                )
                yield timed(rung.name, lambda: oracle(experiment))  # noqa: B023


def timed(name: str, run: Callable[[], Any]) -> dict[str, Any]:
    began_s = time.monotonic()
    outcome = run()
    found = outcome.judgement
    starts = [span.started_s for span in found.phases if span.phase is Phase.READY]
    return {
        "name": name,
        "passes": found.serves,
        "seconds": round(time.monotonic() - began_s, 1),
        "ready_s": round(starts[0], 1) if starts else None,
        "said": (found.cause or "; ".join(each.text for each in found.evidence[-1:]))[:300],
    }


def follow(
    task: Task, given: argparse.Namespace, work: Path, until_s: float, keep: Callable[..., None]
) -> None:
    """One task in a process of its own, its rows kept as they come; what is out of time is ended."""
    told = [str(Path(__file__).resolve()), "--step", task.name, "--work", str(work)]
    for name in ("model", "head", "sglang", "vllm"):
        told += [f"--{name}", str(vars(given)[name])]
    told += ["--parts", given.parts, *(["--cpu"] if given.cpu else [])]
    err = work / task.name / "err"
    with STARTING:
        if OVER.is_set() or time.monotonic() > until_s:
            keep(task.name, {"name": "all", "seconds": 0, "code": None, "said": ["no time was left for it"]})
            return
        err.parent.mkdir(exist_ok=True)
        with err.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *told],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                stdin=subprocess.DEVNULL,
            )
        STARTED.append(process)
    timer = threading.Timer(max(1.0, until_s - time.monotonic()), process.send_signal, (signal.SIGINT,))
    timer.start()
    began_s = time.monotonic()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            keep(task.name, json.loads(line))
    code = process.wait()
    timer.cancel()
    last = err.read_text().strip().splitlines()[-1:] if code else []
    keep(
        task.name,
        {"name": "all", "seconds": round(time.monotonic() - began_s, 1), "code": code, "said": last},
    )


def run_all(given: argparse.Namespace, work: Path, tasks: list[Task], keep: Callable[..., None]) -> None:
    until_s = time.monotonic() + given.seconds
    planted = ""
    if "check" in given.parts:
        try:
            planted = str(planted_library(work / "planted"))
        except (OSError, subprocess.SubprocessError) as problem:
            keep("check-planted", {"name": "planted", "said": f"nvcc made no library: {problem}"[:300]})

    def look(task: Task) -> None:
        keep(task.name, {"name": "as it is", **check(task, given, work)})
        if planted:
            keep(task.name, {"name": "with an sm_120-only library", **check(task, given, work, planted)})

    def each(does: Callable[[Task], None], lane: list[Task]) -> None:
        for task in lane:
            does(task)

    for part in given.parts.split(","):
        lanes = lanes_of([task for task in tasks if task.kind == part.rstrip("s")])
        does = look if part == "check" else lambda task: follow(task, given, work, until_s, keep)
        threads = [threading.Thread(target=each, args=(does, lane)) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def show(found: Mapping[str, list[dict[str, Any]]]) -> None:
    for name, rows in found.items():
        for row in rows:
            said = row.get("said") or "; ".join(row.get("error", ()))
            marks = {True: "passes", False: "FAILS"}.get(row.get("passes"), row.get("verdict") or "")  # type: ignore[call-overload]
            ready = f"ready {row['ready_s']}" if row.get("ready_s") else ""
            print(
                f"{name:22} {row['name']:28} {marks:14} {row.get('seconds', 0):>7} s  {ready:12} {said}"[:220]
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--head", type=Path, help="an EAGLE-3 drafter of that model")
    parser.add_argument("--sglang", type=Path, default=Path(sys.executable), help="a Python that has SGLang")
    parser.add_argument("--vllm", type=Path, default=Path(sys.executable), help="a Python that has vLLM")
    parser.add_argument("--parts", default="check,ladder,costs")
    parser.add_argument("--seconds", type=float, default=420.0, help="then what still runs is ended")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    for order in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs, and theirs, ignore the first
        signal.signal(order, signal.default_int_handler)
    if given.step:
        task = next(task for task in tasks_of(given, given.work) if task.name == given.step)
        for row in steps(task, given, given.work):
            print(json.dumps(row), flush=True)
        return
    found: dict[str, list[dict[str, Any]]] = {}
    about = {"sglang": versions(given.sglang), "vllm": versions(given.vllm), "cores": os.cpu_count()}
    lock = threading.Lock()

    def keep(name: str, row: dict[str, Any]) -> None:
        with lock:
            found.setdefault(name, []).append(row)
            print(json.dumps({name: row}), file=sys.stderr, flush=True)
            if not given.cpu:
                known = json.loads(given.out.read_text())["rows"] if given.out.is_file() else {}
                text = json.dumps({**about, "rows": {**known, **found}}, indent=1, ensure_ascii=False)
                given.out.write_text(text + "\n")

    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as place:
        work = Path(place)
        write_host(work / "host")
        write_host(work / "host-large", slice_gib=LARGE_GIB)
        if "costs" in given.parts and not given.cpu:
            hollow_model(given.model, work / "large")
        try:
            run_all(given, work, tasks_of(given, work), keep)
        except KeyboardInterrupt:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` says it twice
            with STARTING:
                OVER.set()
            for process in STARTED:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
            for process in STARTED:
                process.wait(60)
        if given.keep:
            keep_files(work, given.keep)
    show(found)


if __name__ == "__main__":
    main()
