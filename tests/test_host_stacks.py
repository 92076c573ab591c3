"""Native stacks of a process that waits for a GPU: in the driver, or reading the clock between two looks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shakedown.core import StackDump
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


def test_a_process_that_is_gone_has_none():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not isinstance(read_pointers(process.pid), StackDump)
