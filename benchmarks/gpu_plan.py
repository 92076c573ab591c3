"""A plan of GPU measurements: its jobs, what each needs and waits for, and when each is expected.

It starts nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`takes_s`: as long as it is expected to run; nothing is decided by it."""

    name: str
    command: str
    limit_s: float
    takes_s: float
    needs: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)


def read_plan(file: Path, out: Path, settings: Mapping[str, str]) -> list[Job]:
    """Raises ValueError for a job that waits for one that is not above it, or is named twice, and for a
    setting that names nothing; KeyError for a setting that is asked for and not given."""
    told = tomllib.loads(file.read_text())
    values = with_whole_paths({**told.get("settings", {}), **settings}) | {"out": str(out)}
    jobs = [read_job(each, values) for each in told["job"]]
    names = [job.name for job in jobs]
    for number, job in enumerate(jobs):
        if job.name in names[:number]:
            raise ValueError(f"{file}: two jobs are named {job.name!r}")
        if unknown := job.after - set(names[:number]):
            raise ValueError(f"{file}: {job.name!r} waits for {sorted(unknown)}, which do not stand above it")
    return jobs


def with_whole_paths(settings: Mapping[str, Any]) -> dict[str, str]:
    """What is there as a file or folder by its whole path: jobs go to other folders before they use it."""
    values = {name: str(value) for name, value in settings.items()}
    for name, value in values.items():
        path = Path(value).expanduser()
        if value and path.exists():
            values[name] = str(path.absolute())
        elif "/" in value:
            raise ValueError(f"{name}={value}: there is no such file or folder, seen from {Path.cwd()}")
    return values


def read_job(told: Mapping[str, Any], values: Mapping[str, str]) -> Job:
    return Job(
        name=told["name"],
        command=" ".join(told["command"].split()).format_map(values),
        limit_s=float(told["limit_s"]),
        takes_s=float(told.get("takes_s", told["limit_s"])),
        needs=frozenset(told.get("needs", ())),
        after=frozenset(told.get("after", ())),
        env={name: str(value).format_map(values) for name, value in told.get("env", {}).items()},
    )


def chosen(plan: Sequence[Job], only: str | None) -> list[Job]:
    """Raises ValueError for a name that no job has."""
    wanted = set(only.split(",")) if only else {job.name for job in plan}
    if unknown := wanted - {job.name for job in plan}:
        raise ValueError(f"no job is named {', '.join(sorted(unknown))}")
    return [job for job in plan if job.name in wanted]


def may_start(waiting: Sequence[Job], running: Sequence[Job]) -> Iterator[Job]:
    """What a job needs is kept for it once its turn has come, so that smaller jobs below do not starve it."""
    taken = frozenset[str]().union(*(job.needs for job in running))
    unended = {job.name for job in (*waiting, *running)}
    for job in waiting:
        if job.after & unended:
            continue
        if not job.needs & taken:
            yield job
        taken |= job.needs


def timetable(jobs: Sequence[Job]) -> dict[str, tuple[float, float]]:
    """When each job begins and ends if each takes as long as expected."""
    waiting, ends, found, now_s = list(jobs), dict[str, float](), dict[str, tuple[float, float]](), 0.0
    while waiting or ends:
        for job in list(may_start(waiting, [job for job in jobs if job.name in ends])):
            waiting.remove(job)
            ends[job.name] = now_s + job.takes_s
            found[job.name] = (now_s, ends[job.name])
        now_s = min(ends.values())
        ends = {name: end_s for name, end_s in ends.items() if end_s > now_s}
    return found
