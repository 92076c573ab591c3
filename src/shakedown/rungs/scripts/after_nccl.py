"""What NCCL and torch know of a collective that does not end: the RAS report and the flight recorder.

Given: `pids`, `env` (the variables of the launch that say where), `age_s`, how long ago the launch started.
"""

import io
import pickle
import socket
import tempfile
from pathlib import Path

BEGAN = time.time() - PARAMS["age_s"]
RAS_PORT, RAS_S = 28028, 12.0  # it waits 5 s itself for a rank that does not answer
SAID_S = 2.0  # without another word
KNOCKS, TAKEN_S = 16, 0.3
DUMP_S = 6.0
DUMP_BYTES = 256 << 20
SHOWN_LINES = 30
TOLD = ("dead", "mismatch", "incomplete", "error", "warning", "missing", "no issues", "unable")


# --- RAS: a text service in every process that holds a communicator ---------------------------------------


def sockets(wanted):
    """Inodes of the sockets of which (local port, remote port, state) are wanted."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, rows):
            local, remote = (int(each.rsplit(":", 1)[1], 16) for each in fields[1:3])
            if wanted(local, remote, fields[3]):
                yield fields[9]


def holds(pid, inodes):
    try:
        return any(os.readlink(entry.path)[8:-1] in inodes for entry in os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def is_ours(inodes):
    return any(holds(pid, inodes) for pid in PARAMS["pids"])


def knock(address):
    """A connection that one of ours has taken: all of one user's processes listen on the same port.

    Whose listener takes a connection is chance, and a stopped process never takes one.
    """
    host, _, port = address.rpartition(":")
    for _ in range(KNOCKS):
        line = socket.create_connection((host.strip("[]"), int(port)), timeout=RAS_S)
        if is_ours(takers(int(port), line.getsockname()[1])):
            return line
        line.close()
    return None


def takers(port, mine):
    """The other end of a connection, once somebody has taken it; an end that nobody took has no inode."""
    until = time.monotonic() + TAKEN_S
    while time.monotonic() < until:
        inodes = set(sockets(lambda local, remote, _: (local, remote) == (port, mine))) - {"0"}
        if inodes:
            return inodes
        time.sleep(0.01)
    return set()


def ask_ras(line):
    """All that was said until it hangs up; what it said so far where it does not come to an end."""
    said = b""
    line.sendall(b"verbose status\n")
    while len(said) < 1 << 20:
        line.settimeout(SAID_S if said else RAS_S)
        try:
            piece = line.recv(65536)
        except TimeoutError:
            if not said:
                raise
            break
        if not piece:
            break
        said += piece
    return said.decode(errors="replace")


def report_ras():
    address = PARAMS["env"].get("NCCL_RAS_ADDR") or f"localhost:{RAS_PORT}"
    if PARAMS["env"].get("NCCL_RAS_ENABLE") == "0":
        return
    port = int(address.rpartition(":")[2])
    inodes = set(sockets(lambda local, _, state: local == port and state == "0A"))
    if not inodes:
        return  # no communicator was made, or an NCCL before 2.24
    if not is_ours(inodes):
        say(
            kind="not read",
            text=f"NCCL RAS: {address} is held by another server; NCCL_RAS_ADDR would part them",
        )
        return
    line = knock(address)
    if line is None:
        say(
            kind="not read",
            text=f"NCCL RAS: none of ours took a call on {address}: stopped, or others listen there, too",
        )
        return
    with line:
        lines = [each.rstrip() for each in ask_ras(line).splitlines() if each.strip()]
    telling = [each for each in lines if any(word in each.lower() for word in TOLD)]
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
