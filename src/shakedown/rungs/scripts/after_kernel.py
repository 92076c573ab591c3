"""What the kernel's log says of the launch: GPU errors (Xid), the OOM killer, a segmentation fault.

Given: `pids`, and `age_s`, how long ago the launch started: this machine's own clocks say when that was.
"""

import re

GPU = re.compile(r"NVRM: (Xid|GPU|rm_init)|fallen off the bus|nvidia-.*error", re.I)
PROCESS = re.compile(r"(Out of memory|oom-kill|Killed process|segfault at|general protection|traps:)", re.I)
PID = re.compile(r"(?:pid=|process |task=\S+,pid=|\[)'?(\d+)")
SHOWN = 8
SLACK_S = 5.0  # the log's clock and ours drift apart over weeks


def records():
    """(seconds since boot, text) of every record; reading past the end never waits."""
    handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(handle, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:  # overwritten while we read: the next one is whole
                continue
            head, _, text = record.decode(errors="replace").partition(";")
            yield int(head.split(",")[2]) / 1e6, text.split("\n")[0]
    finally:
        os.close(handle)


def concerns(text, ours):
    """A line about a process counts if it is ours; one about a GPU also where it names none."""
    named = {int(pid) for pid in PID.findall(text)}
    if GPU.search(text):
        return not named or bool(named & ours) or "Xid" not in text
    return bool(PROCESS.search(text) and named & ours)


try:
    ours, began_s = set(PARAMS["pids"]), time.monotonic() - PARAMS["age_s"]
    lines = [(at, text) for at, text in records() if at >= began_s - SLACK_S and concerns(text, ours)]
    for at, text in lines[:SHOWN]:
        say(kind="kernel log", text=text, after_s=max(0.0, at - began_s))
except OSError as problem:
    say(kind="not read", text=f"kernel log: {problem.strerror}")
