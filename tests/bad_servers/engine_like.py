"""A small server that goes through the phases of an engine, in that engine's words, with planted faults.

    engine_like.py --port PORT [any flags]

LIKE_FAULTS is JSON: a list of faults, of which the first that strikes does.

    {"kind": KIND, "phase": PHASE, "when": [TERM, ...], "rate": 0.7, "text": "what the exception says"}

KIND is hang, crash, wrong (random answers), slow (30 tokens a second), few (rounds of speculation yield 1.1
tokens, not 3), silent (no request is answered) or die (at the first request). It
strikes where every TERM holds for the flags and variables given: `--flag`, `--flag=value`, `--flag>8`,
`NAME`, `NAME=1`, and `!` before any of these for the opposite. `rate`: in that share of starts after the
first, which LIKE_STARTS counts (a file, a line per start).

LIKE_WORDS is vllm (left out) or sglang, LIKE_PHASE_S how long a phase takes (0.02), LIKE_LOAD_S how long the
weights take (dummy weights take nothing), LIKE_PACE at how many tokens a second a slow one streams.
"""

import json
import os
import random
import sys
import threading
import time
from http.server import ThreadingHTTPServer

import http_model
from stand_in import count_start, given_flags, holds

PHASES = ("config", "dist_init", "weight_load", "post_load", "kv_cache", "graph_capture", "warm_up")
WORDS = {
    "vllm": {
        "config": "Using max model len 2048",
        "dist_init": "Initializing a V1 LLM engine (v0.32.0) with config: x",
        "weight_load": "Starting to load model x...",
        "post_load": "Model loading took 1.0 GiB and 0.1 seconds",
        "kv_cache": "GPU KV cache size: 10,000 tokens",
        "graph_capture": "Capturing CUDA graphs (decode): 0%",
        "warm_up": "init engine (profile, create kv cache, warmup model) took 0.1 s",
    },
    "sglang": {
        "config": "server_args=ServerArgs(x)",
        "dist_init": "Init torch distributed begin.",
        "weight_load": "Load weight begin. avail mem=1 GB",
        "post_load": "Load weight end. type=x",
        "kv_cache": "KV Cache is allocated. #tokens: 10000",
        "graph_capture": "Capture cuda graph begin. This can take up to several minutes.",
        "warm_up": "max_total_num_tokens=10000, chunked_prefill_size=8192",
    },
}
DEPTH = {"dist_init": "init_process_group", "graph_capture": "capture_model", "weight_load": "load_weights"}


def term_holds(term: str, settings: dict[str, str]) -> bool:
    return not holds(term[1:], settings) if term.startswith("!") else holds(term, settings)


def struck(settings: dict[str, str], start: int) -> dict:
    for number, fault in enumerate(json.loads(settings.get("LIKE_FAULTS", "[]"))):
        chance = random.Random(f"{settings.get('LIKE_SEED', '')} {number} {start}").random()
        strikes = start == 1 or chance < fault.get("rate", 1.0)
        if strikes and all(term_holds(term, settings) for term in fault["when"]):
            return fault
    return {}


def say(text: str, prefix: str) -> None:
    print(prefix + text, flush=True)


def strike(fault: dict, phase: str) -> None:
    if fault.get("phase") != phase:
        return
    if fault["kind"] == "hang":
        threading.Event().wait()
    if fault["kind"] == "crash":
        raise RuntimeError(fault.get("text", f"{phase} failed"))


def work(words: dict[str, str], fault: dict, settings: dict[str, str], ready: int) -> None:
    """The worker: in a session of its own, as engines do it."""
    os.setsid()
    pause_s = float(settings.get("LIKE_PHASE_S", "0.02"))
    dummy = settings.get("--load-format") == "dummy"
    load_s = 0.0 if dummy else float(settings.get("LIKE_LOAD_S", "0"))
    prefix = f"(Worker_TP0 pid={os.getpid()}) " if words is WORDS["vllm"] else ""
    for phase in PHASES:
        say(words[phase], prefix)
        until = time.monotonic() + pause_s + (load_s if phase == "weight_load" else 0)
        shard = 0
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, 1.0))
            if left_s > 1.0:
                shard += 1
                say(f"Loading safetensors checkpoint shards:  {shard}% Completed", prefix)
        strike(fault, phase)
    os.write(ready, b"+")


def start_worker(words: dict[str, str], fault: dict, settings: dict[str, str]) -> None:
    ready, reporter = os.pipe()
    orders, held = os.pipe()
    if os.fork() == 0:
        os.close(held)
        code = 1
        try:
            work(words, fault, settings, reporter)
            code = 0
            os.read(orders, 1)
        finally:
            if code:
                sys.excepthook(*sys.exc_info())
            os._exit(code)
    os.close(orders)
    os.close(reporter)
    if not os.read(ready, 1):
        sys.exit("the worker did not come up")


def main() -> None:
    settings = {**os.environ, **given_flags(sys.argv[1:])}
    fault = struck(settings, count_start(os.environ.get("LIKE_STARTS")))
    start_worker(WORDS[settings.get("LIKE_WORDS", "vllm")], fault, settings)
    options = http_model.options
    dummy = settings.get("--load-format") == "dummy"
    kind = fault.get("kind", "")
    options.fault = "random" if kind == "wrong" or dummy else kind if kind in {"die", "silent"} else "none"
    options.accept = 1.1 if kind == "few" else 3.0
    options.pace = float(settings.get("LIKE_PACE", "30")) if kind == "slow" else 0.0
    options.key, options.root, options.name = None, "", "tiny"
    print(f"INFO:     Started server process [{os.getpid()}]", flush=True)
    server = ThreadingHTTPServer(("127.0.0.1", int(settings["--port"])), http_model.Server)
    print("INFO:     Application startup complete.", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
