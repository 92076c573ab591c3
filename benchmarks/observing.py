"""What watching costs: the same server started bare and watched, in pairs, one after the other.

    python benchmarks/observing.py [--pairs 12] [--command transformers|vllm]

Prints seconds until the first answered request (bare: asked by this script; watched: told by the run's
phases), the ratio of each pair, the median with a bootstrap interval, and the CPU seconds our own
processes used. Absolute times are noise on a shared machine: only the ratio within a pair counts.
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
from pathlib import Path

from shakedown import __version__
from shakedown.host.reach import free_port
from shakedown.provision import VLLM, prepare_engine, prepare_model

ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
LONGEST_S = 300.0
POLL_S = 0.1
RESAMPLES = 4000


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
    """The same from the server's own start under `shakedown run`; and the share of a core that we used."""
    ours = [sys.executable, "-m", "shakedown", "run", "--ledger", str(folder / "ledger.db"), "--json"]
    began_s = time.monotonic()
    run = subprocess.Popen(
        [*ours, "--", *argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **ENV},
    )
    seconds = until_ready(port, began_s)
    (supervisor,) = children(run.pid)
    (leader,) = children(supervisor)
    seconds -= started_s(leader) - began_s
    used_s = cpu_s(run.pid) + cpu_s(supervisor)
    run.wait(LONGEST_S)
    return seconds, used_s / seconds


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
    print(
        f"shakedown {__version__}, {VLLM.name}, {chosen.command}, {os.cpu_count()} cores, {platform.system()}"
    )
    print("pair   bare s  watched s  ratio  our CPU")
    ratios, shares = [], []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(chosen.pairs):
            port = free_port()
            argv = command(chosen.command, python, model, port)
            if pair % 2:  # who comes second finds warmer caches: they take turns
                alone = bare(argv, port)
            seen, share = watched(argv, port, Path(folder))
            if not pair % 2:
                alone = bare(argv, port)
            ratios.append(seen / alone)
            shares.append(share)
            print(f"{pair + 1:4d} {alone:8.2f} {seen:10.2f} {ratios[-1]:6.3f} {share:8.1%}", flush=True)
    low, high = interval(ratios)
    print(f"median ratio {statistics.median(ratios):.3f}, 95 % interval {low:.3f} to {high:.3f}")
    print(f"median share of one core that our own processes used: {statistics.median(shares):.1%}")
    print(json.dumps({"ratios": ratios, "interval": [low, high], "cpu": shares}))


if __name__ == "__main__":
    main()
