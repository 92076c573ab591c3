"""A program that speaks as an engine under capture does, without torch: `mode` says how it misbehaves."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy
from safetensors.numpy import save_file

WIDTH, SLOTS = 32, 4
held_locks = []


def answer(mode: str, spool: Path, documents: list[list[int]], number: int) -> list[str]:
    """Row t of slot s holds token t plus s everywhere: easy to check, and different everywhere."""
    files = []
    for i, tokens in enumerate(documents):
        path = spool / f"{number}-{i}.safetensors"
        held = numpy.array(tokens)
        states = numpy.broadcast_to(
            (held[:, None] + numpy.arange(SLOTS))[:, :, None], (len(tokens), SLOTS, WIDTH)
        ).astype(numpy.float32)
        if mode == "other tokens":
            held = held + 1
        save_file({"hidden_states": states.copy(), "token_ids": held}, path)
        if mode == "torn file":
            path.write_bytes(path.read_bytes()[:100])
        if mode == "never written":
            held_locks.append(path.with_name(path.name + ".lock").open("w"))
            fcntl.flock(held_locks[-1], fcntl.LOCK_EX)
        files.append(str(path))
    return files[1:] if mode == "a file less" else files


def hang(told: Path) -> None:
    """With a worker, as an engine that waits for its ranks does; neither takes notice of a TERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = subprocess.Popen(["sleep", "50"])
    told.write_text(str(worker.pid))
    print("waiting for rank 1", flush=True)
    time.sleep(50)


def main() -> None:
    connection, settings = Connection(int(sys.argv[1])), json.loads(sys.argv[2])
    mode = settings["options"].get("mode", "")
    if "pid" in settings["options"]:
        Path(settings["options"]["pid"]).write_text(str(os.getpid()))
    if mode == "dies loading":
        print("loading weights\nCUDA out of memory, token=hf_abcdefghijklmnopqrstuvwxyz012345", flush=True)
        sys.exit(3)
    if mode == "hangs loading":
        hang(Path(settings["options"]["pid"] + ".worker"))
    connection.send_bytes(b'{"ready": true}')
    number = 0
    while True:
        try:
            asked = json.loads(Path(connection.recv_bytes().decode()).read_text())
        except EOFError:
            return
        if mode == "dies computing":
            print("illegal memory access", flush=True)
            os._exit(1)
        if mode == "hangs computing" and number:
            hang(Path(settings["options"]["pid"] + ".worker"))
        files = answer(mode, Path(settings["spool"]), asked, number)
        number += 1
        connection.send_bytes(json.dumps({"files": files}).encode())


if __name__ == "__main__":
    main()
