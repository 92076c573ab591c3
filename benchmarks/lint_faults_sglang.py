"""What SGLang on a GPU does with planted faults: the rows that `lint_faults.py --table` sets beside the lint.

    python lint_faults_sglang.py MODEL HEALTHY PROMPTS.json OUT.json [--at-once N] [--only NAME…]

For a host that has SGLang and a GPU; it needs nothing of Shakedown but `lint_plants.py` beside it. HEALTHY
and PROMPTS.json are what `lint_faults.py` makes in its --work folder. One server first, so that kernels are
compiled once, then N at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lint_plants import FAULTS, plant

ANSWER_TOKENS = 48
DEADLINE_S = 300.0
FLAGS = shlex.split(
    "--mem-fraction-static 0.6 --max-total-tokens 8192 --grammar-backend none --attention-backend triton "
    "--sampling-backend pytorch --cuda-graph-max-bs 4 --dtype bfloat16 --speculative-algorithm EAGLE3 "
    "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
)


def ask(port: int, path: str, body: dict[str, Any] | None = None, timeout_s: float = 60) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=json.dumps(body).encode() if body else None,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.loads(answer.read() or b"null")


def generate(port: int, prompt: list[int], tokens: int) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return ask(port, "/generate", {"input_ids": prompt, "sampling_params": sampling})["meta_info"]


def await_ready(process: subprocess.Popen[bytes], port: int, prompt: list[int], until: float) -> None:
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode}")
        if time.monotonic() > until:
            raise RuntimeError(f"not ready within {DEADLINE_S:.0f} s")
        try:
            ask(port, "/get_model_info", timeout_s=2)
            generate(port, prompt, 8)
            return
        except OSError:
            time.sleep(1)


def serve(name: str, model: str, drafter: Path, prompts: list[list[int]], port: int) -> dict[str, Any]:
    began = time.monotonic()
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--port", str(port)]
    argv += ["--host", "127.0.0.1", "--speculative-draft-model-path", str(drafter), *FLAGS]
    row: dict[str, Any] = {"fault": name, "tokens_per_round": None, "words": ""}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            await_ready(process, port, prompts[0], began + DEADLINE_S)
            answers = [generate(port, prompt, ANSWER_TOKENS) for prompt in prompts]
            emitted = sum(answer["completion_tokens"] - 1 for answer in answers)  # the first is the prefill's
            row["tokens_per_round"] = emitted / sum(answer["spec_verify_ct"] for answer in answers)
        except (RuntimeError, OSError) as problem:
            log.seek(0)
            errors = [line.strip() for line in log if "Error" in line]
            row["words"] = (errors or [str(problem)])[0][-160:]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the session is the server's own
            process.wait()
    row["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("healthy", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(FAULTS))
    args = parser.parse_args()
    prompts = json.loads(args.prompts.read_text())
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.at_once) as pool:
        copies = {name: plant(args.healthy, Path(folder), name) for name in args.only}
        first, *rest = copies
        rows = [serve(first, args.model, copies[first], prompts, 31000)]
        ports = range(31010, 31010 + 10 * len(rest), 10)
        rows += pool.map(lambda n, port: serve(n, args.model, copies[n], prompts, port), rest, ports)
    machine = torch.cuda.get_device_name()
    facts = {"engine": f"sglang {version('sglang')}", "torch": torch.__version__, "machine": machine}
    args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
