"""How many launches of a search may run at once, and on which cluster.

It starts nothing, and does not import Ray.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass

from shakedown.errors import UsageError
from shakedown.jobs.request import LaunchRequest

HINT = "pip install 'llm-shakedown[ray]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """`address` None: a local Ray cluster of ours. `gpus_per_launch` None: one for each rank."""

    workers: int
    address: str | None = None
    gpus_per_launch: int | None = None


def require_fit(fleet: Fleet, request: LaunchRequest) -> None:
    """Raises UsageError for a search whose launches must not run beside each other, or not there."""
    if request.host is not None or request.via is not None:
        raise UsageError(
            "--executor ray launches on the nodes of the cluster: give no --host or --via with it"
        )
    if request.expect and fleet.workers > 1:
        raise UsageError(
            "a mark is measured with nothing beside it: --expect goes with one worker",
            "leave --executor out, or give --workers 1",
        )
    if request.ready_url is not None and fleet.workers > 1:
        raise UsageError(
            "launches that run at once have a port each, and --ready-url names one for all of them",
            "give --port in its place, or --ready-log",
        )
    if importlib.util.find_spec("ray") is None:
        raise UsageError(f"--executor ray needs the package ray, which {sys.executable} has not", HINT)
