"""What capturing costs: `draft extract` against the bare prefill of the same backend on the same tokens.

    python benchmarks/extract_throughput.py [--target DIR | --shape 4096x32x128256] [--rounds 8]
        [--backend transformers|vllm|sglang --engine-python P] [--tokens 20000] [--longest 512]

Bare: the backend computes the samples and keeps nothing (transformers: the same layers and batches, without
hooks' use, norm or copies; an engine: without connector or hook, one token generated a request). Captured:
everything that `draft extract` does, checksums and fsync included. Transformers' two are measured in turns,
within one process; an engine's as bare, captured, bare, each its own start of the engine, starts not
counted. The goal is 0.9. Random tokens of a fixed seed: what they mean changes no cost.
Results go to benchmarks/results/extract_throughput.json, a row for each machine and setting.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from shakedown import __version__
from shakedown.drafter.capture import Capture, Request, batches
from shakedown.drafter.capture_engine import EngineCapture, SglangCapture, VllmCapture
from shakedown.drafter.capture_transformers import TransformersCapture
from shakedown.drafter.engine_process import EngineProcess
from shakedown.drafter.extract import Plan, extract
from shakedown.drafter.manifest import StatesManifest
from shakedown.drafter.memory import BATCH_TOKENS, choose_device
from shakedown.drafter.shards import teacher_rows
from shakedown.drafter.states import StatesWriter
from shakedown.drafter.target import Target, read_target
from shakedown.provision.environments import cache_folder
from shakedown.provision.model import NAME

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "extract_throughput.json"
GOAL = 0.9
RESAMPLES = 4000
BARE = {"vllm": HERE / "extract_bare_vllm.py", "sglang": HERE / "extract_bare_sglang.py"}


def make_requests(target: Target, tokens: int, longest: int) -> list[Request]:
    """Lengths between an eighth of the longest and the longest; the first quarter of each is its prompt."""
    draw = random.Random(0)
    numbers = torch.Generator().manual_seed(0)
    requests: list[Request] = []
    while sum(request.length for request in requests) < tokens:
        length = draw.randint(longest // 8, longest)
        mask = torch.ones(length, dtype=torch.uint8)
        mask[: length // 4] = 0
        requests.append(
            Request(
                sample=len(requests),
                place=f"random:{len(requests) + 1}",
                tokens=torch.randint(target.vocab_size, (length,), generator=numbers, dtype=torch.int32),
                mask=mask,
                rows=teacher_rows(mask),
            )
        )
    return requests


def plan_of(requests: Sequence[Request]) -> Plan:
    return Plan(
        samples=len(requests),
        tokens=sum(request.length for request in requests),
        last_rows=sum(len(request.rows) for request in requests),
        state_bytes=0,
        longest=max(request.length for request in requests),
    )


@contextmanager
def stopwatch(tokens: int, rates: list[tuple[float, float]]) -> Iterator[None]:
    """Appends tokens by second of the clock, and by second of our own processes' CPU time."""
    settle()
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    yield
    settle()
    rates.append((tokens / (time.monotonic() - began_s), tokens / (time.process_time() - began_cpu_s)))


def settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def captured(capture: Capture, target: Target, requests: Sequence[Request]) -> None:
    manifest = StatesManifest(
        target=target.facts,
        backend=capture.backend,
        aux_inputs_of=target.aux_inputs_of,
        samples_sha256="0" * 64,
    )
    with tempfile.TemporaryDirectory() as folder, StatesWriter(Path(folder), manifest) as writer:
        extract(capture, iter(requests), writer, plan_of(requests), lambda text: None)
        writer.finish()


Rates = list[tuple[float, float]]


def with_transformers(target: Target, requests: Sequence[Request], chosen: Any) -> tuple[Rates, Rates]:
    device = chosen.device or choose_device()
    size = chosen.batch_tokens or BATCH_TOKENS[torch.device(device).type]
    dtype = getattr(torch, chosen.dtype)
    tokens = plan_of(requests).tokens
    bare: Rates = []
    ours: Rates = []
    with TransformersCapture(target, device=device, dtype=dtype, batch_tokens=size) as capture:

        def prefill() -> None:
            with stopwatch(tokens, bare):
                for batch in batches(requests, size):
                    capture.prefill(batch)

        def both() -> None:
            with stopwatch(tokens, ours):
                captured(capture, target, requests)

        prefill()
        both()
        bare.clear(), ours.clear()  # the first of each warms up
        for number in range(chosen.rounds):
            for step in (prefill, both) if number % 2 else (both, prefill):
                step()
            tell(number, bare[-1], ours[-1])
    return bare, ours


def with_engine(target: Target, requests: Sequence[Request], chosen: Any) -> tuple[Rates, Rates]:
    kind: type[EngineCapture] = {"vllm": VllmCapture, "sglang": SglangCapture}[chosen.backend]
    tokens, longest = plan_of(requests).tokens, plan_of(requests).longest
    bare: Rates = []
    ours: Rates = []
    with tempfile.TemporaryDirectory() as folder:
        capture = kind(
            target,
            python=chosen.engine_python,
            folder=Path(folder),
            longest=longest,
            dtype=chosen.dtype,
            say=print,
        )
        ask = Path(folder) / "ask.json"
        ask.write_text(json.dumps([request.tokens.tolist() for request in requests]))
        settings = {
            "model": str(target.path),
            "dtype": chosen.dtype,
            "longest": longest,
            "context": max(target.max_positions, longest + 8),
        }

        def prefill() -> None:
            script = str(BARE[chosen.backend])
            with EngineProcess(chosen.engine_python, script, settings, name="bare", say=print) as engine:
                for number in range(chosen.rounds + 1):
                    with stopwatch(tokens, bare):
                        engine.send(str(ask))
                        engine.receive("computing")
                    if number == 0:
                        bare.pop()

        prefill()
        with capture:
            captured(capture, target, requests)
            for _ in range(chosen.rounds):
                with stopwatch(tokens, ours):
                    captured(capture, target, requests)
        prefill()
    for number, rates in enumerate(zip(bare, ours, strict=False)):
        tell(number, *rates)
    return bare, ours


def tell(number: int, bare: tuple[float, float], ours: tuple[float, float]) -> None:
    print(f"{number + 1:5d} {bare[0]:12,.0f} {ours[0]:12,.0f} {ours[0] / bare[0]:7.3f}", flush=True)


def ratio_of(bare: Sequence[float], ours: Sequence[float], *, paired: bool) -> dict[str, float]:
    """Median and 95 % interval of captured over bare, by bootstrap."""
    draw = random.Random(0)

    def once(pick: Callable[[Sequence[float]], Sequence[float]]) -> float:
        if paired:
            return statistics.median(pick([a / b for a, b in zip(ours, bare, strict=True)]))
        return statistics.median(pick(ours)) / statistics.median(pick(bare))

    drawn = sorted(once(lambda found: draw.choices(found, k=len(found))) for _ in range(RESAMPLES))
    return {
        "value": once(lambda found: found),
        "low": drawn[int(0.025 * RESAMPLES)],
        "high": drawn[int(0.975 * RESAMPLES)],
    }


def random_target(shape: str, folder: Path) -> Path:
    """A Llama-type model with random weights, bfloat16."""
    hidden, layers, vocabulary = map(int, shape.split("x"))
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        intermediate_size=hidden * 7 // 2,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(hidden // 512, 1),
        max_position_embeddings=8192,
        dtype="bfloat16",
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).bfloat16()
    model.to_empty(device=choose_device())
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    model.save_pretrained(folder)
    return folder


def machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{os.cpu_count()} CPU cores, {platform.machine()}"


def keep(row: dict[str, Any]) -> None:
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    same = ("machine", "backend", "target", "dtype", "longest")
    rows = [other for other in rows if any(other[key] != row[key] for key in same)]
    RESULTS.write_text(json.dumps([*rows, row], indent=2) + "\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--target", type=Path, default=cache_folder() / "models" / NAME)
    options.add_argument("--shape", help="hidden x layers x vocabulary of a random target, in its place")
    options.add_argument("--backend", choices=["transformers", "vllm", "sglang"], default="transformers")
    options.add_argument("--engine-python", type=Path, default=Path(sys.executable))
    options.add_argument("--device")
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--batch-tokens", type=int)
    options.add_argument("--tokens", type=int, default=20_000)
    options.add_argument("--longest", type=int, default=512)
    options.add_argument("--rounds", type=int, default=8)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = random_target(chosen.shape, Path(scratch)) if chosen.shape else chosen.target
        target = read_target(path)
        requests = make_requests(target, chosen.tokens, chosen.longest)
        print(
            f"shakedown {__version__}, torch {torch.__version__}, transformers {transformers.__version__},"
            f" {machine()}\n{chosen.backend}, {chosen.shape or path.name}, {chosen.dtype},"
            f" {len(requests)} samples, {plan_of(requests).tokens:,} tokens, seed 0"
        )
        print("round  bare tok/s  capt. tok/s   ratio")
        measure = with_transformers if chosen.backend == "transformers" else with_engine
        bare, ours = measure(target, requests, chosen)
    paired = chosen.backend == "transformers"
    clock = ratio_of([rate[0] for rate in bare], [rate[0] for rate in ours], paired=paired)
    row = {
        "machine": machine(),
        "backend": chosen.backend,
        "target": chosen.shape or path.name,
        "dtype": chosen.dtype,
        "longest": chosen.longest,
        "tokens": plan_of(requests).tokens,
        "rounds": len(ours),
        "load": os.getloadavg()[0],  # above the number of cores the clock measures our neighbours
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "bare_tokens_per_s": statistics.median(rate[0] for rate in bare),
        "captured_tokens_per_s": statistics.median(rate[0] for rate in ours),
        "ratio": clock,
        "goal": GOAL,
    }
    print(f"captured / bare, median: {clock['value']:.3f}, 95 % {clock['low']:.3f} to {clock['high']:.3f}")
    if paired:  # of an engine the work is done by another process
        row["ratio_of_cpu"] = ratio_of([rate[1] for rate in bare], [rate[1] for rate in ours], paired=True)
        cpu = row["ratio_of_cpu"]
        print(f"the same by CPU time: {cpu['value']:.3f}, 95 % {cpu['low']:.3f} to {cpu['high']:.3f}")
    keep(row)


if __name__ == "__main__":
    main()
