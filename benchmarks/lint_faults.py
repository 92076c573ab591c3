"""What the lint says of planted faults, beside what the engines do with them.

    python benchmarks/lint_faults.py [--only NAME…] [--seconds N] [--model M] [--python P] [--work FOLDER]
    python benchmarks/lint_faults.py --table [--work FOLDER]      only sets side by side what was measured

A drafter is trained until it knows two answers of SmolLM2-135M by heart, exported, and copied once for each
fault. Each copy is served by vLLM on the CPU, in a process of its own that answers the same questions.
Then the engine has refused it, or drafts as with the healthy one, or worse: by over a tenth of its tokens a
round, or from other layers than it was trained on. Counts the misses. A run that was cut goes on where it
stopped. SGLang needs a GPU: see `lint_faults_sglang.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lint_plants import FAULTS, plant

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from overfitted import ANSWER_TOKENS, DRAFTS, Reference, learn_by_heart

from shakedown.engines.lint import Serving
from shakedown.jobs.draft_lint import LintRequest, lint_folder
from shakedown.provision import VLLM, prepare_engine, prepare_model

RESULTS = Path(__file__).parent / "results"
TRAINED = [2, 15, 27]
WORSE = 0.9  # of the healthy drafter's tokens a round
DEADLINE_S = 300

ENGINE = """
import json, sys
model, drafter, prompts, tokens, drafts = json.loads(sys.argv[1])
from vllm import LLM, SamplingParams
speculation = {"method": "eagle3", "model": drafter, "num_speculative_tokens": drafts}
llm = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=4,
          disable_log_stats=False, speculative_config=speculation)
llm.generate([{"prompt_token_ids": p} for p in prompts],
             SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True), use_tqdm=False)
sums = {m.name: m.value for m in llm.get_metrics() if "spec_decode" in m.name and hasattr(m, "value")}
print("COUNTED", json.dumps(sums))
"""


def serve(python: Path, model: Path, drafter: Path, prompts: list[list[int]]) -> dict[str, Any]:
    """Tokens a round and the layers it logs to have captured; or None and the engine's first error."""
    asked = json.dumps([str(model), str(drafter), prompts, ANSWER_TOKENS, DRAFTS])
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    try:
        done = subprocess.run(
            [str(python), "-c", ENGINE, asked], env=env, capture_output=True, text=True, timeout=DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        return {"tokens_per_round": None, "words": f"nothing within {DEADLINE_S} s"}
    lines = (done.stdout + done.stderr).splitlines()
    for line in lines:
        if line.startswith("COUNTED "):
            sums = json.loads(line.removeprefix("COUNTED "))
            rounds, accepted = (
                sums[f"vllm:spec_decode_num_{name}"] for name in ("drafts", "accepted_tokens")
            )
            return {"tokens_per_round": 1 + accepted / rounds, "layers": captured(lines), "words": ""}
    errors = [line for line in lines if "Error" in line]
    return {"tokens_per_round": None, "words": (errors or ["it said nothing"])[0][-160:]}


def captured(lines: list[str]) -> list[int] | None:
    for line in lines:
        if found := re.search(r"auxiliary layers from speculative config: \(([\d, ]+)\)", line):
            return [int(number) for number in found[1].split(",")]
    return None


def measure(args: argparse.Namespace) -> None:
    last_start = time.monotonic() + args.seconds
    python = args.python or prepare_engine(VLLM, print)
    model = args.model or prepare_model(python, print)
    results = RESULTS / "lint_faults_vllm.json"
    rows = json.loads(results.read_text())["rows"] if results.exists() else []
    healthy, prompts_file = args.work / "drafter", args.work / "prompts.json"
    if not prompts_file.exists():
        learnt = learn_by_heart(Reference(model), healthy)
        prompts_file.write_text(json.dumps([tokens[:start] for tokens, start in learnt.answers]))
    prompts = json.loads(prompts_file.read_text())
    for name in args.only:
        if any(row["fault"] == name for row in rows):
            continue
        if time.monotonic() > last_start:
            break
        began = time.monotonic()
        served = serve(python, model, plant(healthy, args.work / "planted", name), prompts)
        rows.append({"fault": name, **served, "seconds": round(time.monotonic() - began, 1)})
        print(json.dumps(rows[-1]), flush=True)
        machine = f"{os.cpu_count()} cores, {platform.machine()}"
        facts = {"engine": "vllm 0.32.0", "torch": torch.__version__, "machine": machine}
        results.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


def table(work: Path, model: Path) -> Iterator[str]:
    """Every measured row, the lint's verdict on a copy planted anew beside it."""
    for results in sorted(RESULTS.glob("lint_faults_*.json")):
        measured = json.loads(results.read_text())
        engine, version = measured["engine"].split()
        rows = measured["rows"]
        healthy = next(row["tokens_per_round"] for row in rows if row["fault"] == "healthy")
        yield f"{engine} {version}, {measured['machine']}"
        yield f"  {'fault':<32} {'tokens a round':>14}  {'the engine':<26} the lint"
        agreeing = 0
        for row in rows:
            seen = verdict_of(row, healthy)
            with tempfile.TemporaryDirectory() as folder:
                said = linted(plant(work / "drafter", Path(folder), row["fault"]), model, engine, version)
            agreeing += seen is said
            tokens = f"{row['tokens_per_round']:.2f}" if row["tokens_per_round"] else "-"
            mark = "" if seen is said else "  MISS"
            yield f"  {row['fault']:<32} {tokens:>14}  {seen.value:<26} {said.value}{mark}"
        yield f"  {agreeing} of {len(rows)} as the engine did\n"


def verdict_of(row: dict[str, Any], healthy: float) -> Serving:
    if row["tokens_per_round"] is None:
        return Serving.NOT
    elsewhere = sorted(row.get("layers") or TRAINED) != TRAINED  # captured in the layers' own order
    return Serving.WRONGLY if elsewhere or row["tokens_per_round"] < WORSE * healthy else Serving.AS_TRAINED


def linted(drafter: Path, model: Path, engine: str, version: str) -> Serving:
    reports = lint_folder(LintRequest(drafter=drafter, target=model, engine=engine, version=version))
    return next(report.verdict for report in reports if report.profile.runner in (None, "V1"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(FAULTS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no fault later than this")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "shakedown-lint-faults")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if not args.table:
        measure(args)
    model = args.model or prepare_model(prepare_engine(VLLM, print), print)
    print("\n".join(table(args.work, model)))


if __name__ == "__main__":
    main()
