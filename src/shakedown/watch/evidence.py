"""Puts into words what the log and the last movement say of a launch.

It never reads anything, and leaves the processes to their readings.
"""

from __future__ import annotations

from collections.abc import Iterator

from shakedown.core import Evidence
from shakedown.watch.proc import Progress
from shakedown.watch.survived import Told

PLACES_TOLD = 12  # of a traceback, innermost first


def first_evidence(told: Told, progress: Progress | None, progress_s: float) -> Iterator[Evidence]:
    """The most telling: the first error, then the last movement. An earlier one explains little."""
    error, earlier = told.error, told.earlier
    if error is not None:
        yield Evidence(kind="log", text=error.text, at_s=error.at_s, pid=error.pid)
        if error.places:
            places = ", ".join(map(_in_package, error.places[:PLACES_TOLD]))
            yield Evidence(kind="traceback", text=places, at_s=error.at_s, pid=error.pid)
    if progress is not None:
        text = f"last hard progress: {spoken(progress)}"
        yield Evidence(kind="progress", text=text, at_s=progress_s, pid=progress.pid)
    if earlier is not None:
        yield Evidence(kind="log", text=f"earlier: {earlier.text}", at_s=earlier.at_s, pid=earlier.pid)


def spoken(progress: Progress) -> str:
    return f"{progress.signal} ({progress.name or 'the launch'})"


def _in_package(place: str) -> str:
    """ "load (/usr/lib/python3/site-packages/vllm/a/b.py" as "load (vllm/a/b.py)": where it is installed says
    nothing of the failure, and may be called anything."""
    function, _, file = place.partition(" (")
    return f"{function} ({'/'.join(file.rpartition('-packages/')[2].split('/')[-3:])})"
