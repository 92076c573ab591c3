"""A small server that is started like an engine: flags, variables, a worker process, and planted faults.

    stand_in.py --model NAME --port PORT [any flags]

It answers like `http_model.py`. STAND_IN_FAULT plants faults, `;` between several:

    KIND:CONDITION             with KIND one of crash, hang, refuse, die (at the first request), wrong,
                               slow (30 tokens a second), late (loads 40 s longer)
    KIND/RATE:CONDITION        only in that share of the starts (the start is counted in STAND_IN_STARTS)

CONDITION is TERM+TERM+…, all of which must hold: `--flag`, `--flag=value`, `--flag>8`, `VLLM_X`, `VLLM_X=1`,
`!--flag` for its absence; an empty one always holds. STAND_IN_STARTS names a file that gets a line per start,
STAND_IN_LOAD_S is how long it loads, STAND_IN_DEAF=1 makes the worker ignore SIGTERM and its parent's death.
"""

import os
import random
import re
import signal
import sys
import threading
import time
from http.server import ThreadingHTTPServer

import http_model


def given_flags(argv: list[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    name = ""
    for token in argv:
        if token.startswith("--"):
            name, _, value = token.partition("=")
            flags[name] = value
        elif name:
            flags[name] = token
    return flags


def holds(term: str, settings: dict[str, str]) -> bool:
    if term.startswith("!"):
        return not holds(term[1:], settings)
    found = re.fullmatch(r"([\w-]+)(?:([=>])(.*))?", term)
    assert found, f"no condition: {term}"
    name, sign, wanted = found.groups()
    if name not in settings:
        return False
    if sign == ">":
        return float(settings[name]) > float(wanted)
    return sign is None or settings[name] == wanted


def planted(settings: dict[str, str], start: int) -> dict[str, str]:
    """The faults of this start, each with the first condition that brought it about."""
    faults: dict[str, str] = {}
    for spec in filter(None, settings.get("STAND_IN_FAULT", "").split(";")):
        kind, _, condition = spec.partition(":")
        kind, _, rate = kind.partition("/")
        chance = random.Random(f"{spec} {start}").random()
        terms = filter(None, condition.split("+"))
        if chance < float(rate or 1) and all(holds(term, settings) for term in terms):
            faults.setdefault(kind, condition)
    return faults


def count_start(path: str | None) -> int:
    if path is None:
        return time.time_ns()
    with open(path, "a") as starts:
        starts.write(f"{os.getpid()} {' '.join(sys.argv[1:])}\n")
        place = starts.tell()
    with open(path) as starts:
        return starts.read(place).count("\n")


def say(text: str) -> None:
    print(text, flush=True)


def load_weights(seconds: float) -> None:
    for shard in (1, 2, 3):
        time.sleep(seconds / 3)
        say(f"Loading weights: shard {shard} of 3")


def capture_graphs(faults: dict[str, str]) -> None:
    if "hang" in faults:
        threading.Event().wait()
    if "crash" in faults:
        raise RuntimeError(f"capture failed: {faults['crash'] or 'no kernel for this device'}")


def work(faults: dict[str, str], load_s: float, orders: int, ready: int) -> None:
    """The worker: in a session of its own, as engines do it."""
    os.setsid()
    if os.environ.get("STAND_IN_DEAF"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    load_weights(load_s)
    say("Capturing graphs")
    capture_graphs(faults)
    os.write(ready, b"+")
    os.read(orders, 1)
    while os.environ.get("STAND_IN_DEAF"):
        time.sleep(1)


def start_worker(faults: dict[str, str], load_s: float) -> None:
    """Returns once the worker is ready; the worker ends when this process does."""
    orders, held = os.pipe()
    ready, reporter = os.pipe()
    if os.fork() == 0:
        os.close(held)
        code = 1
        try:
            work(faults, load_s, orders, reporter)
            code = 0
        finally:
            if code:
                sys.excepthook(*sys.exc_info())
            os._exit(code)
    os.close(orders)
    os.close(reporter)
    if not os.read(ready, 1):
        sys.exit("the worker did not come up")


def main() -> None:
    flags = given_flags(sys.argv[1:])
    settings = {**os.environ, **flags}
    faults = planted(settings, count_start(os.environ.get("STAND_IN_STARTS")))
    say(f"stand-in with {len(flags)} flags")
    if "refuse" in faults:
        sys.exit(f"stand_in.py: error: argument {faults['refuse']}: invalid value")
    start_worker(faults, float(os.environ.get("STAND_IN_LOAD_S", "0")) + (40 if "late" in faults else 0))
    options = http_model.options
    options.fault = "random" if "wrong" in faults else "die" if "die" in faults else "none"
    options.pace = 30.0 if "slow" in faults else 0.0
    options.key, options.root, options.name = None, "", flags.get("--model", "tiny")
    say(f"INFO:     Started server process [{os.getpid()}]")
    server = ThreadingHTTPServer(("127.0.0.1", int(flags["--port"])), http_model.Server)
    say("INFO:     Application startup complete.")
    server.serve_forever()


if __name__ == "__main__":
    main()
