"""A program that speaks as an engine under capture does, without torch: `mode` says how it misbehaves."""

import json
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy
from safetensors.numpy import save_file

WIDTH, SLOTS = 32, 4


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
        files.append(str(path))
    return files[1:] if mode == "a file less" else files


def main() -> None:
    connection, settings = Connection(int(sys.argv[1])), json.loads(sys.argv[2])
    mode = settings["options"].get("mode", "")
    if "pid" in settings["options"]:
        Path(settings["options"]["pid"]).write_text(str(os.getpid()))
    if mode == "dies loading":
        print("loading weights\nCUDA out of memory, token=hf_abcdefghijklmnopqrstuvwxyz012345", flush=True)
        sys.exit(3)
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
        files = answer(mode, Path(settings["spool"]), asked, number)
        number += 1
        connection.send_bytes(json.dumps({"files": files}).encode())


if __name__ == "__main__":
    main()
