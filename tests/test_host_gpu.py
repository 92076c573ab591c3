"""What our processes hold on the GPUs, by the real NVML bindings and a driver library that is a table."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shakedown.core import GpuUse, Launch, Missing
from shakedown.host import gpu
from shakedown.host.gpu import GpuReader
from shakedown.host.local import LocalHost
from shakedown.watch.gpus import describe_gpus

Table = Callable[..., None]
SOURCE = Path(__file__).parent / "nvml_stand_in.c"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """`table((gpu, pid, bytes), …)` sets what the driver says from now on."""
    rows, library = tmp_path / "rows", tmp_path / "libnvidia-ml.so.1"
    build = ["gcc", "-shared", "-fPIC", "-o", str(library), f'-DTABLE="{rows}"', str(SOURCE)]
    subprocess.run(build, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "_DRIVER", (str(library),))

    def write(*processes: tuple[int, int, int]) -> None:
        fresh = rows.with_suffix(".new")
        fresh.write_text("".join(f"{number} {pid} {used}\n" for number, pid, used in processes))
        fresh.replace(rows)

    write()
    return write


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate(b"\n")


def test_each_gpu_that_a_process_holds_is_told_apart(table: Table, sleeper: subprocess.Popen[bytes]) -> None:
    table((0, sleeper.pid, 5000), (1, sleeper.pid, 700), (1, 1, 33))
    uses = GpuReader().read([sleeper.pid])
    assert not isinstance(uses, Missing)
    assert [(use.gpu, use.used_bytes) for use in uses] == [(0, 5000), (1, 700)]
    assert {(use.busy_percent, use.memory_percent, use.power_w, use.clock_mhz) for use in uses} == {
        (87, 12, 300, 1980)
    }
    assert {use.utilisation_percent for use in uses} == {None}  # this driver does not tell it


def test_numbers_of_another_namespace_are_not_taken_for_ours(table: Table) -> None:
    table((0, 4_000_000, 5000))
    uses = GpuReader().read([4_000_000 + 1])
    assert isinstance(uses, Missing)
    assert "host's numbers" in uses.why


def test_a_driver_that_is_gone_is_a_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "_DRIVER", (str(tmp_path / "none"),))
    assert GpuReader().read([1]) == Missing(what="gpu", why="no NVIDIA driver")


def start(folder: Path) -> tuple[LocalHost, object, int]:
    host = LocalHost()
    launch = Launch(argv=(sys.executable, "-c", "import time; time.sleep(60)"), env={}, cwd=folder)
    run = host.start(launch, folder / "run")
    return host, run, run.leader.pid


def test_a_run_has_ended_when_its_gpu_memory_is_back(table: Table, tmp_path: Path) -> None:
    host, run, pid = start(tmp_path)
    table((0, pid, 5000), (0, 1, 77))
    given_back = threading.Timer(1.5, table, [(0, 1, 77)])
    given_back.start()
    began = time.monotonic()
    ending = host.end(run, grace_s=0.0)
    given_back.join()
    assert ending.gpu_back_s is not None
    assert (ending.gpu_left_bytes, ending.left) == (0, ())
    assert ending.seconds >= ending.gpu_back_s > 0
    assert time.monotonic() - began >= 1.4  # it was waited for


def test_memory_that_does_not_come_back_is_told(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shakedown.host.local._GPU_BACK_S", 0.3)
    host, run, pid = start(tmp_path)
    table((0, pid, 5000), (1, pid, 70))
    ending = host.end(run, grace_s=0.0)
    assert ending.gpu_left_bytes == 5070


def test_memory_that_was_back_at_once_is_told_too(table: Table, tmp_path: Path) -> None:
    """One H200: 100 GiB were no longer counted at the first look after the end."""
    host, run, pid = start(tmp_path)
    table((0, pid, 5000))
    host.gpu_use([pid])
    table()
    ending = host.end(run, grace_s=0.0)
    assert ending.gpu_back_s is not None
    assert ending.gpu_left_bytes == 0


def test_who_held_none_is_waited_for_by_nobody(table: Table, tmp_path: Path) -> None:
    host, run, _pid = start(tmp_path)
    table((0, 1, 5000))
    ending = host.end(run, grace_s=0.0)
    assert (ending.gpu_back_s, ending.gpu_left_bytes) == (None, 0)


@pytest.mark.parametrize(
    ("busy", "memory", "waits"),
    [(100, 0, True), (99, 2, False), (99, 89, False), (99, 25, False), (0, 0, False), (None, None, False)],
    ids=["endless", "load", "decode", "prefill", "idle", "not told"],
)
def test_a_kernel_that_touches_no_memory_only_waits(busy, memory, waits):
    """The rows of one H200's signatures."""
    use = GpuUse(
        pid=7, used_bytes=3 << 30, utilisation_percent=None, busy_percent=busy, memory_percent=memory
    )
    ((gpu, text),) = describe_gpus([use], {7: "scheduler"})
    assert (gpu, text.startswith("scheduler holds 3.0 GiB"), "only waits" in text) == (0, True, waits)
