"""What NCCL and torch know of a collective that does not end: the RAS report and the flight recorder.

Given: `pids`, `env` (the variables of the launch that say where), `age_s`, how long ago the launch started.
"""

import io
import pickle
import socket
import tempfile
from pathlib import Path

BEGAN = time.time() - PARAMS["age_s"]
RAS_PORT, RAS_S = 28028, 6.0
DUMP_S = 6.0
DUMP_BYTES = 256 << 20
SHOWN_LINES = 30
TOLD = ("dead", "mismatch", "incomplete", "error", "warning", "missing", "no issues", "unable")


# --- RAS: a text service in every process that holds a communicator ---------------------------------------


def listening(port):
    """Inodes of the sockets that listen on the port."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, rows):
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                inodes.add(fields[9])
    return inodes


def holds(pid, inodes):
    try:
        return any(os.readlink(entry.path)[8:-1] in inodes for entry in os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def ask_ras(address):
    host, _, port = address.rpartition(":")
    until, said = time.monotonic() + RAS_S, b""
    with socket.create_connection((host.strip("[]"), int(port)), timeout=RAS_S) as line:
        line.sendall(b"verbose status\n")
        while len(said) < 1 << 20:
            line.settimeout(max(0.1, until - time.monotonic()))
            piece = line.recv(65536)
            if not piece:
                break
            said += piece
    return said.decode(errors="replace")


def report_ras():
    address = PARAMS["env"].get("NCCL_RAS_ADDR") or f"127.0.0.1:{RAS_PORT}"
    if PARAMS["env"].get("NCCL_RAS_ENABLE") == "0":
        return
    inodes = listening(int(address.rpartition(":")[2]))
    if not inodes:
        return  # no communicator was made, or an NCCL before 2.24
    if not any(holds(pid, inodes) for pid in PARAMS["pids"]):
        say(
            kind="not read",
            text=f"NCCL RAS: {address} is held by another server; NCCL_RAS_ADDR would part them",
        )
        return
    lines = [line.rstrip() for line in ask_ras(address).splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line.lower() for word in TOLD)]
    for text in (telling or lines)[:SHOWN_LINES]:
        say(kind="NCCL RAS", text=text.strip())


# --- the flight recorder: one pickle per rank, of plain containers ----------------------------------------


class Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"it asks for {module}.{name}; a recorder needs nothing of the kind")


def prefix():
    given = PARAMS["env"]
    path = given.get("TORCH_FR_DUMP_TEMP_FILE") or given.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    return Path(path or f"{tempfile.gettempdir()}/nccl_trace_rank_")


def ask_for_dumps():
    """A byte into each rank's pipe makes it write its dump; nobody waits where no rank reads it."""
    pipes = PARAMS["env"].get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    asked = 0
    for pipe in Path(pipes).parent.glob(f"{Path(pipes).name}*.pipe") if pipes else ():
        try:
            handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            continue
        os.write(handle, b"1")
        os.close(handle)
        asked += 1
    return asked


def dumps():
    """Newest state per rank, of files that this launch wrote."""
    found = {}
    for file in prefix().parent.glob(f"{prefix().name}*"):
        rank = file.name.removeprefix(prefix().name)
        stat = file.stat()
        if rank.isdigit() and stat.st_mtime >= BEGAN and stat.st_size <= DUMP_BYTES:
            found[int(rank)] = Plain(io.BytesIO(file.read_bytes())).load()
    return found


def progress(dump):
    """Per process group, the last collective this rank has entered: its number, name and state."""
    last = {}
    for entry in dump.get("entries", ()):
        if entry.get("is_p2p"):
            continue
        name, number = str(entry.get("process_group")), int(entry.get("collective_seq_id", -1))
        if number >= last.get(name, (-1,))[0]:
            last[name] = (number, str(entry.get("profiling_name")), str(entry.get("state")))
    return last


def compare(by_rank):
    """A line per process group in which a rank is behind, or all wait in the same collective."""
    reached = {rank: progress(dump) for rank, dump in by_rank.items()}
    for group in sorted({name for last in reached.values() for name in last}):
        seen = {rank: last[group] for rank, last in reached.items() if group in last}
        furthest = max(seen.values())
        behind = sorted(rank for rank, at in seen.items() if at[0] < furthest[0])
        ahead = ", ".join(str(rank) for rank in sorted(seen) if rank not in behind)
        if behind:
            ranks = ", ".join(map(str, behind))
            call = f"{furthest[1]} (number {furthest[0]})"
            yield f"rank {ranks} never entered {call}, in which rank {ahead} waits"
        elif furthest[2] != "completed":
            yield f"rank {ahead}: all are in {furthest[1]} (number {furthest[0]}, {furthest[2]})"


def report_recorder():
    asked, until = ask_for_dumps(), time.monotonic() + DUMP_S
    while asked and len(dumps()) < asked and time.monotonic() < until:
        time.sleep(0.2)
    for text in compare(dumps()):
        say(kind="flight recorder", text=text)


for what, report in (("NCCL RAS", report_ras), ("flight recorder", report_recorder)):
    try:
        report()
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        pickle.UnpicklingError,
    ) as problem:
        say(kind="not read", text=f"{what}: {problem}")
