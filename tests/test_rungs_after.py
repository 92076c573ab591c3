"""What is left to look at once a launch has failed: each script on what it would find there, planted."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shakedown.core import Execution, GpuUse, Missing
from shakedown.jobs.afterwards import holds_gpu
from shakedown.rungs import AFTERWARDS, parameters, read_evidence, script_text


def look(name: str, **told: Any) -> list[tuple[str, str]]:
    given = {"pids": [], "env": {}, "age_s": 3600.0, **told}
    done = subprocess.run(
        [sys.executable, "-"],
        input=script_text(name),
        env={**os.environ, **parameters(given)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    script = next(each for each in AFTERWARDS if each.name == name)
    execution = Execution(
        code=done.returncode, stdout=done.stdout, stderr=done.stderr, timed_out=False, seconds=0.0
    )
    return [(seen.kind, seen.text) for seen in read_evidence(script, execution, 1.0)]


# --- the kernel's log -------------------------------------------------------------------------------------


@pytest.fixture
def kernel_log():
    try:
        handle = os.open("/dev/kmsg", os.O_WRONLY)
    except OSError:
        pytest.skip("the kernel's log cannot be written here")
    yield lambda text: os.write(handle, f"<3>{text}\n".encode())
    os.close(handle)


def test_an_xid_of_ours_is_evidence_and_that_of_a_stranger_is_none(kernel_log):
    ours, strange = 3_999_001, 3_999_002
    kernel_log(f"NVRM: Xid (PCI:0000:0f:00): 31, pid={ours}, name=python3, Ch 00000008, MMU Fault")
    kernel_log(f"NVRM: Xid (PCI:0000:1f:00): 43, pid={strange}, name=python3, Ch 00000010")
    kernel_log(f"Out of memory: Killed process {ours} (VLLM::EngineCor) total-vm:1kB")
    kernel_log(f"Out of memory: Killed process {strange} (chrome) total-vm:1kB")
    kernel_log("usb 1-1: a new device")
    seen = look("after_kernel", pids=[ours], age_s=1.0)
    assert [kind for kind, _ in seen] == ["kernel log"] * 2
    assert "Xid (PCI:0000:0f:00): 31" in seen[0][1]
    assert "VLLM::EngineCor" in seen[1][1]
    assert look("after_kernel", pids=[ours], age_s=-60.0) == []  # a later launch has no part in it


def test_nothing_in_the_log_is_nothing_said(kernel_log):
    kernel_log("eth0: link up")
    assert look("after_kernel", pids=[1], age_s=0.0) == []


KILLED = """
import os, time
time.sleep(1.5)
with open("/dev/kmsg", "w") as log: log.write(f"<3>Out of memory: Killed process {os.getpid()} (me)\\n")
os.kill(os.getpid(), 9)
"""


def test_the_kernels_word_stands_in_the_verdict(kernel_log, shakedown):
    said = shakedown("run", launch=[sys.executable, "-c", KILLED])
    assert said.document["verdict"] == "crashed"
    (seen,) = [each for each in said.document["evidence"] if each["kind"] == "kernel log"]
    assert "Out of memory: Killed process" in seen["text"]


# --- NCCL's own report ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "looks"),
    [
        (Missing(what="gpu", why="no NVIDIA driver"), False),
        (Missing(what="gpu", why="the driver names processes by the host's numbers"), True),
        ((), False),
        ((GpuUse(pid=7, used_bytes=1, utilisation_percent=None),), True),
    ],
)
def test_a_gpu_that_cannot_be_asked_is_looked_at_all_the_same(told, looks):
    launch = SimpleNamespace(host=SimpleNamespace(gpu_use=lambda pids: told), pids=(7,))
    assert holds_gpu(launch) is looks


REPORT = """NCCL version 2.27.3
Job summary
Group  Comms Nodes Ranks Status  Errors
0      1     1     2     RUNNING MISMATCH
Warnings
Communicator ranks have different collective operation counts: rank 0 has launched 12, rank 1 11 - MISMATCH
"""
SERVER = """
import socket, sys, time
door = socket.create_server(("127.0.0.1", int(sys.argv[1])), reuse_port=True); print("up", flush=True)
while True:
    line, _ = door.accept(); asked = line.recv(100)
    if asked == b"verbose status\\n":
        line.sendall(sys.argv[2].encode()); time.sleep(float(sys.argv[3]))
    line.close()
"""


@pytest.fixture
def listen(port):
    """Starts processes that listen for NCCL on one port, as all of one user do."""
    servers = []

    def begin(report: str = REPORT, hangs_up_after_s: float = 0.0) -> int:
        words = [sys.executable, "-c", SERVER, str(port), report, str(hangs_up_after_s)]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        servers.append(server)
        assert server.stdout
        assert server.stdout.readline() == "up\n"
        return server.pid

    yield begin
    for server in servers:
        server.kill()
        server.communicate()


@pytest.fixture
def address(port):
    return f"127.0.0.1:{port}"


def ask_nccl(address: str, *pids: int) -> list[tuple[str, str]]:
    return look("after_nccl", pids=list(pids), env={"NCCL_RAS_ADDR": address})


def test_the_lines_of_its_report_that_tell_are_kept(listen, address):
    seen = ask_nccl(address, listen())
    assert [kind for kind, _ in seen] == ["NCCL RAS"] * 4
    assert "rank 1 11 - MISMATCH" in seen[-1][1]


def test_a_report_of_another_server_is_not_asked_for(listen, address):
    listen()
    ((kind, text),) = ask_nccl(address, os.getpid())
    assert (kind, "another server" in text) == ("not read", True)


def test_of_many_listeners_on_one_port_one_of_ours_is_asked(listen, address):
    strangers = [listen("a stranger's report: no issues found\n") for _ in range(3)]
    ours = listen()
    seen = ask_nccl(address, ours)
    assert strangers
    assert "rank 1 11 - MISMATCH" in seen[-1][1]


def test_a_listener_that_is_stopped_is_passed_over(listen, address):
    stopped, other = listen(), listen()
    os.kill(stopped, signal.SIGSTOP)
    assert "MISMATCH" in ask_nccl(address, stopped, other)[-1][1]


def test_one_that_takes_no_call_is_left(port, address):
    with socket.create_server(("127.0.0.1", port)):
        ((kind, text),) = ask_nccl(address, os.getpid())
    assert (kind, "none of ours took a call" in text) == ("not read", True)


def test_what_was_said_counts_where_nobody_hangs_up(listen, address):
    assert "MISMATCH" in ask_nccl(address, listen(hangs_up_after_s=30.0))[-1][1]


# --- torch's flight recorder ------------------------------------------------------------------------------


def entry(number: int, state: str) -> dict[str, Any]:
    return {
        "process_group": ("0", "tp"),
        "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce",
        "state": state,
        "is_p2p": False,
    }


def write_dump(prefix: Path, rank: int, *entries: dict[str, Any]) -> None:
    Path(f"{prefix}{rank}").write_bytes(pickle.dumps({"version": "2.9", "entries": list(entries)}))


def test_the_rank_that_never_came_is_named(tmp_path):
    prefix = tmp_path / "trace_"
    write_dump(prefix, 0, entry(11, "completed"), entry(12, "started"))
    write_dump(prefix, 1, entry(11, "completed"))
    write_dump(prefix, 2, entry(11, "completed"), entry(12, "scheduled"))
    seen = look("after_nccl", env={"TORCH_FR_DUMP_TEMP_FILE": str(prefix)})
    text = "rank 1 never entered nccl:all_reduce (number 12), in which rank 0, 2 waits"
    assert seen == [("flight recorder", text)]


def test_a_dump_of_an_earlier_launch_says_nothing(tmp_path):
    prefix = tmp_path / "trace_"
    write_dump(prefix, 0, entry(12, "started"))
    assert look("after_nccl", env={"TORCH_FR_DUMP_TEMP_FILE": str(prefix)}, age_s=-5.0) == []


class Bomb:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return (os.system, (f"touch {self.file}",))


def test_a_dump_that_asks_for_code_is_refused_and_not_run(tmp_path):
    Path(f"{tmp_path}/trace_0").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    ((kind, text),) = look("after_nccl", env={"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_"})
    assert (kind, "asks for" in text, (tmp_path / "ran").exists()) == ("not read", True, False)


# --- a CUDA core dump -------------------------------------------------------------------------------------

HOLDER = """
import os, sys, time
pipe, core = sys.argv[1].replace("%p", str(os.getpid())), sys.argv[2].replace("%p", str(os.getpid()))
os.mkfifo(pipe); print("up", flush=True)
with open(pipe, "rb") as asked: asked.read(1)
for size in range(3):
    with open(core, "ab") as dump: dump.write(b"x" * 1000)
    time.sleep(0.3)
time.sleep(60)
"""
READER = '#!/bin/sh\necho "* 0 - 0 1 Active 0x1 (132,1,1) (128,1,1) wait_for_peer"\n'


def test_a_dump_is_asked_for_only_where_the_launch_allows_it(tmp_path, monkeypatch):
    (tmp_path / "cuda-gdb").write_text(READER)
    (tmp_path / "cuda-gdb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    pipe, core = tmp_path / "pipe.%p", tmp_path / "core.%p"
    words = [sys.executable, "-c", HOLDER, str(pipe), str(core)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    env = {"CUDA_COREDUMP_PIPE": str(pipe), "CUDA_COREDUMP_FILE": str(core)}
    try:
        assert look("after_cuda", pids=[process.pid, os.getpid()], env=env) == []
        env["CUDA_ENABLE_USER_TRIGGERED_COREDUMP"] = "1"
        dumped, resident = look("after_cuda", pids=[process.pid, os.getpid()], env=env)
    finally:
        process.kill()
        process.communicate()
    assert dumped == ("CUDA core dump", f"{tmp_path}/core.{process.pid} (3 KiB)")
    assert resident == ("resident kernel", "* 0 - 0 1 Active 0x1 (132,1,1) (128,1,1) wait_for_peer")


# --- what a script says is untrusted ----------------------------------------------------------------------


def test_a_script_that_breaks_off_is_told_as_not_read():
    script = AFTERWARDS[0]
    cut = Execution(code=None, stdout='{"kind": 3}\n{"kind', stderr="", timed_out=True, seconds=5.0)
    (seen,) = read_evidence(script, cut, 2.0)
    assert (seen.kind, seen.at_s) == ("not read", 2.0)
    good = json.dumps({"kind": "kernel log", "text": "x" * 5000, "after_s": 7})
    (seen,) = read_evidence(
        script, Execution(code=0, stdout=good, stderr="", timed_out=False, seconds=0.1), 2.0
    )
    assert (seen.at_s, len(seen.text)) == (7.0, 600)
