"""Every GPU measurement of a plan, each in its lane, within the hours that a GPU host is to be had.

    python benchmarks/gpu_day.py PLAN.toml --out FOLDER [--set NAME=VALUE]… [--only JOB[,JOB]] [--list]

A plan's jobs start in their order as soon as what each `needs` (a GPU that it must have to itself, say) is
free and all that it comes `after` has ended, well or not. One that outlasts its `limit_s` is interrupted, and
ended half a minute later. The output of each is FOLDER/log/JOB.log; FOLDER/day.json says, after every change,
how each ended. `{name}` in a command is a `--set` value or one of the `[settings]`; {out} is FOLDER. What
ended before is not run again: a day that was cut goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GRACE_S = 30.0
LOOK_S = 0.5
ORDERS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
TELL_EVERY_S = 30.0
COLUMNS = "{:<24} {:<10} {:>8} {:>8}  {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str
    command: str
    limit_s: float
    needs: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Running:
    job: Job
    process: subprocess.Popen[bytes]
    since_s: float
    until_s: float
    told: int = 0  # of ORDERS


def read_plan(file: Path, settings: Mapping[str, str]) -> list[Job]:
    """Raises ValueError for a job that waits for one that is not in the plan, or is named twice."""
    told = tomllib.loads(file.read_text())
    values = {**told.get("settings", {}), **settings}
    jobs = [read_job(each, values) for each in told["job"]]
    names = [job.name for job in jobs]
    for number, job in enumerate(jobs):
        if job.name in names[:number]:
            raise ValueError(f"{file}: two jobs are named {job.name!r}")
        if unknown := job.after - set(names[:number]):
            raise ValueError(f"{file}: {job.name!r} waits for {sorted(unknown)}, which do not stand above it")
    return jobs


def read_job(told: Mapping[str, Any], values: Mapping[str, str]) -> Job:
    return Job(
        name=told["name"],
        command=" ".join(told["command"].split()).format_map(values),
        limit_s=float(told["limit_s"]),
        needs=frozenset(told.get("needs", ())),
        after=frozenset(told.get("after", ())),
        env={name: str(value).format_map(values) for name, value in told.get("env", {}).items()},
    )


def may_start(waiting: list[Job], running: list[Job]) -> Iterator[Job]:
    """What a job needs is kept for it once its turn has come, so that smaller jobs below do not starve it."""
    taken = frozenset[str]().union(*(job.needs for job in running))
    unended = {job.name for job in (*waiting, *running)}
    for job in waiting:
        if job.after & unended:
            continue
        if not job.needs & taken:
            yield job
        taken |= job.needs


class Day:
    def __init__(self, jobs: list[Job], out: Path) -> None:
        self.out, self.file = out, out / "day.json"
        self.rows: dict[str, Any] = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.began_s = time.monotonic()
        self.waiting = [job for job in jobs if job.name not in self.rows]
        self.running: list[Running] = []
        self.stopping = False

    def run(self) -> None:
        (self.out / "log").mkdir(parents=True, exist_ok=True)
        told_s = 0.0
        while self.running or (self.waiting and not self.stopping):
            if not self.stopping:
                for job in list(may_start(self.waiting, [each.job for each in self.running])):
                    self.start(job)
            for each in list(self.running):
                self.look_at(each)
            if time.monotonic() - told_s > TELL_EVERY_S:
                told_s = time.monotonic()
                self.tell()
            time.sleep(LOOK_S)

    def start(self, job: Job) -> None:
        self.waiting.remove(job)
        with (self.out / "log" / f"{job.name}.log").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", job.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **job.env},
                start_new_session=True,
            )
        now_s = time.monotonic()
        self.running.append(Running(job=job, process=process, since_s=now_s, until_s=now_s + job.limit_s))
        self.say(job.name, "started")

    def look_at(self, running: Running) -> None:
        code, now_s = running.process.poll(), time.monotonic()
        if code is not None:
            self.running.remove(running)
            ended = "cut" if running.told else "done" if code == 0 else "failed"
            self.say(running.job.name, ended)
            if not self.stopping:
                self.write(running, ended, code)
        elif running.told < len(ORDERS) and now_s > running.until_s + running.told * GRACE_S:
            os.killpg(
                running.process.pid, ORDERS[running.told]
            )  # not yet waited for: the number is still ours
            running.told += 1

    def write(self, running: Running, ended: str, code: int) -> None:
        self.rows[running.job.name] = {
            "ended": ended,
            "code": code,
            "at_s": round(running.since_s - self.began_s, 1),
            "seconds": round(time.monotonic() - running.since_s, 1),
        }
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(self.rows, indent=1) + "\n")
        fresh.replace(self.file)

    def tell(self) -> None:
        for each in self.running:
            log = self.out / "log" / f"{each.job.name}.log"
            last = log.read_bytes()[-400:].decode(errors="replace").replace("\r", "\n").split("\n")
            line = next((text.strip() for text in reversed(last) if text.strip()), "")
            self.say(each.job.name, "runs", seconds=time.monotonic() - each.since_s, told=line[:100])

    def say(self, name: str, what: str, *, seconds: float | None = None, told: str = "") -> None:
        took = "" if seconds is None else f"{seconds:.0f} s"
        print(COLUMNS.format(name, what, f"{time.monotonic() - self.began_s:.0f} s", took, told), flush=True)

    def stop(self, *_: object) -> None:
        self.stopping = True
        for each in self.running:
            each.until_s = min(each.until_s, time.monotonic())


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("plan", type=Path)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options.add_argument("--only", metavar="JOB[,JOB]")
    options.add_argument("--list", action="store_true", help="print the commands and start nothing")
    given = options.parse_args()
    settings = dict(each.split("=", 1) for each in given.set)
    try:
        jobs = read_plan(given.plan, {"out": str(given.out.absolute()), **settings})
    except KeyError as missing:
        options.error(f"{given.plan} asks for --set {missing.args[0]}=…")
    except ValueError as problem:
        options.error(str(problem))
    if given.only:
        wanted = set(given.only.split(","))
        jobs = [job for job in jobs if job.name in wanted]
    if given.list:
        for job in jobs:
            needs = ",".join(sorted(job.needs))
            print(COLUMNS.format(job.name, needs, "", f"{job.limit_s:.0f} s", job.command))
        return 0
    day = Day(jobs, given.out.absolute())
    for order in (signal.SIGINT, signal.SIGTERM):
        signal.signal(order, day.stop)
    day.run()
    return 0 if all(day.rows.get(job.name, {}).get("ended") == "done" for job in jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
