"""What `accept` says of faults planted in a real engine, and of an engine that is right.

    python benchmarks/accept_faults.py [--only NAME…] [--again] [--lock FILE]
    python benchmarks/accept_faults.py --gpu --engine vllm --python FILE --model FOLDER --drafter FOLDER
                                       [--parallel N] [--seconds S]
    python benchmarks/accept_faults.py [--gpu] --table

The engine serves a drafter with one fault of the engine's plants, or with none; its states are written down
and judged as `accept` judges. Right means: the blame, and for states the pattern, are those of the plant; a
healthy engine is blamed for nothing. Without --python vLLM is installed for the CPU, and without --drafter
one is made that has learnt eight answers of the model by heart, which are asked for; a drafter that is given
is asked `accept`'s own questions. Rows (`accept_setups.py`) go to the results one by one, and what is there
is not run again unless --again says so. --parallel: so many at once, on the GPUs in turn; rows that are not
done after --seconds are given up. --lock: a file that others lock, too, who start engines.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accept_setups import SETUPS, Row, Setup
from isolate_engines import locked, say

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from accept_engines import Looked, Loud, asked, look
from overfitted import EIGHT_QUESTIONS, Reference, learn_by_heart

from shakedown import __version__
from shakedown.core import Launch
from shakedown.errors import ShakedownError
from shakedown.host.local import LocalHost
from shakedown.jobs.accept_questions import Question, read_questions
from shakedown.jobs.reading import read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.serving import while_serving
from shakedown.provision import VLLM, prepare_engine, prepare_model

RESULTS = Path(__file__).parent / "results"
BY_HEART_TOKENS, STEPS = 40, 60
QUESTIONS, TOKENS = 24, 128  # with a drafter that was trained
NO_ANSWER = "no answer"
# Both engines may be looked at together, and beside gpu_isolate.py: none is a port of its servers, or one
# 10,000 above, which SGLang takes as well.
FIRST_PORT, PORTS_APART = {"vllm": 21120, "sglang": 23120}, 200
COLUMNS = "{:28} {:14} {:14} {:40} {:>8} {:>8} {:>6}  {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What each row is run with. `by_heart`: the drafter knows the eight questions alone."""

    engine: str
    device: str
    python: Path
    model: Path
    drafter: Path
    by_heart: bool

    @property
    def setup(self) -> Setup:
        return SETUPS[self.engine, self.device]

    @property
    def questions(self) -> tuple[Question, ...]:
        return asked(EIGHT_QUESTIONS) if self.by_heart else read_questions(None)[:QUESTIONS]

    def argv(self) -> list[str]:
        said = ["--engine", self.engine, "--python", str(self.python), "--model", str(self.model)]
        said += ["--gpu"] if self.device == "gpu" else []
        return [*said, "--drafter", str(self.drafter), *(["--by-heart"] if self.by_heart else [])]


class Results:
    """Rows as they come, in one file: for the CPU of one engine, for GPUs with a section for each engine."""

    def __init__(self, engine: str, device: str, out: Path | None) -> None:
        self.engine, self.device = engine, device
        name = "accept_faults_gpu.json" if device == "gpu" else f"accept_faults_{engine}.json"
        self.path = out or RESULTS / name
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self.path.read_text())) if self.path.is_file() else {}

    def rows(self) -> dict[str, Any]:
        found = self.read()
        section = found.get("engines", {}).get(self.engine, {}) if self.device == "gpu" else found
        return dict(section.get("rows", {}))

    def add(self, name: str, told: dict[str, Any], version: str, machine: str) -> None:
        with self._lock:
            known = {**self.rows(), name: told}
            ordered = [row.name for row in SETUPS[self.engine, self.device].rows]
            about = {"shakedown": __version__, "engine": version, "machine": machine}
            section = {**about, "rows": {each: known[each] for each in ordered if each in known}}
            whole = section
            if self.device == "gpu":
                engines = {**self.read().get("engines", {}), self.engine: section}
                whole = {"engines": dict(sorted(engines.items()))}
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(whole, indent=1) + "\n")
            part.rename(self.path)


def told_of(row: Row, given: Given, folder: Path, port: int) -> dict[str, Any]:
    """One row, run in this process."""
    setup = given.setup
    env = dict(setup.env) | ({setup.cache: str(folder / "cache")} if setup.cache else {})
    env |= setup.plant(folder / "plant", row.plant) if row.plant else {}
    began_s = time.monotonic()
    try:
        looked = look(
            [*setup.argv(given.python, given.model, port), *row.argv],
            given.model,
            given.drafter,
            given.questions,
            folder,
            env=env,
            drafts=row.drafts,
            tokens=BY_HEART_TOKENS if given.by_heart else TOKENS,
            serve=while_serving,
        )
        told = judged(row, looked)
    except ShakedownError as problem:
        told = no_answer(row, problem.message)
    return {**told, "seconds": round(time.monotonic() - began_s, 1)}


def no_answer(row: Row, why: str) -> dict[str, Any]:
    nothing = {"patterns": {}, "tokens_per_round": None, "expected": None, "on_its_states": None}
    return {
        "planted": row.plant,
        "blame": NO_ANSWER,
        "outcome": "",
        "why": [why],
        **nothing,
        "right": False,
    }


def judged(row: Row, looked: Looked) -> dict[str, Any]:
    reference, cell, measured = looked.shown.reference, looked.shown.engine_states, looked.shown.measured
    blame, patterns = looked.finding.blame.value, looked.faults
    return {
        "planted": row.plant,
        "blame": blame,
        "outcome": looked.finding.outcome.value,
        "why": looked.finding.why,
        "patterns": patterns,
        "tokens_per_round": round(measured.value, 3) if measured else None,
        "expected": round(reference.expected.value, 3) if reference else None,
        "on_its_states": round(cell.expected.value, 3) if cell else None,
        "right": blame in row.blame and patterns.get(row.stage) in row.pattern,
    }


def in_own_process(row: Row, given: Given, folder: Path, number: int, left_s: float) -> dict[str, Any]:
    """The row by this very program; whatever becomes of it, there is something to write down."""
    shutil.rmtree(folder, ignore_errors=True)  # of a run before, with --keep
    folder.mkdir(parents=True)
    began_s, gpus = time.monotonic(), visible_gpus() if given.device == "gpu" else []
    env = {**os.environ, **({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {})}
    port = FIRST_PORT[given.engine] + PORTS_APART * number
    own = ["--row", row.name, "--work", str(folder), "--port", str(port)]
    log = folder / "log.txt"
    with log.open("w") as output:
        child = subprocess.Popen(
            [sys.executable, __file__, *given.argv(), *own],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env=env,
        )
        try:
            said, _ = child.communicate(timeout=max(left_s, 1))
            return dict(json.loads(said.splitlines()[-1]))
        except subprocess.TimeoutExpired:
            child.terminate()  # what it launched is ended with it
            child.wait()
            why = f"given up after {time.monotonic() - began_s:.0f} s"
        except (ValueError, IndexError):
            why = f"its process ended with {child.returncode}"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = no_answer(row, f"{why}: {lines[-1] if lines else 'it said nothing'}")
    return {**told, "seconds": round(time.monotonic() - began_s, 1)}


def visible_gpus() -> list[str]:
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(each) for each in range(torch.cuda.device_count())]


def run(given: Given, wanted: list[str], options: argparse.Namespace) -> None:
    results = Results(given.engine, given.device, options.out)
    version, machine = version_of(given), machine_words()
    ends_s = time.monotonic() + options.seconds
    known = {name for name, row in results.rows().items() if row["blame"] != NO_ANSWER and not options.again}
    rows = [row for row in given.setup.rows if row.name in wanted and row.name not in known]
    os.environ["HF_HUB_OFFLINE"] = "1"
    if len(rows) > 1:
        read_flags(given)

    def run_row(number: int, row: Row) -> None:
        with locked(options.lock):
            left_s = ends_s - time.monotonic()
            if left_s < 1:
                return
            folder = Path(options.keep or work) / row.name.replace(" ", "-").replace(",", "")
            told = in_own_process(row, given, folder, number, left_s)
        results.add(row.name, told, version, machine)
        say(f"{row.name}: {json.dumps(told)}")

    with tempfile.TemporaryDirectory(prefix="accept-") as work, ThreadPoolExecutor(options.parallel) as pool:
        for done in [pool.submit(run_row, number, row) for number, row in enumerate(rows)]:
            done.result()


def read_flags(given: Given) -> None:
    """Once for all rows, which find the engine's flags kept."""
    argv = tuple(given.setup.argv(given.python, given.model, FIRST_PORT[given.engine]))
    launch = Launch(argv=argv, env=dict(os.environ), cwd=Path.cwd())
    read_request(LaunchRequest(launch=launch), LocalHost(), Loud(), live=True)


def version_of(given: Given) -> str:
    """Of the package in the engine's own interpreter: read from its metadata, which takes no import."""
    code = (
        "from importlib import metadata as m; import sys\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, m.version(name)); break\n"
        "    except m.PackageNotFoundError: pass"
    )
    names = [given.engine, f"{given.engine}-cpu"]
    done = subprocess.run([given.python, "-c", code, *names], capture_output=True, text=True, check=False)
    return done.stdout.strip().replace(" ", "-") or given.engine


def machine_words() -> str:
    import torch

    count = torch.cuda.device_count()
    cores = f"{os.cpu_count()} cores, {platform.system()}"
    return f"{count} x {torch.cuda.get_device_name(0)}, {cores}" if count else cores


def show(rows: dict[str, Any]) -> None:
    head = ("engine", "blame", "outcome", "states", "accepts", "expected", "s", "")
    print(COLUMNS.format(*head))
    for name, row in rows.items():
        states = ", ".join(f"{stage} {fault}" for stage, fault in row["patterns"].items())
        print(
            COLUMNS.format(
                *(name, row["blame"], row["outcome"][:14], states, row["tokens_per_round"] or "-"),
                *(row["expected"] or "-", round(row["seconds"]), "" if row["right"] else "MISSED"),
            )
        )
    healthy = {name: row for name, row in rows.items() if not row["planted"]}
    blamed = [name for name, row in healthy.items() if row["blame"] not in ("none", NO_ANSWER)]
    print(f"{sum(row['right'] for row in rows.values())} of {len(rows)} right; healthy and blamed: {blamed}")


def given_of(options: argparse.Namespace, work: Path) -> Given:
    """What was said, and the rest prepared."""
    python = options.python or prepare_engine(VLLM, say)
    model = options.model or prepare_model(python, say)
    drafter = options.drafter
    if drafter is None:
        drafter = work / "drafter"
        reference = Reference(model)
        learnt = learn_by_heart(
            reference, drafter, questions=EIGHT_QUESTIONS, tokens=BY_HEART_TOKENS, steps=STEPS
        )
        say(f"the drafter has learnt: hits {learnt.hits}")
    return Given(
        engine=options.engine,
        device="gpu" if options.gpu else "cpu",
        python=python,
        model=model,
        drafter=drafter,
        by_heart=options.by_heart or options.drafter is None,
    )


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", choices=sorted({engine for engine, _ in SETUPS}), default="vllm")
    parser.add_argument("--gpu", action="store_true")
    for name in ("--python", "--model", "--drafter", "--out", "--keep"):
        parser.add_argument(name, type=lambda text: Path(text).absolute())
    parser.add_argument("--by-heart", action="store_true", help="the drafter is one of this program's own")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=86400.0)
    parser.add_argument("--lock")
    parser.add_argument("--table", action="store_true")
    for name in ("--row", "--work", "--port"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.engine, "gpu" if options.gpu else "cpu") not in SETUPS:
        parser.error(f"there are no rows of {options.engine} {'with' if options.gpu else 'without'} --gpu")
    for needed in ("python", "model"):
        if (options.gpu or options.engine != "vllm") and not options.table and not getattr(options, needed):
            parser.error(f"say --{needed}: only vLLM for the CPU is prepared by itself")
    return options


def main() -> None:
    options = options_of()
    device = "gpu" if options.gpu else "cpu"
    names = {row.name: row for row in SETUPS[options.engine, device].rows}
    if unknown := set(options.only or ()) - set(names):
        sys.exit(f"no such row: {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    with tempfile.TemporaryDirectory(prefix="accept-faults-") as work:
        if options.row:
            given = given_of(options, Path(work))
            print(json.dumps(told_of(names[options.row], given, Path(options.work), int(options.port))))
            return
        if not options.table:
            run(given_of(options, Path(work)), options.only or list(names), options)
    show(Results(options.engine, device, options.out).rows())


if __name__ == "__main__":
    main()
