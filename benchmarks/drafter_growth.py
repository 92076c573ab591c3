"""How a drafter grows with data and recipe: tokens a round on questions it has not seen, case by case.

    python benchmarks/drafter_growth.py --target M --samples FILE --questions FILE [--only NAME,NAME]
        [--at-once 4] [--gpu 0] [--work FOLDER] [--seconds S] [--out FILE]

--samples and --questions are what `draft synth` made: in a `draft build`, below work/synth-*.
Each case takes the first so many samples and goes through `draft extract`, `train`, `export` and `evaluate`
as anybody calls them; a row says tokens a round with its interval, how often each position was right, and
the seconds of each stage (with so many cases at once on the machine). Rows are written one by one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "drafter_growth.json"
COLUMNS = "{:34} {:>8} {:>10} {:>22} {:>20} {:>8}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`samples` None: all there are. The recipe's numbers as `draft train` takes them."""

    name: str
    samples: int | None = None
    epochs: int = 5
    learning_rate: float = 1e-3
    pack_rows: int = 4096
    intermediate: int | None = 4096
    steps: int = 4

    def options(self) -> list[str]:
        words = ["--epochs", str(self.epochs), "--learning-rate", str(self.learning_rate)]
        words += ["--pack-rows", str(self.pack_rows), "--steps", str(self.steps)]
        words += ["--intermediate", str(self.intermediate)] if self.intermediate else []
        return [*words, "--evaluate-steps", "100000", "--checkpoint-steps", "100000"]


CASES = (
    Case(name="10000 samples", samples=10_000),
    Case(name="seven drafts in a row", samples=10_000, steps=7),
    Case(name="learning rate 2e-3", samples=10_000, learning_rate=2e-3),
    Case(name="twice the epochs, half the steps", samples=10_000, epochs=10, pack_rows=16_384),
    Case(name="twice the epochs and the rows", samples=10_000, epochs=10, pack_rows=8_192),
    Case(name="an MLP as the target's", samples=10_000, intermediate=None),
    Case(name="1000 samples", samples=1_000),
    Case(name="3000 samples", samples=3_000),
    Case(name="all samples"),
)


class Study:
    """Runs the cases; one extraction for all that take the same samples."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.until_s = given, time.monotonic() + given.seconds
        self.lock = threading.Lock()
        self.extracting: dict[int | None, threading.Lock] = {}
        given.work.mkdir(parents=True, exist_ok=True)

    def run(self, case: Case) -> dict[str, Any]:
        seconds: dict[str, float] = {}
        target, folder = (
            str(self.given.target),
            self.given.work / case.name.replace(" ", "-").replace("`", ""),
        )
        try:
            states = self.states(case.samples, seconds)
            trained = self.stage(
                "train",
                ["--target", target, "--states", states, "--out", folder / "trained", *case.options()],
                seconds,
            )
            exported = [
                "--target",
                target,
                "--checkpoint",
                trained["checkpoint"],
                "--out",
                folder / "drafter",
            ]
            self.stage("export", exported, seconds)
            judged = ["--target", target, "--drafter", folder / "drafter", "--samples", self.given.questions]
            found = self.stage("evaluate", judged, seconds)
        except RuntimeError as problem:
            return {**asdict(case), "failed": str(problem)[-600:], "seconds": seconds}
        return {**asdict(case), "trained": trained, "judged": found, "seconds": seconds}

    def states(self, samples: int | None, seconds: dict[str, float]) -> Path:
        with self.lock:
            mine = self.extracting.setdefault(samples, threading.Lock())
        folder: Path = self.given.work / f"states-{samples or 'all'}"
        with mine:
            some = self.given.work / f"samples-{samples or 'all'}.jsonl"
            with self.given.samples.open() as lines, some.open("w") as kept:
                kept.writelines(islice(lines, samples))
            words = ["--target", self.given.target, "--samples", some, "--out", folder]
            self.stage("extract", words, seconds)
        return folder

    def stage(self, name: str, words: Sequence[object], seconds: dict[str, float]) -> dict[str, Any]:
        began_s = time.monotonic()
        argv = [sys.executable, "-m", "shakedown", "draft", name, "--json", *map(str, words)]
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": self.given.gpu}
        left_s = max(1.0, self.until_s - began_s)
        try:
            done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=left_s)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{name} was cut at the deadline of {self.given.seconds:.0f} s") from None
        seconds[name] = round(time.monotonic() - began_s, 1)
        if done.returncode:
            raise RuntimeError(
                f"{name} ended with {done.returncode}: {done.stdout[-300:]} {done.stderr[-300:]}"
            )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def keep(self, case: Case) -> None:
        row = self.run(case)
        with self.lock:
            known = json.loads(self.given.out.read_text()) if self.given.out.is_file() else {}
            known[case.name] = row
            self.given.out.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
        show(row)


def show(row: dict[str, Any]) -> None:
    if "failed" in row:
        print(f"{row['name']:34} failed: {row['failed'][-200:]}", flush=True)
        return
    rounds = row["judged"]["tokens_per_round"]
    told = f"{rounds['value']:.2f} ({rounds['low']:.2f} to {rounds['high']:.2f})"
    right = " ".join(f"{each['conditional']['value']:.2f}" for each in row["judged"]["per_position"])
    print(
        COLUMNS.format(
            row["name"],
            row["samples"] or "all",
            f"{row['trained']['steps']:,}",
            told,
            right,
            round(row["seconds"]["train"]),
        ),
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--target", type=Path, required=True)
    options.add_argument("--samples", type=Path, required=True)
    options.add_argument("--questions", type=Path, required=True)
    options.add_argument("--only", metavar="NAME[,NAME]")
    options.add_argument("--at-once", type=int, default=4)
    options.add_argument("--gpu", default=os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
    options.add_argument("--work", type=Path, default=Path("drafter-growth"))
    options.add_argument("--seconds", type=float, default=1800.0)
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    wanted = given.only.split(",") if given.only else [case.name for case in CASES]
    study = Study(given)
    print(COLUMNS.format("case", "samples", "steps", "tokens a round", "right by position", "train s"))
    with ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(study.keep, [case for case in CASES if case.name in wanted]))


if __name__ == "__main__":
    main()
