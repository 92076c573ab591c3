"""Native stacks of a process that waits for a GPU: in the driver, or reading the clock between two looks."""

from __future__ import annotations

import itertools
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from host_runs import wait_for

from shakedown.core import Missing, StackDump
from shakedown.host import procfs, stacks
from shakedown.host.pointers import read_pointers
from shakedown.host.stacks import dump_stacks
from shakedown.watch.stacks import awake_threads, main_frames, spins

# As the driver does: its functions are nameless, and it looks at a word of the GPU's, and at the clock.
DRIVER = """
#include <time.h>
static volatile long sink;
static __attribute__((noinline)) long look(int clock) {
  struct timespec t;
  for (;;) {
    if (clock) { clock_gettime(4, &t); sink += t.tv_nsec; }
    else for (volatile int i = 0; i < 1000; i++) sink += i;
    if (sink == 42424242) return sink;
  }
}
static __attribute__((noinline)) long wait_for(int clock) { return look(clock) + ++sink; }
long cuStreamSynchronize(int clock) { return wait_for(clock) + ++sink; }
"""
SERVED = """
import ctypes, sys, threading
def item(driver):
    print("waiting", flush=True)
    driver.cuStreamSynchronize(int(sys.argv[2]))
item(ctypes.CDLL(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    library = folder / "libcuda.so.580.159.04"
    words = ["cc", "-O1", "-fno-optimize-sibling-calls", "-shared", "-fPIC", "-s"]
    subprocess.run([*words, "-o", library, folder / "driver.c"], check=True, timeout=60)
    return library


@pytest.fixture
def waiting(driver, tmp_path):
    (tmp_path / "served.py").write_text(SERVED)
    begun = []

    def begin(*, clock: bool) -> int:
        words = [sys.executable, str(tmp_path / "served.py"), str(driver), str(int(clock))]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        begun.append(process)
        assert process.stdout
        assert process.stdout.readline() == "waiting\n"
        return process.pid

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("clock", [False, True], ids=["in the driver", "at the clock"])
def test_a_process_that_waits_in_the_driver_spins(waiting, clock):
    """Where the clock is read the unwinder fails, or tells only the clock: neither may hide the wait."""
    dump = dump_stacks(waiting(clock=clock), native=True)
    assert isinstance(dump, StackDump), dump
    assert all(spins(frames) for frames in awake_threads(dump).values())
    assert spins(main_frames(dump))


def test_an_instruction_pointer_tells_the_library(waiting, driver):
    dump = read_pointers(waiting(clock=False))
    assert isinstance(dump, StackDump), dump
    assert [(thread.name, thread.frames[0].file) for thread in dump.threads] == [("MainThread", driver.name)]


def test_an_instruction_pointer_in_the_c_library_is_on_its_way(waiting, driver):
    """Whoever reads the clock passes through it: what it waits in is told by another look."""
    pid = waiting(clock=True)
    for _ in range(20):
        dump = read_pointers(pid)
        assert isinstance(dump, StackDump), dump
        assert dump.threads[0].frames[0].file in (driver.name, "[vdso]")


COUNTS = """
import signal
got = 0
def count(number, frame):
    global got
    got += 1
    print(got, flush=True)
signal.signal(signal.SIGUSR1, count)
print("waiting", flush=True)
while True: pass
"""


def test_a_look_swallows_no_signal():
    """A thread may be stopped by a signal on its way to it; the look hands it on."""
    process = subprocess.Popen([sys.executable, "-c", COUNTS], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "waiting\n"
    looks = threading.Thread(target=lambda: [read_pointers(process.pid) for _ in range(20)])
    looks.start()
    try:
        for number in itertools.count(1):
            process.send_signal(signal.SIGUSR1)
            assert select.select([process.stdout], [], [], 10)[0], f"signal {number} was lost"
            assert process.stdout.readline() == f"{number}\n"
            if not looks.is_alive():
                break
    finally:
        process.kill()
        process.communicate()
        looks.join()


def test_a_process_that_is_gone_has_none():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not isinstance(read_pointers(process.pid), StackDump)


STUCK = """
import ctypes, os, sys, threading, time
def stick():
    time.sleep(0.3)
    opens = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=opens)
threading.Thread(target=stick, daemon=True).start()
ctypes.CDLL(sys.argv[2]).cuStreamSynchronize(0) if sys.argv[2:] else time.sleep(60)
"""


@pytest.mark.parametrize("busy", [False, True], ids=["others sleep", "others run"])
def test_a_process_with_a_thread_stuck_in_the_kernel_is_not_stopped(tmp_path, monkeypatch, driver, busy):
    """As in a driver's call or on a dead network disk: whoever stops all of it waits for that thread."""
    os.mkfifo(tmp_path / "never")
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path / 'asked'}\n")
    spy.chmod(0o755)
    monkeypatch.setattr(stacks, "lent_spy", spy)
    words = [sys.executable, "-c", STUCK, str(tmp_path / "never"), *([str(driver)] if busy else [])]
    process = subprocess.Popen(words)
    try:
        # In vfork until its child has opened the pipe, and with Python's one lock: the other waits for that.
        wait_for(lambda: sorted(procfs.thread_states(process.pid).values()) == ["D", "R" if busy else "S"])
        dump = dump_stacks(process.pid, native=True)
    finally:
        process.kill()
        with open(tmp_path / "never", "w"):
            process.wait()
    assert not (tmp_path / "asked").exists()
    if busy:
        assert isinstance(dump, StackDump), dump
        assert [thread.frames[0].file for thread in dump.threads] == [driver.name]
    else:
        assert isinstance(dump, Missing)
        assert dump.why.endswith("is in state D: not safe to stop it")
