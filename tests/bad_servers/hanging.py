"""Ways to hang, each exact: as a small server that never comes up, or planted into a real engine.

    hanging.py KIND [--seed N]

The server starts like an engine (a leader, one to three workers, shards that load) and hangs in a worker or
in its leader; `--seed` chooses where and when. The moment is left as seconds of the monotonic clock in the
file that HANG_STAMP names.
"""

import argparse
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import NoReturn

HANGS: dict[str, Callable[[], None]] = {}
TALK_S = 5.0


def hangs(function: Callable[[], None]) -> Callable[[], None]:
    HANGS[function.__name__] = function
    return function


def hang(kind: str) -> NoReturn:
    """Leaves the moment, and never comes back."""
    if stamp := os.environ.get("HANG_STAMP"):
        with open(stamp, "w") as file:
            file.write(f"{time.monotonic()}\n")
    while True:
        HANGS[kind]()


@hangs
def lock() -> None:
    held = threading.Lock()
    held.acquire()
    held.acquire()


@hangs
def spin() -> None:
    """As a worker waits for its shared memory ring."""
    while True:
        os.sched_yield()


@hangs
def trylock() -> None:
    held = threading.Lock()
    held.acquire()
    while not held.acquire(blocking=False):
        pass


@hangs
def loop() -> None:
    """Busy in nothing that anybody knows."""
    done = False
    while not done:
        done = False


@hangs
def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@hangs
def peer() -> None:
    """A rendezvous whose other side never comes: refused, asked again, without a word."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        while True:
            with socket.socket() as client:
                client.connect_ex(unused.getsockname())
            time.sleep(0.3)


@hangs
def blocked_socket() -> None:
    """The other side takes the connection and says nothing."""
    silent = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(silent.getsockname()).recv(1)


@hangs
def fifo() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "weights")
        os.mkfifo(path)
        open(path).close()


@hangs
def retry() -> None:
    for attempt in range(1, 1_000_000):
        print(f"WARNING could not reach 127.0.0.1:29500, attempt {attempt}/1000000", flush=True)
        time.sleep(2)


@hangs
def heartbeat() -> None:
    """One thread goes on talking, the one that matters does not."""

    def talk() -> None:
        began_s = time.monotonic()
        while True:
            time.sleep(TALK_S)
            print(f"INFO still alive, up {time.monotonic() - began_s:.1f} s", flush=True)

    threading.Thread(target=talk, daemon=True).start()
    lock()


@hangs
def fork_server() -> None:
    """A lock that another thread held at the fork stays held in the child for ever."""
    held = threading.Lock()
    taken = threading.Event()

    def hold() -> None:
        with held:
            taken.set()
            time.sleep(1)

    threading.Thread(target=hold).start()
    taken.wait()
    child = os.fork()
    if child == 0:
        held.acquire()
    os.waitpid(child, 0)


def load(seed: int) -> None:
    """Some seconds of honest work: memory that grows, lines that count."""
    chance = random.Random(seed)
    shards = chance.randint(3, 6)
    weights = []
    for shard in range(1, shards + 1):
        weights.append(bytearray(os.urandom(1 << 20) * 16))
        print(f"Loading weights: {shard}/{shards}", flush=True)
        time.sleep(chance.uniform(0.3, 1.5))
    globals()["kept"] = weights


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("kind", choices=sorted(HANGS))
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    chance = random.Random(given.seed)
    workers, in_leader = chance.randint(1, 3), chance.random() < 0.3
    odd = chance.randrange(workers)
    print(f"starting {workers} workers", flush=True)
    ready, report = os.pipe()
    for worker in range(workers):
        if os.fork() == 0:
            os.close(ready)
            load(given.seed + worker)
            if worker == odd and not in_leader:
                hang(given.kind)
            print(f"worker {worker} is up", flush=True)
            os.write(report, b"+")
            threading.Event().wait()
    os.close(report)
    for _ in range(workers):
        os.read(ready, 1)
    hang(given.kind) if in_leader else sys.exit("hung too little")


if __name__ == "__main__":
    main()
