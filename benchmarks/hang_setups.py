"""What makes a healthy start hard: cold caches, a throttled disk, little CPU, one core; and planted hangs.

It throttles the starts of this benchmark only, each in control groups of its own, removed afterwards.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fault_setups import NotMade, Stage, setup

PLANTED = Path(__file__).with_name("planted")
CPU, BLOCKS = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/blkio")
PERIOD_US = 100_000
LITTLE_CPU = (0.1, 0.2, 0.35)  # of a core, by seed
DISK_BYTES_PER_S = (30_000_000, 15_000_000, 8_000_000)
REMOVE_S = 20.0


@dataclass(slots=True, kw_only=True)
class HardStage(Stage):
    """A stage with what throttling needs. `groups` get the leader as it starts, `prefix` goes before argv."""

    seed: int
    engine_folder: Path
    groups: list[Path] = field(default_factory=list)
    prefix: list[str] = field(default_factory=list)


@setup
def cold_caches(stage: Stage) -> Iterator[None]:
    """Neither the files of engine and model in memory nor anything compiled before."""
    assert isinstance(stage, HardStage)
    stage.cache = stage.work / "cold-cache"
    stage.cache.mkdir()
    stage.env["VLLM_CACHE_ROOT"] = str(stage.cache)
    stage.env["TORCHINDUCTOR_CACHE_DIR"] = str(stage.cache / "inductor")
    stage.env["PYTHONDONTWRITEBYTECODE"] = "1"
    os.sync()  # what was written lately cannot be dropped
    for folder in (stage.engine_folder, stage.model.resolve()):
        forget(folder)
    yield


def forget(folder: Path) -> None:
    """Drops the files of a folder from the page cache; what others have mapped stays."""
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                file = os.open(os.path.join(place, name), os.O_RDONLY | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


@setup
def one_core(stage: Stage) -> Iterator[None]:
    assert isinstance(stage, HardStage)
    cores = sorted(os.sched_getaffinity(0))
    stage.prefix += ["taskset", "-c", str(cores[stage.seed % len(cores)])]
    yield


@setup
def little_cpu(stage: Stage) -> Iterator[None]:
    with quota(stage, LITTLE_CPU):
        yield


@setup
def half_cpu(stage: Stage) -> Iterator[None]:
    with quota(stage, (0.8,)):
        yield


@contextmanager
def quota(stage: Stage, shares: tuple[float, ...]) -> Iterator[None]:
    assert isinstance(stage, HardStage)
    with group(stage, CPU) as made:
        share = shares[stage.seed % len(shares)]
        (made / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (made / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * share)))
        yield


@setup
def slow_block_device(stage: Stage) -> Iterator[None]:
    assert isinstance(stage, HardStage)
    number = stage.engine_folder.stat().st_dev
    rate = DISK_BYTES_PER_S[stage.seed % len(DISK_BYTES_PER_S)]
    with group(stage, BLOCKS) as made:
        limit = f"{os.major(number)}:{os.minor(number)} {rate}"
        (made / "blkio.throttle.read_bps_device").write_text(limit)
        yield


@contextmanager
def group(stage: HardStage, controller: Path) -> Iterator[Path]:
    """A control group (version 1) that the launch is put into as it starts."""
    made = controller / f"shakedown-hangs-{os.getpid()}-{stage.work.name}"
    try:
        made.mkdir()
    except OSError as problem:
        raise NotMade(f"no control group under {controller}: {problem.strerror}") from None
    stage.groups.append(made / "cgroup.procs")
    try:
        yield made
    finally:
        until_s = time.monotonic() + REMOVE_S
        while (made / "cgroup.procs").read_text() and time.monotonic() < until_s:
            time.sleep(0.1)
        made.rmdir()


@setup
def one_compiler(stage: Stage) -> Iterator[None]:
    """Inductor compiles in the worker itself, one kernel after the other, with nothing kept of before."""
    stage.env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    stage.env["TORCHINDUCTOR_CACHE_DIR"] = str(stage.work / "inductor")
    stage.cache = stage.work / "compile-cache"
    stage.cache.mkdir()
    stage.env["VLLM_CACHE_ROOT"] = str(stage.cache)
    yield


@setup
def plant(stage: Stage) -> Iterator[None]:
    """The engine hangs as it opens its weights: PLANTED_HANG says how."""
    stage.env["PYTHONPATH"] = str(PLANTED)
    yield
    shutil.rmtree(PLANTED / "__pycache__", ignore_errors=True)
