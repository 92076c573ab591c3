"""A server that waits for a file lock is hung only where the lock's holder does nothing. Locks are real."""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from replaying import MIB, Script, process, run_until, stack, watch

from shakedown.core import Frame, Launch, LockHolder, Missing, Verdict, Wait
from shakedown.engines.generic import GENERIC
from shakedown.host.local import LocalHost
from shakedown.watch import Assessment, Limits, State, Watcher
from shakedown.watch.locks import Locks

HURRIED = Limits(quiet_s=1.0, suspect_s=3.0, round_s=0.5, rounds=2)
PATIENCE_S = 90.0  # of a test with a machine that is slow; nothing is asserted of it

# As filelock has it: a frame of this name, in a file of this name.
API = """
import fcntl, os, time

class BaseFileLock:
    def _poll_until_acquired(self, path):
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT)
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
            time.sleep(0.05)
"""
JIT = """
import sys
from filelock._api import BaseFileLock

def build():
    BaseFileLock()._poll_until_acquired(sys.argv[2])
"""
WAITER = """
import sys
sys.path.insert(0, sys.argv[1])
from PACKAGE.jit import build

build()
"""
HOLDER = """
import fcntl, subprocess, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
if sys.argv[2] == "works":  # as ninja does, in a child
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sys.stdin.read()
    child.kill()
sys.stdin.read()
"""

PACKAGE = f"kernels{uuid.uuid4().hex}"  # whoever runs these tests beside us holds locks, too
Hold = Callable[[Path, str], int]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """`hold(path, "works" or "rests")`: a process that holds the lock until the test is over."""
    holders = []

    def start(path: Path, manner: str) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-c", HOLDER, str(path), manner]
        holders.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert holders[-1].stdout.readline() == b"held\n"
        return holders[-1].pid

    yield start
    for holder in holders:
        holder.communicate()  # the end of its input


@pytest.fixture
def waiter(tmp_path: Path) -> Iterator[Callable[[Path], Watcher]]:
    """A launch that waits for the lock, below a frame of the package that compiles."""
    begun = []
    texts = {
        "filelock/__init__.py": "",
        "filelock/_api.py": API,
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/jit.py": JIT,
        "server.py": WAITER.replace("PACKAGE", PACKAGE),
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def start(path: Path) -> Watcher:
        host = LocalHost()
        argv = (sys.executable, str(tmp_path / "server.py"), str(tmp_path), str(path))
        run = host.start(Launch(argv=argv, env={}, cwd=tmp_path), tmp_path / "run")
        begun.append((host, run))
        return Watcher(host, run, GENERIC, limits=HURRIED)

    yield start
    for host, run in begun:
        host.end(run, grace_s=1.0)


def step_until(watcher: Watcher, condition: Callable[[Assessment], bool]) -> Assessment:
    until = time.monotonic() + PATIENCE_S
    while not condition(seen := watcher.step()):
        assert time.monotonic() < until, f"still {seen.state}: {seen.note or seen.judgement}"
        time.sleep(0.1)
    return seen


def test_who_waits_for_a_lock_whose_holder_compiles_is_quiet(tmp_path, hold, waiter):
    lock = tmp_path / "cache" / PACKAGE / "norm.lock"
    pid = hold(lock, "works")
    hold(tmp_path / "elsewhere" / "other.lock", "rests")
    watcher = waiter(lock)
    seen = step_until(watcher, lambda it: it.judgement is not None or it.quiet_s > 5 * HURRIED.suspect_s)
    assert (seen.judgement, seen.state) == (None, State.QUIET)
    assert f"waits for {lock}, which pid {pid} (python" in seen.note
    cut = watcher.cut("cut by the deadline")
    assert cut.verdict is Verdict.SLOW
    assert str(lock) in cut.cause


def test_who_waits_for_a_lock_whose_holder_does_nothing_is_hung(tmp_path, hold, waiter):
    lock = tmp_path / "cache" / PACKAGE / "norm.lock"
    pid = hold(lock, "rests")
    hold(tmp_path / "elsewhere" / "other.lock", "works")
    judgement = step_until(waiter(lock), lambda it: it.judgement is not None).judgement
    assert (judgement.verdict, judgement.wait) == (Verdict.HUNG, Wait.WAITING)
    assert f"waits for {lock}, held by pid {pid} (python" in judgement.cause
    assert judgement.cause.endswith(", which does nothing")
    assert [item.pid for item in judgement.evidence if item.kind == "lock"] == [pid]


def test_a_holder_is_told_with_the_work_of_its_children(tmp_path, hold):
    pid = hold(tmp_path / "lock", "works")

    def cpu_s() -> float:
        (found,) = (it for it in LocalHost().lock_holders() if it.path == str(tmp_path / "lock"))
        assert found.pid == pid
        return found.cpu_s

    before_s, until = cpu_s(), time.monotonic() + PATIENCE_S
    while cpu_s() < before_s + 0.5:
        assert time.monotonic() < until
        time.sleep(0.05)


# --- by script ---------------------------------------------------------------------------------------------

WAIT = (
    "_poll_until_acquired site-packages/filelock/_api.py:1236",
    "build site-packages/flashinfer/jit/core.py:313",
)
LOCK = "/home/me/.cache/flashinfer/90a/norm.lock"


def holder(pid: int = 77, path: str = LOCK, **changed) -> LockHolder:
    return replace(LockHolder(path=path, pid=pid, name="sglang::other", cpu_s=1.0, io_bytes=0), **changed)


class Locked(Script):
    """A launch that waits for a file lock from its tenth second on."""

    def __init__(self, holders: Callable[[float], tuple[LockHolder, ...] | Missing], seconds: int) -> None:
        super().__init__(
            lambda at_s: [process(rss_bytes=int(100 + 10 * min(at_s, 10)) * MIB)],
            stacks=lambda at_s, pid: stack(pid, *WAIT),
            seconds=seconds,
        )
        self._holders = holders

    def lock_holders(self) -> tuple[LockHolder, ...] | Missing:
        return self._holders(self._now_s)


def outcome(holders: Callable[[float], tuple[LockHolder, ...] | Missing], seconds: int) -> Assessment:
    host = Locked(holders, seconds)
    return run_until(host, watch(host), seconds - 1)


def test_a_holder_that_computes_or_writes_keeps_the_waiter_from_being_hung():
    for grown in ({"cpu_s": 0.5}, {"io_bytes": 100_000}):
        seen = outcome(lambda t, g=grown: (holder(**{k: type(v)(v * t) for k, v in g.items()}),), 600)
        assert (seen.judgement, seen.state) == (None, State.QUIET)
        assert seen.note == f"server waits for {LOCK}, which pid 77 (sglang::other) holds and works"


def test_a_wait_longer_than_any_compile_is_slow():
    judgement = outcome(lambda t: (holder(cpu_s=t),), 2600).judgement
    assert (judgement.verdict, judgement.wait) == (Verdict.SLOW, None)


def test_a_holder_that_stops_working_is_said():
    seen = outcome(lambda t: (holder(cpu_s=min(t, 200.0)),), 400)
    assert (
        seen.judgement.cause == f"server waits for {LOCK}, held by pid 77 (sglang::other), which does nothing"
    )
    assert seen.quiet_s > 200


@pytest.mark.parametrize("unseen", [(), Missing(what="file locks", why="scripted so")])
def test_a_holder_that_is_not_seen_is_waited_for_longer(unseen):
    assert outcome(lambda t: unseen, 150).judgement is None
    late = outcome(lambda t: unseen, 200)
    assert late.judgement.verdict is Verdict.HUNG
    assert "_poll_until_acquired (filelock/_api.py:1236)" in late.judgement.cause


def test_torchs_baton_is_no_such_lock():
    host = Locked(lambda t: (holder(cpu_s=t),), 100)
    host._stacks = lambda at_s, pid: stack(pid, "wait site-packages/torch/utils/file_baton.py:48")
    assert run_until(host, watch(host), 99).judgement.verdict is Verdict.HUNG


def test_of_several_locks_the_one_of_a_package_under_way_is_meant():
    locks, frames = Locks(), stack(1, *WAIT).threads[0].frames
    locks.feed([holder(5, "/home/me/.cache/uv/.lock"), holder(6)], 1.0)
    assert locks.wait_of(1, frames).pid == 6
    tvm = (frames[0], Frame(function="build", file="site-packages/tvm_ffi/cpp/extension.py", line=1))
    locks.feed([holder(5, "/home/me/.cache/tvm-ffi/a/lock"), holder(6)], 2.0)
    assert locks.wait_of(1, tvm).pid == 5
    torch = (*frames, Frame(function="no_grad", file="site-packages/torch/utils/_contextlib.py", line=1))
    locks.feed([holder(5, "/tmp/torchinductor_me/a.lock"), holder(6)], 3.0)
    assert locks.wait_of(1, torch).pid == 6
    locks.feed([holder(5, "/var/a.lock"), holder(6, "/var/b.lock")], 4.0)
    assert locks.wait_of(1, frames).pid is None
