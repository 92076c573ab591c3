"""How a drafter grows with data and recipe: tokens a round on questions it has not seen, case by case.

    python benchmarks/drafter_growth.py --target M --samples FILE --questions FILE [--only NAME,NAME]
        [--states FOLDER] [--at-once 4] [--gpu 0] [--work FOLDER] [--seconds S] [--out FILE]

--samples and --questions are what `draft synth` made: in a `draft build`, below work/synth-*. --states are
those of all samples, where `draft extract` has been there already: in a `draft build`, work/extract-*.
Each case takes all samples, or the first so many, and goes through `draft extract`, `train`, `export` and
`evaluate` as anybody calls them; a row says tokens a round with its interval, also on the first 128 tokens of
each answer, how often each position was right, and the seconds of each stage (with so many cases at once on
the machine). Rows are written one by one; that of a case that the deadline cut holds its last look at
held-out text.
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
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from shakedown.drafter.samples import Sample, read_samples, write_sample

RESULTS = Path(__file__).parent / "results" / "drafter_growth.json"
COLUMNS = "{:34} {:>8} {:>10} {:>22} {:>12} {:>20} {:>8}"
BEGINNING = 128  # tokens of an answer: what servers are usually asked for when acceptance is measured
OPTIONS = ("steps", "decay", "teacher_temperature", "epochs", "learning_rate", "pack_rows", "intermediate")
OPTIONS += ("draft_vocab", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`samples` None: all there are. The recipe's numbers as `draft train` takes them."""

    name: str
    samples: int | None = None
    epochs: int = 5
    learning_rate: float = 1e-3
    pack_rows: int = 4096
    intermediate: int = 4096
    steps: int = 4
    decay: float = 0.8
    teacher_temperature: float = 0.25
    draft_vocab: int = 32_000
    seed: int = 0

    def options(self) -> list[str]:
        """Looks and checkpoints at the end of each epoch only."""
        words = [
            word for name in OPTIONS for word in (f"--{name.replace('_', '-')}", str(getattr(self, name)))
        ]
        return [*words, "--evaluate-steps", "100000", "--checkpoint-steps", "100000"]


REFERENCE = Case(name="reference")
WEIGHED = replace(REFERENCE, name="as the engine weighs them", steps=3, decay=0.5)
CASES = (
    replace(REFERENCE, name="3000 samples", samples=3_000),
    replace(REFERENCE, name="the teacher at 0.5", teacher_temperature=0.5),
    replace(REFERENCE, name="10 epochs", epochs=10),
    replace(REFERENCE, name="1000 samples", samples=1_000),
    WEIGHED,
    replace(REFERENCE, name="the teacher at 1", teacher_temperature=1.0),
    replace(REFERENCE, name="larger batches", pack_rows=8_192, learning_rate=1.4e-3),
    replace(REFERENCE, name="all tokens can be drafted", draft_vocab=49_152),
    replace(REFERENCE, name="another seed", seed=1),
    REFERENCE,
)


class Study:
    """Runs the cases; one extraction for all that take the same samples."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.until_s = given, time.monotonic() + given.seconds
        self.lock = threading.Lock()
        self.extracting: dict[int | None, threading.Lock] = {}
        self.extracted: dict[int | None, Path] = {None: given.states} if given.states else {}
        given.work.mkdir(parents=True, exist_ok=True)
        self.beginnings: Path = given.work / f"questions-{BEGINNING}.jsonl"
        with self.beginnings.open("wb") as kept:
            for sample in read_samples(given.questions):
                write_sample(kept, cut(sample, BEGINNING))

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
            judged = ["--target", target, "--drafter", folder / "drafter", "--samples"]
            found = self.stage("evaluate", [*judged, self.given.questions], seconds)
            begun = self.stage("evaluate", [*judged, self.beginnings], seconds)
        except RuntimeError as problem:
            cut_short = {"failed": str(problem)[-600:], "held_out": last_look(folder / "trained")}
            return {**asdict(case), **cut_short, "seconds": seconds}
        rest = {"judged_beginnings": begun, "seconds": seconds}
        return {**asdict(case), "trained": trained, "judged": found, **rest}

    def states(self, samples: int | None, seconds: dict[str, float]) -> Path:
        with self.lock:
            mine = self.extracting.setdefault(samples, threading.Lock())
        folder: Path = self.given.work / f"states-{samples or 'all'}"
        with mine:
            if samples in self.extracted:
                return self.extracted[samples]
            some = self.given.work / f"samples-{samples or 'all'}.jsonl"
            with self.given.samples.open() as lines, some.open("w") as kept:
                kept.writelines(islice(lines, samples))
            words = ["--target", self.given.target, "--samples", some, "--out", folder]
            self.stage("extract", words, seconds)
            self.extracted[samples] = folder
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
        seconds[name] = round(seconds.get(name, 0.0) + time.monotonic() - began_s, 1)
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


def cut(sample: Sample, tokens: int) -> Sample:
    """The same, judged on no more than the first `tokens` of each answer."""
    mask = [(start, min(stop, start + tokens)) for start, stop in sample.mask]
    return replace(sample, mask=mask, token_ids=sample.token_ids[: mask[-1][1]])


def last_look(folder: Path) -> dict[str, Any] | None:
    """At held-out text, as training wrote it; a kill may have cut the last line."""
    file = folder / "curves.jsonl"
    whole = file.read_text().split("\n")[:-1] if file.is_file() else []
    looks = [found for found in map(json.loads, whole) if found["event"] == "held_out"]
    return looks[-1] if looks else None


def show(row: dict[str, Any]) -> None:
    if "failed" in row:
        look = row["held_out"]
        reached = f"; step {look['step']}: {look['tokens_per_round']:.2f} held out" if look else ""
        print(f"{row['name']:34} failed: {row['failed'][-200:]}{reached}", flush=True)
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
            f"{row['judged_beginnings']['tokens_per_round']['value']:.2f}",
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
    options.add_argument("--states", type=Path, help="Of all samples, where they are extracted already.")
    options.add_argument("--only", metavar="NAME[,NAME]")
    options.add_argument("--at-once", type=int, default=4)
    options.add_argument("--gpu", default=os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
    options.add_argument("--work", type=Path, default=Path("drafter-growth"))
    options.add_argument("--seconds", type=float, default=1800.0)
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    wanted = given.only.split(",") if given.only else [case.name for case in CASES]
    study = Study(given)
    columns = ("case", "samples", "steps", "tokens a round", f"of first {BEGINNING}", "right by position")
    print(COLUMNS.format(*columns, "train s"))
    with ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(study.keep, [case for case in CASES if case.name in wanted]))


if __name__ == "__main__":
    main()
