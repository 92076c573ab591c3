"""A Ray cluster to run trials on: one that is running, or a local one that ends with us.

It never signals a process of a cluster that it did not start. Ray is imported when a cluster is opened.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import shakedown
from shakedown.core import Launch, Run
from shakedown.errors import HostProblem, UsageError
from shakedown.host import procfs
from shakedown.host.local import LocalHost
from shakedown.host.reach import free_port
from shakedown.jobs.ray_task import Assignment, Returned, work

STARTING_S = 120.0  # it takes 5 s here, and 15 s on a machine where all cores are busy
ANSWER_S = 10.0
CANCEL_S = 60.0  # a healthy server has 15 s to end by itself
STORE_BYTES = 100 << 20  # trials send each other nothing
WAIT_S = 0.2
PREFIX, HEAD = "sd-ray-", "head"
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "USER")


class WorkerLost(Exception):
    """A worker or its node died in the middle of a trial. What it had started ends by itself."""


class Stopped(Exception):
    """The search ended while a trial was under way; it was cancelled and cleaned."""


class Cluster:
    """An open cluster. `run` may be called by several threads at once."""

    def __init__(self, ray: ModuleType, *, gpus: int, home: Home | None) -> None:
        self._ray, self.gpus, self._home = ray, gpus, home
        self.scratch = home.folder if home is not None else None  # it goes with the cluster
        self._stop = threading.Event()
        self._task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(work)

    def run(self, assignment: Assignment) -> Returned:
        """Raises `WorkerLost`, `Stopped`, or HostProblem where the workers cannot run a trial at all."""
        ray = self._ray
        reference = self._task.remote(assignment)
        while not ray.wait([reference], timeout=WAIT_S)[0]:
            if self._stop.is_set():
                ray.cancel(reference)
                ray.wait([reference], timeout=CANCEL_S)
                raise Stopped
        try:
            returned: Returned = ray.get(reference)
        except ray.exceptions.TaskCancelledError:
            raise Stopped from None
        except ray.exceptions.RayTaskError as problem:
            if isinstance(problem, ray.exceptions.TaskCancelledError):
                raise Stopped from None
            raise HostProblem(
                f"a Ray worker cannot run a trial: {last_line(problem)}",
                f"each node needs Shakedown {shakedown.__version__} in the Python that Ray runs there",
            ) from problem
        except ray.exceptions.RayError as problem:
            raise WorkerLost(last_line(problem)) from problem
        return returned

    def stop(self) -> None:
        """Trials under way are cancelled; each cleans up first."""
        self._stop.set()

    def close(self) -> None:
        self.stop()
        self._ray.shutdown()
        if self._home is not None:
            self._home.end()


class Home:
    """A local cluster under a supervisor of ours: all its processes end with us, and no others."""

    def __init__(self, slots: int) -> None:
        short = Path(tempfile.gettempdir())
        base = short if len(str(short)) <= 20 else Path("/tmp")  # Ray's sockets have 107 characters
        self._host = LocalHost()
        remove_dead(self._host, base)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        self.port = free_port()
        self._run: Run | None = None
        argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        argv += ["--node-ip-address=127.0.0.1", f"--port={self.port}", f"--num-cpus={slots}"]
        argv += ["--include-dashboard=false", "--disable-usage-stats"]
        argv += [f"--object-store-memory={STORE_BYTES}", f"--temp-dir={self.folder / 'ray'}"]
        # Of this cluster alone: who would use it needs its token, and has to come from this machine.
        self.private = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's word for: on the loopback address
        }
        self.launch = Launch(argv=tuple(argv), env={**worker_env(), **self.private}, cwd=Path("/"))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def begin(self) -> None:
        self._run = self._host.start(self.launch, self.folder / HEAD)
        until = time.monotonic() + STARTING_S
        while self._host.listener(self.port) is None:
            if self._host.exit_of(self._run) is not None or time.monotonic() > until:
                said = self._host.read_log(self._run, 0)[0].decode(errors="replace").strip().splitlines()
                raise HostProblem(
                    f"the local Ray cluster did not start: {said[-1] if said else 'it said nothing'}"
                )
            time.sleep(0.05)

    def end(self) -> None:
        if self._run is not None:
            self._host.end(self._run, grace_s=0.0)
        for name in self.private:
            os.environ.pop(name, None)
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_dead(host: LocalHost, base: Path) -> None:
    """Folders of local clusters whose search was killed; one whose supervisor lives is another search's."""
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(HostProblem, OSError):
            run = host.attach_run(folder / HEAD)
            if folder.stat().st_uid == os.getuid() and not procfs.is_alive(
                run.supervisor.pid, run.supervisor.started_ticks
            ):
                shutil.rmtree(folder, ignore_errors=True)


def open_cluster(address: str | None, *, slots: int, ranks: int, gpus: int | None) -> Cluster:
    """Joins the cluster at `address`, or starts a local one with room for `slots` trials.

    `gpus` of each launch; None: one for each of its `ranks`, where any node has one.
    Raises UsageError where a launch needs more GPUs than any node has, and HostProblem where the cluster
    cannot be reached.
    """
    if address is not None:
        require_answer(address)
    home = Home(slots) if address is None else None
    ray = None
    try:
        if home is not None:
            home.begin()
            os.environ.update(home.private)  # before Ray is imported, which reads them then
        ray = importlib.import_module("ray")
        join(ray, home.address if home is not None else str(address))
        return Cluster(ray, gpus=gpus_to_take(ray, ranks, gpus), home=home)
    except BaseException:
        if ray is not None and ray.is_initialized():
            ray.shutdown()
        if home is not None:
            home.end()
        raise


def require_answer(address: str) -> None:
    """Raises HostProblem where nobody listens: Ray itself would try for minutes."""
    try:
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except (OSError, ValueError) as problem:
        raise HostProblem(
            f"no Ray cluster answers at {address!r}: {problem}",
            "give the address that `ray start --head` printed, as HOST:PORT",
        ) from problem


def join(ray: ModuleType, address: str) -> None:
    """As a driver that says nothing."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # no GPUs asked: the launch's own stay
    try:
        with signals_kept():
            ray.init(address=address, log_to_driver=False, logging_level="critical", configure_logging=True)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as problem:
        raise HostProblem(
            f"the Ray cluster at {address} cannot be joined: {last_line(problem)}",
            "see whether it runs, with: ray status --address ADDRESS",
        ) from problem


def gpus_to_take(ray: ModuleType, ranks: int, gpus: int | None) -> int:
    """Raises UsageError where no node has as many: Ray would wait for one for ever."""
    nodes: list[Mapping[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    most = max((float(node["Resources"].get("GPU", 0.0)) for node in nodes), default=0.0)
    wanted = gpus if gpus is not None else ranks if most else 0
    if wanted > most:
        raise UsageError(
            f"each launch takes {wanted} GPUs, and no node of the Ray cluster has more than {most:g}",
            "say how many it takes with --gpus-per-launch",
        )
    return wanted


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for its own; here it cleans up as Ctrl-C does."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def worker_env() -> dict[str, str]:
    """What a local worker needs to run this very Shakedown; a launch brings its own environment."""
    root = str(Path(shakedown.__file__).parents[1])
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **env,
        "PYTHONPATH": os.pathsep.join(paths),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
    }


def last_line(problem: BaseException) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(problem).__name__
