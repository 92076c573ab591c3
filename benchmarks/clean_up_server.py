"""A server to be cleaned up: a leader, two ranks, one that fled by fork and setsid, and shared memory.

    clean_up_server.py [--loading] [--deaf] [--storm]

Its folder and port are told by the variables CLEAN_UP_FOLDER and CLEAN_UP_PORT, so that two of them look
the same to whoever goes by command lines. Every process leaves its pid in the folder, in a file named by
its role. `--loading`: it never serves. `--deaf`: nobody listens to SIGTERM. `--storm`: SIGUSR1 makes every
rank a storm of forks.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "bad_servers"))
import http_model

STORM_S = 20.0  # it dies down by itself
FOLDER = Path(os.environ["CLEAN_UP_FOLDER"])


def stand(role: str) -> None:
    (FOLDER / f".{role}").write_text(str(os.getpid()))
    (FOLDER / f".{role}").rename(FOLDER / role)


def storm(*_: object) -> None:
    over_s = time.monotonic() + STORM_S
    while time.monotonic() < over_s:
        if os.fork():
            time.sleep(0.001)
            os._exit(0)
    os._exit(0)


def live(role: str) -> None:
    if "--storm" in sys.argv:
        signal.signal(signal.SIGUSR1, storm)
    stand(role)
    while True:
        time.sleep(60)


def make_shared_memory(name: str) -> mmap.mmap:
    handle = os.open(f"/dev/shm/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(handle, 1 << 20)
    view = mmap.mmap(handle, 1 << 20)
    view[:] = b"x" * (1 << 20)
    os.close(handle)
    return view


def main() -> None:
    if "--deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shared = make_shared_memory(f"{FOLDER.name}-all")
    for role in ("rank-0", "rank-1"):
        if os.fork() == 0:
            live(role)
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            live("fled")
        os._exit(0)
    os.waitpid(middle, 0)
    own = make_shared_memory(f"{FOLDER.name}-leader")
    if "--loading" in sys.argv:
        live("leader")
    options = http_model.options
    options.fault, options.key, options.root, options.name = "none", None, "", "tiny"
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["CLEAN_UP_PORT"])), http_model.Server)
    stand("leader")
    server.serve_forever()
    del shared, own


if __name__ == "__main__":
    main()
