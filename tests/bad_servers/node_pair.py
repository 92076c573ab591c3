"""One node of a launch on several: meets the others as torch with Gloo does, then node 0 serves.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=A MASTER_PORT=P node_pair.py --port PORT [any flags]

GLOO_SOCKET_IFNAME chooses the interface whose address the others are told; one that does not exist is an
exception, and one that they cannot reach is waited for without end. PAIR_FAULT=sleep:RANK never arrives,
PAIR_FAULT=die:RANK raises after the meeting.
"""

import fcntl
import os
import socket
import struct
import sys
import threading
import time
from http.server import ThreadingHTTPServer

import http_model

RANK, NODES = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MASTER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def say(text: str) -> None:
    print(text, flush=True)


def own_address() -> str:
    name = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if not name:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(MASTER)
            return probe.getsockname()[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()))
        except OSError:
            raise RuntimeError(f"Unable to find address for: {name}") from None
    return socket.inet_ntoa(answer[20:24])


def connect(address: tuple[str, int]) -> socket.socket:
    """Tries for ever, as a client of a store does for half an hour."""
    while True:
        try:
            found = socket.create_connection(address, 300)
            found.settimeout(None)
            return found
        except OSError:
            time.sleep(0.2)


def meet() -> list[socket.socket]:
    """Every node tells node 0 where it listens, and node 0 connects back."""
    if RANK:
        own = socket.create_server((own_address(), 0))
        store = connect(MASTER)
        host, port = own.getsockname()
        store.sendall(f"{host} {port}\n".encode())
        return [own.accept()[0], store]
    own_address()
    store = socket.create_server(MASTER)
    met = []
    for _ in range(NODES - 1):
        joined = store.accept()[0]
        host, port = joined.makefile().readline().split()
        met += [joined, connect((host, int(port)))]
    return met


def main() -> None:
    kind, _, rank = os.environ.get("PAIR_FAULT", "").partition(":")
    faulty = rank == str(RANK)
    say(f"node {RANK} of {NODES} begins")
    if kind == "sleep" and faulty:
        threading.Event().wait()
    met = meet()
    say(f"node {RANK} has met the others")
    if kind == "die" and faulty:
        time.sleep(1)
        raise RuntimeError("no kernel image is available for execution on the device")
    if RANK:
        met[0].recv(1)
        raise ConnectionError("connection closed by peer")
    threading.Thread(target=lost, args=(met[0],), daemon=True).start()
    options = http_model.options
    options.fault, options.pace, options.key, options.root, options.name = "none", 0.0, None, "", "tiny"
    server = ThreadingHTTPServer((MASTER[0], int(sys.argv[sys.argv.index("--port") + 1])), http_model.Server)
    say("INFO:     Application startup complete.")
    server.serve_forever()


def lost(other: socket.socket) -> None:
    other.recv(1)
    say("RuntimeError: Connection closed by peer")
    os._exit(1)


if __name__ == "__main__":
    main()
