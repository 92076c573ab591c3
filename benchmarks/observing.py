"""What watching costs: the same server started bare and watched, in pairs, one after the other.

    python benchmarks/observing.py [--pairs 12] [--command transformers|vllm]

Prints seconds until a green health page, the ratio of each pair, the median with a bootstrap interval, the
CPU seconds our own processes used until then, and the share of a core they take afterwards of a launch of ten
processes that keeps loading. Absolute times are noise here: only the ratio within a pair counts.
Results go to benchmarks/results/observing.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from shakedown import __version__
from shakedown.host.reach import free_port
from shakedown.provision import VLLM, prepare_engine, prepare_model

ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
LONGEST_S = 300.0
POLL_S = 0.1
RESAMPLES = 4000
RESULTS = Path(__file__).parent / "results" / "observing.json"
# Ten processes, of which one says each second that it goes on: what a healthy load of weights looks like.
TEN = """
import os, time
for _ in range(9):
    if os.fork() == 0:
        while True: time.sleep(1)
for shard in range(1000):
    print(f"loading shard {shard + 1}/1000", flush=True); time.sleep(1)
"""
SETTLED_S = 12.0  # our own start is over
STEADY_S = 55.0


def command(kind: str, python: Path, model: Path, port: int) -> list[str]:
    where = ["--host", "127.0.0.1", "--port", str(port)]
    if kind == "transformers":
        return [str(python.parent / "transformers"), "serve", str(model), *where]
    start = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *where]
    return [*start, "--max-model-len", "2048", "--enforce-eager"]


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def until_ready(port: int, began_s: float) -> float:
    while time.monotonic() - began_s < LONGEST_S:
        if ready(port):
            return time.monotonic() - began_s
        time.sleep(POLL_S)
    raise SystemExit("the server never became ready")


def bare(argv: list[str], port: int) -> float:
    """Seconds from exec to a green health page, with nobody watching."""
    began_s = time.monotonic()
    with open(os.devnull, "w") as nowhere:
        server = subprocess.Popen(
            argv, stdout=nowhere, stderr=nowhere, env={**os.environ, **ENV}, start_new_session=True
        )
        try:
            return until_ready(port, began_s)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)


def watched(argv: list[str], port: int, folder: Path) -> tuple[float, float]:
    """The same from the server's own start under `shakedown run`; and the CPU seconds that we used."""
    began_s = time.monotonic()
    run = shakedown_run(argv, folder)
    seconds = until_ready(port, began_s)
    (supervisor,) = children(run.pid)
    (leader,) = children(supervisor)
    seconds -= started_s(leader) - began_s
    used_s = cpu_s(run.pid) + cpu_s(supervisor)
    run.wait(LONGEST_S)
    return seconds, used_s


def shakedown_run(argv: list[str], folder: Path, *options: str) -> subprocess.Popen[bytes]:
    ours = [sys.executable, "-m", "shakedown", "run", "--ledger", str(folder / "ledger.db"), *options]
    return subprocess.Popen(
        [*ours, "--", *argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **ENV},
    )


def steady(folder: Path) -> float:
    """The share of one core that watching ten loading processes takes, once our own start is over."""
    run = shakedown_run([sys.executable, "-c", TEN], folder, "--deadline", f"{SETTLED_S + STEADY_S + 8:.0f}s")
    time.sleep(SETTLED_S)
    (supervisor,) = children(run.pid)
    used_s, began_s = cpu_s(run.pid) + cpu_s(supervisor), time.monotonic()
    time.sleep(STEADY_S)
    used_s = cpu_s(run.pid) + cpu_s(supervisor) - used_s
    seconds = time.monotonic() - began_s
    run.wait(LONGEST_S)
    return used_s / seconds


def started_s(pid: int) -> float:
    """When a process began, on the clock of time.monotonic (no suspend on a server)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interval(ratios: list[float]) -> tuple[float, float]:
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--pairs", type=int, default=12)
    options.add_argument("--command", choices=["transformers", "vllm"], default="transformers")
    chosen = options.parse_args()
    python = prepare_engine(VLLM, print)
    model = prepare_model(python, print)
    found: dict[str, object] = {
        "shakedown": __version__,
        "server": f"{chosen.command} of {VLLM.name}",
        "machine": f"{os.cpu_count()} cores, {platform.system()}",
    }
    print(", ".join(f"{name} {value}" for name, value in found.items()))
    with tempfile.TemporaryDirectory() as folder:
        pairs = list(compared(chosen.pairs, chosen.command, python, model, Path(folder)))
        share = steady(Path(folder))
    ratios = [seen / alone for alone, seen, _ in pairs]
    low, high = interval(ratios)
    used_s = statistics.median(used for _, _, used in pairs)
    print(f"median ratio {statistics.median(ratios):.3f}, 95 % interval {low:.3f} to {high:.3f}")
    print(f"our own processes: {used_s:.2f} CPU seconds in a start (median)")
    print(f"and then {share:.2%} of a core, over {STEADY_S:.0f} s of a launch of ten processes")
    found |= {
        "pairs": [{"bare_s": bare_s, "watched_s": seen, "ours_cpu_s": used} for bare_s, seen, used in pairs],
        "ratio": statistics.median(ratios),
        "ratio_interval": [low, high],
        "ours_cpu_s": used_s,
        "steady_share_of_a_core": share,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def compared(
    pairs: int, kind: str, python: Path, model: Path, folder: Path
) -> Iterator[tuple[float, float, float]]:
    """Seconds bare, seconds watched, and our CPU seconds, of each pair."""
    print("pair   bare s  watched s  ratio  our CPU s")
    for pair in range(pairs):
        port = free_port()
        argv = command(kind, python, model, port)
        if pair % 2:  # who comes second finds warmer caches: they take turns
            alone = bare(argv, port)
        seen, used_s = watched(argv, port, folder)
        if not pair % 2:
            alone = bare(argv, port)
        print(f"{pair + 1:4d} {alone:8.2f} {seen:10.2f} {seen / alone:6.3f} {used_s:10.2f}", flush=True)
        yield alone, seen, used_s


if __name__ == "__main__":
    main()
