"""Training speed of an EAGLE-3 drafter of real size, against speculators and a dense loop on the same data.

    python benchmarks/drafter_training.py [--size llama --size kimi] [--density 1.0 --density 0.5]

Random weights, 7 steps, a 32,000-token draft vocabulary, documents of 2048 to 4096 tokens. Prints loss tokens
a second (generated tokens; prompt tokens count for nobody), peak memory, and the share of the card's own bf16
peak: the arithmetic that the loss rows alone need, over the time, over what a large matrix product reaches on
the same card a moment before. speculators (0.9.0) is its own `Trainer.train_epoch`; it must be importable.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from drafter_rivals import (
    Dense,
    Document,
    Ours,
    Size,
    Speculators,
    World,
    loss_tokens,
    make_world,
    masked,
    spread,
)

from shakedown import __version__
from shakedown.drafter.provenance import provenance
from shakedown.drafter.recipe import Recipe
from shakedown.drafter.reference import learn_plainly
from shakedown.drafter.teacher import TargetHead

SIZES = {
    "llama": Size(name="llama", hidden=4096, intermediate=14336, heads=32, kv_heads=8, vocab=128_256),
    "kimi": Size(
        name="kimi", hidden=7168, intermediate=18432, heads=64, kv_heads=64, vocab=163_840, layers=61
    ),
    "tiny": Size(
        name="tiny", hidden=64, intermediate=160, heads=4, kv_heads=2, vocab=600, draft_vocab=300, layers=12
    ),
}
STEPS = 7
WARM_UP, TIMED = 3, 6


def contestants() -> dict[str, Callable[[World, torch.device], Any]]:
    recipe = Recipe(steps=STEPS, decay=1.0)
    frozen = replace(recipe, freeze_head=True)
    return {
        "ours": lambda world, device: Ours(world, device, recipe=recipe),
        "ours-frozen": lambda world, device: Ours(world, device, recipe=frozen),
        "speculators-eager": lambda world, device: Speculators(
            world, device, recipe=recipe, train_head=False, eager=True
        ),
        "speculators": lambda world, device: Speculators(world, device, recipe=recipe, train_head=False),
        "speculators-head": lambda world, device: Speculators(world, device, recipe=recipe, train_head=True),
        "dense": lambda world, device: Dense(world, device, recipe=recipe),
    }


# The one that may compile for minutes comes last: a run that is cut has the others' rows.
DEFAULT = ("ours", "ours-frozen", "speculators-eager", "dense", "speculators")
TRAINS_HEAD = ("ours", "speculators-head", "dense")


def needed_flop(size: Size, lengths: list[int], density: float, *, head_trained: bool) -> float:
    """Of a batch, forward and backward, on loss rows alone and nothing twice: no exact trainer can do less.

    A trained weight costs 6 operations a row and a frozen one 4; the embedding's half of q, k and v is needed
    once a row, not once a step; attention costs 3.5 times its forward pass.
    """
    config = size.config()
    q, kv, hidden = config.query_width, 2 * config.key_width, size.hidden
    layer = (q + kv) * hidden + q * hidden + 3 * hidden * size.intermediate
    head = size.draft_vocab * hidden
    total = 0.0
    for length in lengths:
        rows = round(length * density)
        total += rows * STEPS * (6 * layer + (6 if head_trained else 4) * head)
        total += rows * 6 * (q + kv) * hidden + rows * 2 * size.draft_vocab * hidden
        total += length * 4 * 3 * hidden * hidden + (length - rows) * 6 * 2 * kv * hidden
        total += STEPS * 3.5 * 4 * q * (length * length - (length - rows) ** 2) / 2
    return total


def peak_tflop(device: torch.device) -> float:
    """A large bf16 product on random data, for a second or so: what the card reaches when warm."""
    if device.type != "cuda":
        return float("nan")
    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        a @ b
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(200):
        a @ b
    torch.cuda.synchronize()
    return 200 * 2 * 8192**3 / (time.perf_counter() - began_s) / 1e12


def timed(
    step: Callable[[int], None], device: torch.device, first: int, steps: int
) -> tuple[list[float], float]:
    """Seconds of each step after the `first` ones, and the seconds that those took (they compile)."""
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    seconds: list[float] = []
    began_s = time.perf_counter()
    for number in range(first + steps):
        if number == first:
            wait()
            first_s, began_s = time.perf_counter() - began_s, time.perf_counter()
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
        step(number)
        if number >= first:
            wait()
            seconds.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
    return seconds, first_s


def check(device: torch.device) -> dict[str, float]:
    """How far the device's fast path lies from the plain path on the CPU in fp32: loss and worst gradient."""
    size = Size(name="check", hidden=256, intermediate=384, heads=4, kv_heads=2, vocab=900, draft_vocab=512)
    lengths = [300, 170, 420, 33]
    world = make_world(size, lengths, 1, seed=3, device=torch.device("cpu"))
    world.batches[0] = masked(world.batches[0], 0.6)
    wanted = plain_gradients(world)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        ours = Ours(world, device, recipe=Recipe(steps=STEPS, decay=1.0))
        ours.trainer.dtype, ours.trainer.drafter.embedding = dtype, world.drafter.embedding.to(dtype)
        ours.trainer._head = TargetHead(world.head.to(device, dtype), world.vocabulary)
        ours.load(world.batches)
        sums = ours.trainer.learn(ours.packs, 1)
        worst = max(
            float((p.grad.cpu() - wanted[name]).norm() / wanted[name].norm())
            for name, p in ours.trainer.drafter.named_parameters()
        )
        name = str(dtype).removeprefix("torch.")
        found[f"{name} loss"] = abs(float(sums[0]) - float(wanted["loss"])) / float(wanted["loss"])
        found[f"{name} gradient"] = worst
        ours.trainer.optimiser.gradient.zero_()
        world.drafter.cpu()
    return found


def plain_gradients(world: World) -> dict[str, torch.Tensor]:
    drafter = world.drafter.float()
    drafter.embedding = drafter.embedding.float()
    total = torch.zeros(())
    for document in world.batches[0]:
        tokens, aux, last = document.tokens.long(), document.aux.float(), document.every_last.float()
        whole, head = (world.drafter, world.vocabulary), world.head.float()
        lesson = learn_plainly(*whole, head, tokens, document.mask, aux, last, steps=STEPS, decay=1.0)
        total = total + lesson.total
    total.backward()
    found = {name: p.grad.clone() for name, p in drafter.named_parameters() if p.grad is not None}
    drafter.zero_grad()
    return {**found, "loss": total.detach()}


def profile(contestant: Any, path: Path) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        contestant.step(0)
        torch.cuda.synchronize()
    table = found.key_averages().table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=90)
    path.write_text(table)


def judge(
    contestant: Any, size: Size, batches: list[list[Document]], density: float, peak: float, steps: int
) -> dict[str, Any]:
    """A row of the table: what it did with the same documents under the mask of this density."""
    masked_batches = [masked(batch, density) for batch in batches]
    contestant.load(masked_batches)
    device = contestant.device
    seconds, first_s = timed(contestant.step, device, WARM_UP, steps)
    memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    median, tokens = statistics.median(seconds), loss_tokens(masked_batches[0])
    found = {"name": contestant.name, "version": contestant.version, "density": density, "first_s": first_s}
    found |= {"seconds": seconds, "loss_tokens": tokens, "loss_tokens_per_s": tokens / median}
    found |= {"peak_bytes": memory, "lengths": [len(document.tokens) for document in batches[0]]}
    if isinstance(contestant, Ours):
        new, _ = timed(contestant.first_epoch, device, 1, 3)
        found["first_epoch_loss_tokens_per_s"] = tokens / statistics.median(new)
    return found


def line(row: dict[str, Any]) -> str:
    speed = f"{row['loss_tokens_per_s']:10,.0f} {statistics.median(row['seconds']):8.3f}"
    new = row.get("first_epoch_loss_tokens_per_s")
    rest = f"{row['peak_bytes'] / 1e9:6.1f} {row['peak_share']:6.1%} {row['first_s']:8.1f}"
    return f"{row['size']:6} {row['density']:5.0%}  {row['name']:32} {speed} {rest}" + (
        f"   ({new:,.0f} in the first epoch)" if new else ""
    )


def compete(name: str, size: Size, chosen: argparse.Namespace, peak: float) -> Iterator[dict[str, Any]]:
    """One contestant, built once, over every density. A failure is a row too."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    low, high = (128, 384) if size.name == "tiny" else (2048, 4096)
    lengths = spread(chosen.tokens, low, high, seed=1)
    row: dict[str, Any] = {"size": size.name, "trainer": name}
    try:
        world = make_world(size, lengths, 2, seed=0, device=device)
        contestant = contestants()[name](world, device)
        for density in chosen.density or [1.0, 0.5]:
            found = judge(contestant, size, world.batches, density, peak, chosen.timed)
            flop = needed_flop(size, lengths, density, head_trained=name in TRAINS_HEAD)
            yield {**row, **found, "peak_share": flop / statistics.median(found["seconds"]) / 1e12 / peak}
            if chosen.profile and device.type == "cuda":
                profile(contestant, chosen.out / f"profile-{size.name}-{density}-{name}.txt")
    except Exception as problem:  # noqa: BLE001  compilers raise all kinds, and the others' rows still count
        if os.environ.get("TRACE"):
            traceback.print_exc()
        yield {**row, "failed": f"{type(problem).__name__}: {problem}"[:2000]}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--size", action="append", choices=list(SIZES))
    options.add_argument("--density", action="append", type=float, help="share of loss tokens")
    options.add_argument("--tokens", type=int, default=16_384, help="of a batch, prompts included")
    options.add_argument("--only", action="append", choices=list(contestants()))
    options.add_argument("--timed", type=int, default=TIMED, help="steps")
    options.add_argument("--check", action="store_true", help="compare with the plain path first")
    options.add_argument("--profile", action="store_true", help="write a profile of one step each")
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    chosen = options.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    peak = peak_tflop(device)
    found: dict[str, Any] = {"provenance": provenance(), "peak_tflop": peak, "rows": []}
    print(f"shakedown {__version__}, torch {torch.__version__}, {found['provenance']['device']}")
    print(f"{STEPS} steps, batches of {chosen.tokens} tokens, bf16 peak {peak:.0f} TFLOP/s here", flush=True)
    if chosen.check:
        found["check"] = check(device)
        print("distance from the plain path on the CPU:", {k: f"{v:.1e}" for k, v in found["check"].items()})
    print(
        "size    loss  trainer                          loss tok/s   s/step     GB   peak  first s",
        flush=True,
    )
    for size_name in chosen.size or ["llama", "kimi"]:
        for name in chosen.only or DEFAULT:
            for row in compete(name, SIZES[size_name], chosen, peak):
                failed = f"{size_name:6}        {name:32} failed: {row.get('failed', '')[:300]}"
                print(failed if "failed" in row else line(row), flush=True)
                found["rows"].append(row)
                (chosen.out / "drafter_training.json").write_text(json.dumps(found, indent=1) + "\n")
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
