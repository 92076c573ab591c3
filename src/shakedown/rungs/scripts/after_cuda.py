"""The GPU's own state of a hung process, where the launch allows it: a user-triggered CUDA core dump.

Given: `pids`, `env`, `age_s`. It dumps only where CUDA_ENABLE_USER_TRIGGERED_COREDUMP is set, and reads the
dump with cuda-gdb where that is installed.
"""

import re
import shutil
import socket
import subprocess
from pathlib import Path

BEGAN = time.time() - PARAMS["age_s"]
DUMP_S, READ_S = 40.0, 40.0
PIPE, CORE = "corepipe.cuda.%h.%p", "core_%t_%h_%p.nvcudmp"


def filled(pattern, pid, folder):
    name = pattern.replace("%h", socket.gethostname()).replace("%p", str(pid))
    return Path(folder) / name  # an absolute name stands for itself


def working_folder(pid):
    return os.readlink(f"/proc/{pid}/cwd")


def trigger(pid):
    """Whether a byte was taken: only a process with a CUDA context reads its pipe."""
    pipe = filled(PARAMS["env"].get("CUDA_COREDUMP_PIPE", PIPE), pid, working_folder(pid))
    try:
        handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    os.write(handle, b"1")
    os.close(handle)
    return True


def find_dump(pid):
    """The file once it has stopped growing; None if it never came."""
    pattern = PARAMS["env"].get("CUDA_COREDUMP_FILE", CORE)
    wanted = filled(pattern, pid, working_folder(pid))
    until, size = time.monotonic() + DUMP_S, -1
    while time.monotonic() < until:
        files = list(wanted.parent.glob(wanted.name.replace("%t", "*")))
        fresh = [it for it in files if it.stat().st_mtime >= BEGAN]
        if fresh and fresh[0].stat().st_size == size > 0:
            return fresh[0]
        size = fresh[0].stat().st_size if fresh else -1
        time.sleep(1.0)
    return None


def kernels_in(dump):
    words = ["cuda-gdb", "--batch", "-nx", "-ex", f"target cudacore {dump}", "-ex", "info cuda kernels"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=READ_S, stdin=subprocess.DEVNULL)
    rows = [
        line.strip() for line in done.stdout.splitlines() if re.search(r"\bActive\b|\(\d+,\d+,\d+\)", line)
    ]
    return [" ".join(row.split()) for row in rows]


if PARAMS["env"].get("CUDA_ENABLE_USER_TRIGGERED_COREDUMP") == "1":
    for pid in PARAMS["pids"]:
        try:
            if not trigger(pid):
                continue
            dump = find_dump(pid)
            if dump is None:
                say(kind="not read", text=f"CUDA core dump of {pid}: none within {DUMP_S:.0f} s", pid=pid)
                continue
            say(kind="CUDA core dump", text=f"{dump} ({size_words(dump.stat().st_size)})", pid=pid)
            for text in kernels_in(dump)[:4] if shutil.which("cuda-gdb") else ():
                say(kind="resident kernel", text=text, pid=pid)
        except (OSError, subprocess.TimeoutExpired) as problem:
            say(kind="not read", text=f"CUDA core dump of {pid}: {problem}", pid=pid)
