"""What tests of whole commands share: the program as a user starts it, on ledgers of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout
from hypothesis import settings

from shakedown.host.reach import free_port

settings.register_profile("any machine", deadline=None)  # a slow one fails no test
settings.load_profile("any machine")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # run in a shell's background: what we start must obey
    signal.signal(signal.SIGINT, signal.default_int_handler)


ENGINE_LIMIT_S = 1800  # a start and a few answers take minutes on two slow cores


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("engine") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(ENGINE_LIMIT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[object]:
    """No test finds what another left in this process.

    A command ends by ignoring interrupts, and libraries leave variables that the next launch would inherit.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    variables = dict(os.environ)
    try:
        return (yield)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[object]:
    """A second try has its time limit, too: the clock of the first has stopped."""
    if getattr(item, "execution_count", 1) > 1:
        limits = pytest_timeout._get_item_settings(item)
        item.config.pluginmanager.hook.pytest_timeout_cancel_timer(item=item)
        item.config.pluginmanager.hook.pytest_timeout_set_timer(item=item, settings=limits)
    return (yield)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one command printed, and its exit code."""

    code: int
    document: dict[str, Any]
    stderr: str


Shakedown = Callable[..., Said]


@pytest.fixture
def shakedown(tmp_path: Path) -> Shakedown:
    """`shakedown(command, *options, launch=argv, env=changes)`, with --json and a ledger in tmp_path."""

    def run(
        *words: str, launch: Sequence[str] = (), env: Mapping[str, str] | None = None, timeout_s: float = 1500
    ) -> Said:
        argv = [sys.executable, "-m", "shakedown", *words, "--ledger", str(tmp_path / "ledger.db"), "--json"]
        done = subprocess.run(
            [*argv, "--", *launch] if launch else argv,
            env={**os.environ, **(env or {})},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
        assert done.stdout, done.stderr
        return Said(code=done.returncode, document=json.loads(done.stdout), stderr=done.stderr)

    return run


@pytest.fixture
def port() -> int:
    return free_port()
