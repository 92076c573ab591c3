"""What `accept` says of faults planted in a real vLLM, and of a vLLM that is right.

    python benchmarks/accept_faults.py [--only NAME…] [--again] [--lock FILE]
    python benchmarks/accept_faults.py --table

A drafter learns eight answers of SmolLM2-135M by heart. vLLM serves it on the CPU with one fault of
`tests/bad_servers/vllm_plants.py`, or with none, asked the same questions; its states are written down and
judged as `accept` judges. Right means: the blame, and for states the pattern, are those of the plant; a
healthy engine is blamed for nothing. Rows go to results/accept_faults_vllm.json one by one, and what is
there is not run again unless --again says so. --lock: a file that others lock, too, who start engines.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from accept_engines import Looked, look, vllm_argv
from isolate_engines import locked, say
from overfitted import EIGHT_QUESTIONS, Reference, learn_by_heart

from shakedown import __version__
from shakedown.errors import ShakedownError
from shakedown.host.reach import free_port
from shakedown.provision import VLLM, prepare_engine, prepare_model

RESULTS = Path(__file__).parent / "results" / "accept_faults_vllm.json"
TOKENS, STEPS = 40, 60
ANY = frozenset({"same", "undecided"})
COLUMNS = "{:24} {:14} {:14} {:34} {:>8} {:>8} {:>6}  {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`blame`: what may be said; `pattern`: what the states of verification may look like."""

    name: str
    blame: frozenset[str]
    pattern: frozenset[str] = ANY
    plant: str = ""
    drafts: int = 3
    argv: tuple[str, ...] = ()


def healthy(name: str, *argv: str, drafts: int = 3) -> Row:
    return Row(name=f"healthy, {name}", blame=frozenset({"none"}), argv=argv, drafts=drafts)


def captured(plant: str, *patterns: str) -> Row:
    return Row(name=plant, plant=plant, blame=frozenset({"capture"}), pattern=frozenset(patterns))


def drafted(plant: str) -> Row:
    return Row(name=plant, plant=plant, blame=frozenset({"drafter_path"}))


ROWS = (
    healthy("3 drafts"),
    healthy("1 draft", drafts=1),
    healthy("5 drafts", drafts=5),
    healthy("bfloat16", "--dtype", "bfloat16"),
    # No prefill in chunks: with a drafter it kills this vLLM on a CPU ("CPU Generator does not use offset").
    healthy("no prefix cache", "--no-enable-prefix-caching"),
    captured("ids+1", "layer_shift"),
    captured("ids-1", "layer_shift"),
    captured("residual", "residual_missing"),
    captured("norm", "final_norm_applied"),
    captured("permuted", "permuted_slots"),
    captured("late", "stale", "token_shift"),
    drafted("d2t"),
    drafted("rope"),
    drafted("embedding"),
)


def told_of(row: Row, argv: list[str], model: Path, drafter: Path, folder: Path) -> dict[str, Any]:
    try:
        looked = look(
            argv,
            model,
            drafter,
            EIGHT_QUESTIONS,
            folder,
            plant=row.plant,
            drafts=row.drafts,
            tokens=TOKENS,
        )
    except ShakedownError as problem:
        nothing = {"patterns": {}, "tokens_per_round": None, "expected": None, "on_its_states": None}
        told = {"planted": row.plant, "blame": "no answer", "outcome": "", "why": [str(problem)]}
        return {**told, **nothing, "right": False}
    return judged(row, looked)


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
        "right": blame in row.blame and patterns.get("verification") in row.pattern,
    }


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
    blamed = [name for name, row in rows.items() if not row["planted"] and row["blame"] not in ("none",)]
    print(f"{sum(row['right'] for row in rows.values())} of {len(rows)} right; healthy and blamed: {blamed}")


def read_rows() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text())["rows"]) if RESULTS.is_file() else {}


def run(wanted: list[str], *, again: bool, lock: str | None) -> None:
    python = prepare_engine(VLLM, say)
    model = prepare_model(python, say)
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with tempfile.TemporaryDirectory(prefix="accept-") as work:
        drafter = Path(work) / "drafter"
        learnt = learn_by_heart(
            Reference(model), drafter, questions=EIGHT_QUESTIONS, tokens=TOKENS, steps=STEPS
        )
        say(f"the drafter has learnt: hits {learnt.hits}")
        for row in ROWS:
            if row.name not in wanted or (row.name in read_rows() and not again):
                continue
            folder = Path(work) / row.name.replace(" ", "-")
            folder.mkdir()
            with locked(lock):
                began_s = time.monotonic()
                argv = [*vllm_argv(python, model, free_port()), *row.argv]
                told = told_of(row, argv, model, drafter, folder)
            rows = {**read_rows(), row.name: {**told, "seconds": round(time.monotonic() - began_s, 1)}}
            found = {
                "shakedown": __version__,
                "engine": VLLM.name,
                "machine": f"{os.cpu_count()} cores, {platform.system()}",
                "rows": {each.name: rows[each.name] for each in ROWS if each.name in rows},
            }
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
            say(json.dumps(rows[row.name]))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--only", nargs="+", default=[row.name for row in ROWS], metavar="NAME")
    options.add_argument("--again", action="store_true")
    options.add_argument("--lock")
    options.add_argument("--table", action="store_true")
    chosen = options.parse_args()
    if not chosen.table:
        run(chosen.only, again=chosen.again, lock=chosen.lock)
    show(read_rows())


if __name__ == "__main__":
    main()
