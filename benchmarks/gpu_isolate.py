"""Real engines on GPUs with a planted cause each: is it named, proven, and what does a launch cost?

    python benchmarks/gpu_isolate.py --model FOLDER --head FOLDER [--sglang FILE] [--vllm FILE]
        [--seconds S] [--only ID,ID] [--out FILE] [--keep FOLDER] [--cpu]

All searches run side by side, each as a user would start it: `shakedown isolate --json -- …`, SGLang and
vLLM with EAGLE-3 (--head) on one GPU, SGLang with tensor parallel 2 on two. Each server is shown a slice of
its GPU. Rows go to results/gpu_isolate.json (or --out) as they come; a search that is out of time is a row,
too. --keep: where each search's report, talk and logs are put. `--cpu` tries the harness with CPU engines.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fault_rows import filled
from gpu_isolate_rows import CPU_ROWS, ROWS, VARIABLES, Row
from gpu_plants import write_host
from isolate_engines import judged, versions
from real_faults import OWN_VARIABLES

from shakedown import __version__

RESULTS = Path(__file__).parent / "results" / "gpu_isolate.json"
NOT_OURS = (*OWN_VARIABLES, "CUDA_VISIBLE", "TRITON_", "FLASHINFER_", "PYTORCH_", "NVSHMEM_", "OMP_")
FIRST_PORT, PORTS_EACH = 11000, 950  # SGLang takes others up to 1000 above its own, and one 10,000 above
READING_S = 15.0  # before its first launch a search reads its engine's flags: outside of its own deadline
ENDING_S = 45.0  # for what runs when the time is over: its launch is ended gently, its report written
KEPT, KEPT_BYTES = ("err", "out.json", "report.md", "launch.log"), 400_000
COLUMNS = "{:14} {:26} {:8} {:6} {:7} {:>8} {:>6} {:>8}  {}"


class Search:
    """One row being searched: a folder, a port and a GPU of its own."""

    def __init__(self, row: Row, number: int, work: Path, given: argparse.Namespace) -> None:
        self.row, self.given, self.folder = row, given, work / row.id
        self.process: subprocess.Popen[bytes] | None = None
        self.ended = threading.Event()
        self.folder.mkdir()
        model, head = given.model, given.head
        if row.model is not None:
            model = row.model(model, self.folder / "model")
        if row.head is not None:
            head = row.head(head, self.folder / "head")
        write_host(self.folder / "host", row.plant)
        self.names = {
            "python": str(given.vllm if row.engine.startswith("vllm") else given.sglang),
            "model": str(model),
            "head": str(head),
            "port": str(FIRST_PORT + PORTS_EACH * number),
            "caches": str(work / "caches"),
        }

    def words(self, left_s: float) -> list[str]:
        ours = [sys.executable, "-m", "shakedown", "isolate", "--json", "--executor", "local"]
        ours += [
            "--ledger",
            str(self.folder / "ledger.db"),
            "--deadline",
            f"{max(1.0, left_s - READING_S):.0f}s",
        ]
        path = ["env", f"PYTHONPATH={self.folder / 'host'}"]
        return [*ours, "--", *path, *(filled(word, self.names) for word in self.row.command)]

    def env(self) -> dict[str, str]:
        """Caches that all searches share, empty when they begin: compiled once, and no factor of any."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
        python, caches = Path(self.names["python"]), self.names["caches"]
        env |= {"HF_HUB_OFFLINE": "1", "PATH": f"{python.parent}:{os.environ['PATH']}"}
        env |= {"TRITON_CACHE_DIR": f"{caches}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor"}
        env |= {} if self.given.cpu else {"CUDA_VISIBLE_DEVICES": self.row.gpus}
        chosen = {**VARIABLES[self.row.engine], **self.row.env}
        return env | {name: filled(value, self.names) for name, value in chosen.items()}

    def run(self, until_s: float) -> dict[str, Any]:
        began_s = time.monotonic()
        with (self.folder / "out.json").open("w") as out, (self.folder / "err").open("w") as err:
            process = subprocess.Popen(
                self.words(until_s - began_s),
                env=self.env(),
                cwd=self.folder,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt of this program is passed on once
            )
            self.process = process
            for order in (None, signal.SIGINT, signal.SIGKILL):
                if order is not None:
                    process.send_signal(order)
                try:
                    process.wait(max(1.0, until_s - time.monotonic()) + ENDING_S if not order else ENDING_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
        return self.told(time.monotonic() - began_s, process.returncode)

    def told(self, seconds: float, code: int | None) -> dict[str, Any]:
        """The row: what the search said, and each launch by itself. A cut one has its launches, too."""
        said = (self.folder / "err").read_text(errors="replace")
        try:
            document = json.loads((self.folder / "out.json").read_text())
        except ValueError:
            document = {"verdict": None, "error": said[-1500:]}
        found = judged(self.row.planted, {"document": document, "seconds": seconds, "code": code})
        if self.row.rung:
            named = [cause["rung"] for cause in document.get("causes") or ()]
            found |= {"named": named, "exact": named == [self.row.rung], "planted": [self.row.rung]}
            found["proven"] = found["exact"] and document.get("ended") == "proven"
        begun = len(re.findall(r"^launch \d+: ", said, re.MULTILINE))
        ended = re.findall(r"^  (.{0,200})  \((\S+), (\d+) s\)$", said, re.MULTILINE)
        purposes = re.findall(r"^launch \d+: ([\w ,-]+?): ", said, re.MULTILINE)
        found["launch_s"] = [
            {"purpose": purpose, "seconds": int(spent), "showed": text[:160]}
            for purpose, (text, _, spent) in zip(purposes, ended, strict=False)
        ]
        found["stand_ins"] = sum("stand-in" in purpose for purpose in purposes)
        found["cut"] = f"cut after {begun} launches" if document.get("ended") in (None, "budget") else ""
        return {**found, "gpus": self.row.gpus, "ended": document.get("ended"), "note": document.get("note")}


def show(rows: Mapping[str, dict[str, Any]]) -> None:
    print(COLUMNS.format("row", "planted", "verdict", "exact", "proven", "launches", "s", "s each", "named"))
    for name, row in rows.items():
        spent = [each["seconds"] for each in row["launch_s"]]
        each = f"{min(spent)}-{max(spent)}" if spent else ""
        yes = ("yes" if row["exact"] else "NO", "yes" if row["proven"] else "NO")
        named = row["cut"] or ", ".join(row["named"]) or row["cause"].replace("\n", " ")
        count = row["launches"] or len(spent)
        words = (name, row["kind"], row["verdict"] or "none", *yes, count, round(row["seconds"]), each, named)
        print(COLUMNS.format(*words)[:200])
        if row["named"] and row["cut"]:
            print(f"{'':15}{', '.join(row['named'])}"[:200])


def gpu_count() -> int:
    try:
        done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(done.stdout.splitlines()) if done.returncode == 0 else 0


def chosen(given: argparse.Namespace) -> list[Row]:
    """The rows that this host can run, those of one GPU moved to GPU 0 where there is no other."""
    wanted = given.only.split(",") if given.only else None
    rows = [row for row in (CPU_ROWS if given.cpu else ROWS) if wanted is None or row.id in wanted]
    if given.cpu:
        return rows
    count = gpu_count()
    here = {"sglang": given.sglang.exists(), "vllm": given.vllm.exists()}
    left = [row for row in rows if row.ranks <= count and here[row.engine]]
    for row in rows:
        if row not in left:
            print(f"{row.id}: left out, it needs {row.ranks} GPUs and {row.engine}", file=sys.stderr)
    return [replace(row, gpus="0") if row.ranks == 1 and count == 1 else row for row in left]


def prepared(rows: list[Row], work: Path, given: argparse.Namespace) -> Iterator[Search]:
    """The searches whose drafters and models can be made: one that cannot takes no other with it."""
    for number, row in enumerate(rows):
        try:
            yield Search(row, number, work, given)
        except (OSError, ValueError, LookupError) as problem:
            print(f"{row.id}: left out, it cannot be made: {problem!r}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--head", type=Path, required=True, help="an EAGLE-3 drafter of that model")
    parser.add_argument("--sglang", type=Path, default=Path(sys.executable), help="a Python that has SGLang")
    parser.add_argument("--vllm", type=Path, default=Path(sys.executable), help="a Python that has vLLM")
    parser.add_argument("--seconds", type=float, default=480.0, help="for all searches together")
    parser.add_argument("--only", metavar="ID[,ID]")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    if given.head is None or not (given.head / "config.json").is_file():
        parser.error(f"--head {given.head} is no folder with a drafter")
    for order in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs, and theirs, ignore the first
        signal.signal(order, signal.default_int_handler)
    until_s, lock = time.monotonic() + given.seconds, threading.Lock()
    rows = chosen(given)
    about = {"sglang": versions(given.sglang), "vllm": versions(given.vllm)}
    found: dict[str, Any] = {}

    def keep(search: Search) -> None:
        try:
            tell(search, search.run(until_s))
        except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError) as problem:
            print(f"{search.row.id}: the benchmark failed: {problem!r}", file=sys.stderr, flush=True)
        finally:
            search.ended.set()

    def tell(search: Search, row: dict[str, Any]) -> None:
        with lock:
            found[search.row.id] = row
            print(json.dumps({search.row.id: row}), file=sys.stderr, flush=True)
            if not given.cpu:
                write(given.out, found, about)
            if given.keep:
                keep_files(search.folder, given.keep / search.row.id)

    with tempfile.TemporaryDirectory(prefix="gpu-isolate-", ignore_cleanup_errors=True) as work:
        searches = list(prepared(rows, Path(work), given))
        threads = [threading.Thread(target=keep, args=(search,)) for search in searches]
        for thread in threads:
            thread.start()
        try:
            wait_for(searches)
        except KeyboardInterrupt:  # each search ends what it started, and is a row all the same
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` says it twice
            for search in searches:
                if search.process is not None and search.process.poll() is None:
                    search.process.send_signal(signal.SIGINT)
            wait_for(searches)
    show(found)


def wait_for(searches: list[Search]) -> None:
    """By their own word: a thread whose `join` was interrupted once passes for ended ever after."""
    for search in searches:
        while not search.ended.wait(0.5):
            pass


def keep_files(folder: Path, to: Path) -> None:
    """What tells how a search went; long logs by their last part."""
    to.mkdir(parents=True, exist_ok=True)
    for file in folder.rglob("*"):
        if file.name in KEPT and file.is_file() and not file.is_symlink():
            name = "-".join(file.relative_to(folder).parts)
            (to / name).write_bytes(file.read_bytes()[-KEPT_BYTES:])


def write(out: Path, found: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    known = json.loads(out.read_text())["rows"] if out.is_file() else {}
    merged = {row.id: {**known, **found}[row.id] for row in ROWS if row.id in {**known, **found}}
    head = {
        "shakedown": __version__,
        "engines": about,
        "cores": os.cpu_count(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    out.write_text(json.dumps({**head, "rows": merged}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
