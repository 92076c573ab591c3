"""Real SGLang on GPUs with planted faults: what Shakedown says of them, and how soon.

    python benchmarks/gpu_servers.py --model FOLDER [--python FILE] [--seconds S] [--only NAME,NAME] [--cpu]

All cases run at once, side by side as on a busy host: on one GPU those of one rank, on two those of tensor
parallel 2 as well. FOLDER needs config.json and a tokenizer; the weights are made up, and the shape is cut so
that two ranks can share its heads. `--cpu` tries the cases of one rank without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "gpu_servers.json"
SHAPE = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1536}
FLAGS = [
    "--load-format",
    "dummy",
    "--grammar-backend",
    "none",
    "--host",
    "127.0.0.1",
    "--context-length",
    "2048",
]
ON_GPU = ["--mem-fraction-static", "0.1", "--attention-backend", "triton", "--sampling-backend", "pytorch"]
ON_GPU += ["--cuda-graph-max-bs", "4"]
ON_CPU = ["--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"]
LOADING, CACHED, CAPTURING = "Load weight begin", "KV Cache is allocated", "Capture"
ROW = "{:<26} {:<18} {:<14} {:>10}  {}"

# Fills every multiprocessor once the file named by STRIKE is there; read by each Python of the server.
ENDLESS = """
import os, sys, threading, time

def wait_and_strike(flag):
    while not os.path.exists(flag):
        time.sleep(0.2)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        import endless_kernel
        endless_kernel.strike(torch)

if os.environ.get("STRIKE"):
    threading.Thread(target=wait_and_strike, args=(os.environ["STRIKE"],), daemon=True).start()
"""
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def wait(flag, out):
    seen = tl.atomic_add(flag, 0)
    while seen == 0:
        seen = tl.atomic_add(flag, 0)
    tl.store(out, seen)

def strike(torch):
    with torch.cuda.stream(torch.cuda.Stream()):
        flag = torch.zeros(1, device="cuda", dtype=torch.int32)
        wait[(4224,)](flag, torch.zeros_like(flag))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`strike` is done once the log says `when` ("": once the struck process is there)."""

    name: str
    ranks: int = 1
    when: str = ""
    struck: str = ""  # the title of the process that is stopped
    endless: bool = False

    @property
    def faulty(self) -> bool:
        return bool(self.struck) or self.endless


CASES = (
    Case(name="first start"),
    Case(name="scheduler stopped", when=LOADING, struck="sglang::scheduler"),
    Case(name="endless kernel", when=CACHED, endless=True),
    Case(name="rank stopped at once", ranks=2, struck="sglang::scheduler_TP1"),
    Case(name="rank stopped in capture", ranks=2, when=CAPTURING, struck="sglang::scheduler_TP1"),
)


class Trial:
    """One case: its own ledger, so its own run folder; its own port."""

    def __init__(self, case: Case, folder: Path, given: argparse.Namespace, number: int) -> None:
        self.case, self.folder, self.given = case, folder / case.name.replace(" ", "-"), given
        self.port, self.struck_s = 20100 + 200 * number, 0.0
        self.flag = self.folder / "strike"
        self.folder.mkdir()

    def command(self) -> list[str]:
        flags = [
            *FLAGS,
            *(ON_CPU if self.given.cpu else ON_GPU),
            "--json-model-override-args",
            json.dumps(SHAPE),
        ]
        env = [f"STRIKE={self.flag}"] if self.case.endless else []
        env += ["SGLANG_USE_CPU_ENGINE=1"] if self.given.cpu else []
        server = [
            self.given.python,
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(self.given.model),
            *flags,
        ]
        server += ["--port", str(self.port), *(["--tp", str(self.case.ranks)] if self.case.ranks > 1 else [])]
        paths = f"{self.folder.parent}:{os.environ.get('PYTHONPATH', '')}"
        return ["env", f"PYTHONPATH={paths}", *env, *server]

    def log(self) -> str:
        files = sorted(self.folder.rglob("launch.log*"))
        return "".join(file.read_text(errors="replace") for file in files)

    def owned(self) -> Iterator[int]:
        for file in self.folder.rglob("state.json"):
            yield from (pid for pid, _ in json.loads(file.read_text())["owned"])

    def named(self, title: str) -> list[int]:
        return [pid for pid in self.owned() if title_of(pid).startswith(title)]

    def is_due(self) -> bool:
        return self.case.when in self.log() if self.case.when else bool(self.named(self.case.struck))

    def strike(self) -> None:
        if self.case.endless:
            self.flag.touch()
        for pid in self.named(self.case.struck) if self.case.struck else ():
            os.kill(pid, signal.SIGSTOP)
        self.struck_s = time.monotonic()

    def run(self, until_s: float) -> dict[str, Any]:
        words = [
            sys.executable,
            "-m",
            "shakedown",
            "run",
            "--json",
            "--ledger",
            str(self.folder / "ledger.db"),
        ]
        with (self.folder / "out.json").open("w") as out, (self.folder / "err").open("w") as err:
            process = subprocess.Popen([*words, "--", *self.command()], stdout=out, stderr=err)
            while process.poll() is None and time.monotonic() < until_s:
                if self.case.faulty and not self.struck_s and self.is_due():
                    self.strike()
                time.sleep(0.2)
            ended_s = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.wait()
        return self.row(ended_s)

    def row(self, ended_s: float) -> dict[str, Any]:
        said = json.loads((self.folder / "out.json").read_text() or "{}")
        kinds = ("GPU", "GPU memory", "NCCL RAS", "kernel log", "CUDA core dump", "resident kernel")
        seen = [
            f"{each['kind']}: {each['text']}" for each in said.get("evidence") or () if each["kind"] in kinds
        ]
        found = {key: said.get(key) for key in ("verdict", "wait", "phase", "cause", "seconds")}
        after_s = round(ended_s - self.struck_s, 1) if self.struck_s else None
        return {**found, "after_fault_s": after_s, "evidence": seen}


def title_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def gpu_count() -> int:
    done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True)
    return len(done.stdout.splitlines())


def show(name: str, row: dict[str, Any]) -> None:
    said = f"{row['verdict']}" + (f" ({row['wait']})" if row["wait"] else "")
    print(
        ROW.format(name, said, str(row["phase"]), str(row["after_fault_s"] or ""), (row["cause"] or "")[:90])
    )
    for text in row["evidence"]:
        print(f"    {text[:160]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has SGLang")
    parser.add_argument("--seconds", type=float, default=400.0, help="then what still runs is interrupted")
    parser.add_argument("--only", metavar="NAME[,NAME]")
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    ranks = 1 if given.cpu else gpu_count()
    wanted = (
        given.only.split(",")
        if given.only
        else [case.name for case in CASES if not (given.cpu and case.endless)]
    )
    cases = [case for case in CASES if case.name in wanted and case.ranks <= ranks]
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="shakedown-gpu-") as work:
        (Path(work) / "sitecustomize.py").write_text(ENDLESS)
        (Path(work) / "endless_kernel.py").write_text(KERNEL)
        until_s = time.monotonic() + given.seconds
        trials = [Trial(case, Path(work), given, number) for number, case in enumerate(cases)]

        def keep(trial: Trial) -> Callable[[], None]:
            return lambda: rows.update({trial.case.name: trial.run(until_s)})

        threads = [threading.Thread(target=keep(trial)) for trial in trials]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(ROW.format("case", "said", "phase", "s after", "cause"))
    for case in cases:
        show(case.name, rows[case.name])
    if not given.cpu:
        known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        RESULTS.write_text(json.dumps({**known, "servers": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
