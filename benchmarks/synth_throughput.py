"""How fast `draft synth` drives a server, beside the engine's own benchmark: same prompts and lengths.

    python benchmarks/synth_throughput.py [--rounds 5] [--samples 48] [--concurrency 16] [--max-tokens 64]
                                          [--model FOLDER] [--python PYTHON] [--flags "..."] [--out NAME]

One vLLM server with prefix caching off; in each round first one of the two, then the other, the order drawn
anew. Prints generated tokens a second of both, the ratio of each round, the median with a bootstrap interval,
and what of a core our client used for a sample. Only the ratio within a round counts on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from shakedown import __version__
from shakedown.core import Launch
from shakedown.drafter.prompts import BUILT_IN, read_prompts
from shakedown.host.reach import free_port
from shakedown.jobs.draft_synth import synth_job
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Progress
from shakedown.jobs.serving import while_serving
from shakedown.jobs.synth_request import SynthRequest
from shakedown.probe import Target
from shakedown.provision import VLLM, prepare_engine, prepare_model

ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
FLAGS = "--max-model-len 2048 --enforce-eager"
RESAMPLES = 4000
MARK = 0.9
# The program itself, but that its data is read without pandas, which the CPU build comes without.
BENCH_SERVE = """
import json
from vllm.benchmarks.datasets.datasets import CustomDataset
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
def load_data(self):
    self.data = [json.loads(line) for line in open(self.dataset_path)]
CustomDataset.load_data = load_data
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


class Quiet:
    def say(self, text: str) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass


def write_prompts(folder: Path, number: int) -> tuple[Path, Path]:
    """The same first turns for us and for the engine's benchmark."""
    turns = [prompt.turns[0] for prompt in read_prompts(Path(BUILT_IN))]
    random.Random(0).shuffle(turns)
    turns = [f"{turns[n % len(turns)]}" + f" ({n})" * (n >= len(turns)) for n in range(number)]
    ours, theirs = folder / "ours.jsonl", folder / "theirs.jsonl"
    ours.write_text("".join(json.dumps({"text": turn}) + "\n" for turn in turns))
    theirs.write_text("".join(json.dumps({"prompt": turn}) + "\n" for turn in turns))
    return ours, theirs


def run_ours(target: Target, prompts: Path, folder: Path, given: argparse.Namespace) -> dict[str, float]:
    request = SynthRequest.of(
        target=given.model,
        server=target.base_url,
        prompts=prompts,
        out=folder,
        concurrency=given.concurrency,
        temperature=0.0,
        top_p=1.0,
        max_tokens=given.max_tokens,
        turns=1,
        keep_reasoning=True,
        keep_truncated=True,
    )
    nothing = LaunchRequest(launch=Launch(argv=(), env={}, cwd=folder.parent))
    before = resource.getrusage(resource.RUSAGE_SELF)
    found = synth_job(request, nothing, Quiet()).document
    after = resource.getrusage(resource.RUSAGE_SELF)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "tokens_per_s": found["tokens_per_s"],
        "tokens": found["generated_tokens"],
        "seconds": found["seconds"],
        "cpu_ms_per_sample": 1000 * used_s / found["samples"],
    }


def run_theirs(target: Target, prompts: Path, folder: Path, given: argparse.Namespace) -> dict[str, float]:
    argv = [given.python, "-c", BENCH_SERVE, "--backend", "openai", "--base-url", target.base_url]
    argv += [
        "--model",
        given.model,
        "--served-model-name",
        str(target.model),
        "--endpoint",
        "/v1/completions",
    ]
    argv += ["--dataset-name", "custom", "--dataset-path", str(prompts), "--disable-shuffle"]
    argv += ["--custom-output-len", str(given.max_tokens), "--num-prompts", str(given.samples)]
    argv += [
        "--max-concurrency",
        str(given.concurrency),
        "--temperature",
        "0",
        "--seed",
        "0",
        "--disable-tqdm",
    ]
    argv += ["--save-result", "--result-dir", str(folder), "--result-filename", "found.json"]
    folder.mkdir()
    done = subprocess.run(argv, env={**os.environ, **ENV}, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"the engine's benchmark failed:\n{done.stderr[-2000:]}")
    found = json.loads((folder / "found.json").read_text())
    if found["completed"] != given.samples:
        raise SystemExit(f"the engine's benchmark completed {found['completed']} of {given.samples}")
    return {
        "tokens_per_s": found["output_throughput"],
        "tokens": found["total_output_tokens"],
        "seconds": found["duration"],
    }


def interval(values: list[float]) -> tuple[float, float]:
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def measure(target: Target, given: argparse.Namespace, folder: Path) -> list[dict[str, dict[str, float]]]:
    ours, theirs = write_prompts(folder, given.samples)
    draw, rounds = random.Random(given.seed), []
    sides: dict[str, Callable[[Path], dict[str, float]]] = {
        "ours": lambda place: run_ours(target, ours, place, given),
        "theirs": lambda place: run_theirs(target, theirs, place, given),
    }
    run_theirs(target, theirs, folder / "warm", given)  # what compiles at the first request is nobody's cost
    print(f"{'round':>5}  {'synth tok/s':>12}  {'bench serve tok/s':>17}  {'ratio':>6}  tokens")
    for number in range(given.rounds):
        order = draw.sample(sorted(sides), 2)
        found = {side: sides[side](folder / f"{side}-{number}") for side in order}
        rounds.append(found)
        a, b = found["ours"], found["theirs"]
        print(
            f"{number:>5}  {a['tokens_per_s']:12.1f}  {b['tokens_per_s']:17.1f}"
            f"  {a['tokens_per_s'] / b['tokens_per_s']:6.3f}  {a['tokens']} / {b['tokens']}",
            flush=True,
        )
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="left out: SmolLM2-135M-Instruct, provisioned")
    parser.add_argument("--python", help="interpreter with vLLM; left out: the provisioned one")
    parser.add_argument("--flags", default=FLAGS, help="for the server")
    parser.add_argument("--out", default="synth_throughput", help="name of the results")
    given = parser.parse_args()
    python = Path(given.python) if given.python else prepare_engine(VLLM, print)
    given.python = str(python)
    given.model = given.model or str(prepare_model(python, print))
    port = free_port()
    argv = [given.python, "-m", "vllm.entrypoints.openai.api_server", "--model", given.model]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--no-enable-prefix-caching", *given.flags.split()]
    launch = LaunchRequest(launch=Launch(argv=tuple(argv), env={**os.environ, **ENV}, cwd=Path.cwd()))
    with tempfile.TemporaryDirectory() as name:
        rounds = while_serving(launch, Quiet(), lambda target: measure(target, given, Path(name)))
    ratios = [each["ours"]["tokens_per_s"] / each["theirs"]["tokens_per_s"] for each in rounds]
    low, high = interval(ratios)
    cpu_ms = statistics.median(each["ours"]["cpu_ms_per_sample"] for each in rounds)
    median = statistics.median(ratios)
    verdict = "reached" if median >= MARK else "MISSED"
    print(f"ratio {median:.3f} (95 % of medians {low:.3f} to {high:.3f}); the mark of {MARK} is {verdict}")
    print(f"our client used {cpu_ms:.1f} ms of a core for a sample")
    version = subprocess.run(
        [given.python, "-c", "import vllm; print(vllm.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()[-1]
    document = {
        "benchmark": "synth_throughput",
        "shakedown": __version__,
        "vllm": version,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "model": Path(given.model).name,
        "flags": given.flags,
        "samples": given.samples,
        "concurrency": given.concurrency,
        "max_tokens": given.max_tokens,
        "seed": given.seed,
        "ratio": {"median": median, "low": low, "high": high, "mark": MARK},
        "cpu_ms_per_sample": cpu_ms,
        "rounds": rounds,
    }
    results = Path(__file__).parent / "results" / f"{given.out}.json"
    results.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
