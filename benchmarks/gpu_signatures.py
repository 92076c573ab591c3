"""What the driver shows of a GPU at each kind of work: can a hang be told from a decode by it?

    python benchmarks/gpu_signatures.py [--seconds S] [--back-gib N,N] [--out FOLDER]

Each work runs in a process of its own on GPU 0 (a missing rank on GPUs 0 and 1), sampled ten times a second.
Then servers-to-be that hold memory are killed, and it is timed how long the driver counts it still.
Needs torch with CUDA and nvidia-ml-py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml

from shakedown.core import Launch, Run
from shakedown.host.local import LocalHost

# Each prints READY when it has begun and then works until it is killed.
HEAD = """
import sys, time, torch
device = torch.device("cuda:0")
held = torch.zeros(1, device=device)
def ready():
    torch.cuda.synchronize(); print("READY", flush=True)
"""
WORKS = {
    "idle, with a context": "ready(); time.sleep(600)",
    "weights from host memory": """
pinned = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
there = torch.empty_like(pinned, device=device)
ready()
while True: there.copy_(pinned); torch.cuda.synchronize()
""",
    "weights from pageable memory": """
plain = torch.ones(1 << 28, dtype=torch.uint8); there = torch.empty_like(plain, device=device)
ready()
while True: there.copy_(plain); torch.cuda.synchronize()
""",
    "prefill (large products)": """
a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16); b = torch.randn_like(a)
ready()
while True:
    for _ in range(20): a @ b
    torch.cuda.synchronize()
""",
    "decode, 14 GB of weights, batch 1": """
layers = [torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(104)]
x = torch.randn(1, 8192, device=device, dtype=torch.bfloat16)
graph = torch.cuda.CUDAGraph()
for w in layers[:2]: x @ w
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    y = x
    for w in layers: y = torch.nn.functional.normalize(y @ w)
ready()
while True: graph.replay(); torch.cuda.synchronize()
""",
    "decode, a small model, no graph": """
layers = [torch.randn(576, 576, device=device, dtype=torch.bfloat16) for _ in range(210)]
x = torch.randn(1, 576, device=device, dtype=torch.bfloat16)
ready()
while True:
    y = x
    for w in layers: y = torch.nn.functional.normalize(y @ w)
    torch.cuda.synchronize()
""",
    "an endless kernel, one block": "ready(); torch.cuda._sleep(1 << 60); torch.cuda.synchronize()",
    "an endless kernel, all blocks": """
import triton, triton.language as tl
@triton.jit
def wait(flag, out):
    seen = tl.atomic_add(flag, 0)
    while seen == 0: seen = tl.atomic_add(flag, 0)
    tl.store(out, seen)
flag = torch.ones(1, device=device, dtype=torch.int32); out = torch.zeros_like(flag)
wait[(1056,)](flag, out)  # compiled, and passed once
flag.zero_(); ready(); wait[(1056,)](flag, out); torch.cuda.synchronize()
""",
    "host spins, GPU idle": "ready()\nwhile True: pass",
}
MISSING_RANK = """
import os, sys, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"]); torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
x = torch.ones(1 << 20, device="cuda"); dist.all_reduce(x); torch.cuda.synchronize()
print("READY", flush=True)
if rank == 1: time.sleep(600)
dist.all_reduce(x); torch.cuda.synchronize()
"""
HOLDER = (
    HEAD
    + "kept = torch.empty(int({gib} * (1 << 30)), dtype=torch.uint8, device=device)\nready(); time.sleep(600)"
)
SCRIPTS = Path(tempfile.mkdtemp(prefix="shakedown-works-"))
ROW = "{:<36} {:>9} {:>9} {:>8} {:>8} {:>9} {:>9}"


def begin(code: str, **env: str) -> subprocess.Popen[str]:
    program = SCRIPTS / f"work_{len(list(SCRIPTS.iterdir()))}.py"  # Triton reads a kernel from a file
    program.write_text(code)
    words = [sys.executable, "-u", str(program)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **env})


def await_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    if "READY" not in process.stdout.readline():
        raise SystemExit("a work did not begin; see its error above")


def sample(device: Any, seconds: float) -> Iterator[dict[str, float]]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        rates = pynvml.nvmlDeviceGetUtilizationRates(device)
        yield {
            "busy": rates.gpu,
            "memory": rates.memory,
            "watt": pynvml.nvmlDeviceGetPowerUsage(device) / 1000,
            "mhz": pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM),
            "in_mb_s": pynvml.nvmlDeviceGetPcieThroughput(device, pynvml.NVML_PCIE_UTIL_RX_BYTES) / 1024,
            "out_mb_s": pynvml.nvmlDeviceGetPcieThroughput(device, pynvml.NVML_PCIE_UTIL_TX_BYTES) / 1024,
        }
        time.sleep(0.1)


def measure(device: Any, processes: list[subprocess.Popen[str]], seconds: float) -> dict[str, float]:
    try:
        for process in processes:
            await_ready(process)
        time.sleep(1.5)  # the driver's rates look back for up to a second
        rows = list(sample(device, seconds))
        if any(process.poll() is not None for process in processes):
            raise SystemExit("a work ended while it was measured; see its error above")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return {key: round(statistics.median(row[key] for row in rows), 1) for key in rows[0]}


def missing_rank() -> list[subprocess.Popen[str]]:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "WORLD_SIZE": "2"}
    return [begin(MISSING_RANK, RANK=str(rank), **env) for rank in range(2)]


def time_back(gib: float) -> dict[str, float]:
    """A launch that holds so much, ended as `shakedown stop` ends one that answers nothing."""
    with tempfile.TemporaryDirectory(prefix="shakedown-gpu-") as folder:
        host, place = LocalHost(), Path(folder) / "run"
        code = HOLDER.format(gib=gib)
        run: Run = host.start(
            Launch(argv=(sys.executable, "-u", "-c", code), env=dict(os.environ), cwd=Path(folder)), place
        )
        seen, offset, until = b"", 0, time.monotonic() + 120
        while b"READY" not in seen and time.monotonic() < until:
            time.sleep(0.1)
            more, offset = host.read_log(run, offset)
            seen += more
        held = host.gpu_use([run.leader.pid])
        ending = host.end(run, grace_s=0.0)
    used = 0 if not isinstance(held, tuple) else sum(use.used_bytes for use in held)
    return {
        "gib": gib,
        "counted_gib": round(used / (1 << 30), 2),
        "back_s": -1.0 if ending.gpu_back_s is None else round(ending.gpu_back_s, 3),
        "left_bytes": ending.gpu_left_bytes,
        "whole_end_s": round(ending.seconds, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of samples per work")
    parser.add_argument("--back-gib", default="1,40,120", help="memory held by those that are killed")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    result: dict[str, Any] = {
        "gpu": pynvml.nvmlDeviceGetName(device),
        "gpus": pynvml.nvmlDeviceGetCount(),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "python": platform.python_version(),
        "works": {},
        "memory_back": [],
    }
    print(ROW.format("work", "kernels %", "memory %", "W", "MHz", "in MB/s", "out MB/s"), flush=True)
    made: dict[str, Any] = {name: (lambda code=code: [begin(HEAD + code)]) for name, code in WORKS.items()}
    if result["gpus"] >= 2:
        made["a rank missing from an all-reduce"] = missing_rank
    for name, start in made.items():
        row = result["works"][name] = measure(device, start(), given.seconds)
        print(ROW.format(name, *row.values()), flush=True)
    print()
    for gib in map(float, given.back_gib.split(",")):
        row = time_back(gib)
        result["memory_back"].append(row)
        held, back = f"{row['counted_gib']:>7.2f} GiB", f"back {row['back_s']} s after the end"
        print(f"held {held}: {back}, {row['whole_end_s']} s in all", flush=True)
    given.out.mkdir(exist_ok=True)
    (given.out / "gpu_signatures.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
