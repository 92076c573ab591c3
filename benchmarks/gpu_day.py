"""Every GPU measurement of a plan, each in its lane, within the hours that a GPU host is to be had.

    PYTHON benchmarks/gpu_day.py PLAN.toml --out FOLDER [--set NAME=VALUE]… [--only JOB[,JOB]]
                                 [--again] [--list]

A plan's jobs start in their order as soon as what each `needs` (a GPU that it must have to itself, say) is
free and all that it comes `after` has ended, well or not. One that outlasts its `limit_s` is interrupted, and
ended half a minute later, as is what a job leaves behind. The output of each is FOLDER/log/JOB.log;
FOLDER/day.json says, after every change, how each ended. `{name}` in a command is a `--set` value or one of
the `[settings]`; {out} is FOLDER. A day that was cut goes on: what still runs of it is waited for, what was
done is not run again, and what failed or was cut only with --again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gpu_plan import Job, chosen, may_start, read_plan, timetable

from shakedown.host import procfs

GRACE_S = 30.0
LOOK_S = 0.5
ORDERS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
TELL_EVERY_S = 30.0
COLUMNS = "{:<24} {:<10} {:>8} {:>8}  {}"
DONE, FAILED, CUT, UNKNOWN = "done", "failed", "cut", "unknown"  # the last: nobody looked when it ended


@dataclass(slots=True, kw_only=True)
class Running:
    """`process` None: it was started by a scheduler that is no more, and its exit code stays unknown."""

    job: Job
    pid: int
    born: int | None
    process: subprocess.Popen[bytes] | None
    since_s: float
    told: int = 0  # of ORDERS
    until_s: float = field(init=False)
    cut: bool = False

    def __post_init__(self) -> None:
        self.until_s = self.since_s + self.job.limit_s


class Day:
    """`plan`: every job there is, for what still runs is waited for whatever was chosen of it."""

    def __init__(self, plan: Sequence[Job], chosen: Sequence[Job], out: Path, *, again: bool) -> None:
        self.out, self.file = out, out / "day.json"
        self.rows: dict[str, Any] = json.loads(self.file.read_text()) if self.file.is_file() else {}
        now = round(time.time(), 1)
        self.began = min((row["began"] for row in self.rows.values() if "began" in row), default=now)
        self.running: list[Running] = []
        self.stopping = False
        self.adopt({job.name: job for job in plan})
        ended = {name: row["ended"] for name, row in self.rows.items()}
        self.waiting = [
            job for job in chosen if job.name not in ended or (again and ended[job.name] not in (None, DONE))
        ]
        self.left_out = {
            job.name: ended[job.name]
            for job in chosen
            if job not in self.waiting and ended[job.name] not in (None, DONE)
        }

    def adopt(self, plan: Mapping[str, Job]) -> None:
        """What a scheduler before us did not see the end of. Raises ValueError for what is in no plan."""
        for name, row in self.rows.items():
            if row["ended"] is not None:
                continue
            if row["born"] is None or not procfs.is_alive(row["pid"], row["born"]):
                row |= {"ended": UNKNOWN, "code": None}
                if group_lives(row["pid"]):  # perhaps of another who was given this number since
                    self.say(name, "has ended", told=f"see what is left of it: ps -s {row['pid']}")
                continue
            if name not in plan:
                raise ValueError(
                    f"{name!r} still runs as process {row['pid']}, and this plan has no such job"
                )
            since_s = time.monotonic() - (time.time() - row["began"])
            told = {"pid": row["pid"], "born": row["born"], "since_s": since_s}
            self.running.append(Running(job=plan[name], process=None, **told))

    def run(self) -> None:
        (self.out / "log").mkdir(parents=True, exist_ok=True)
        for each in self.running:
            self.say(each.job.name, "still runs", told=f"process {each.pid}, started before")
        if self.left_out:
            told = ", ".join(f"{name} ({how})" for name, how in self.left_out.items())
            print(f"{len(self.left_out)} not run again without --again: {told}", flush=True)
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
        self.write()
        print("the day is over", flush=True)

    def start(self, job: Job) -> None:
        self.waiting.remove(job)
        with (self.out / "log" / f"{job.name}.log").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", job.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **job.env},
                start_new_session=True,
            )
        who: dict[str, Any] = {"pid": process.pid, "born": procfs.started_ticks(process.pid)}
        self.rows[job.name] = {"ended": None, **who, "began": round(time.time(), 1)}
        self.write()
        self.running.append(Running(job=job, process=process, since_s=time.monotonic(), **who))
        self.say(job.name, "started")

    def look_at(self, each: Running) -> None:
        now_s = time.monotonic()
        leads = each.born is not None and procfs.is_alive(each.pid, each.born)
        if not leads and not group_lives(each.pid):
            self.end(each)
            return
        if self.stopping:
            each.until_s = min(each.until_s, now_s)
        if not leads and not each.told:  # a shell's background jobs ignore the first order
            each.told, each.until_s = 1, now_s - GRACE_S
        if each.told < len(ORDERS) and now_s >= each.until_s + each.told * GRACE_S:
            each.cut |= leads
            with contextlib.suppress(ProcessLookupError):
                # Its number is still its own: it lives, or its group does, or we have not waited for it.
                os.killpg(each.pid, ORDERS[each.told])
            each.told += 1

    def end(self, each: Running) -> None:
        self.running.remove(each)
        code = each.process.wait() if each.process else None
        ended = CUT if each.cut else UNKNOWN if code is None else DONE if code == 0 else FAILED
        self.say(each.job.name, ended)
        row = self.rows[each.job.name]
        if self.stopping and each.cut:
            del self.rows[each.job.name]  # by us, not by its limit: it runs again when the day goes on
        else:
            at_s, seconds = row["began"] - self.began, time.monotonic() - each.since_s
            told = {"ended": ended, "code": code, "at_s": round(at_s, 1), "seconds": round(seconds, 1)}
            self.rows[each.job.name] = {**told, "began": row["began"]}
        self.write()

    def write(self) -> None:
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
        print(COLUMNS.format(name, what, f"{time.time() - self.began:.0f} s", took, told), flush=True)

    def stop(self, *_: object) -> None:
        self.stopping = True


def group_lives(number: int) -> bool:
    stats = map(procfs.read_stat, procfs.list_pids())
    return any(stat is not None and stat.group == number and not stat.is_dead for stat in stats)


def lock(out: Path) -> IO[str]:
    """One scheduler to a folder, as long as this stays open. Raises ValueError where another is at work."""
    out.mkdir(parents=True, exist_ok=True)
    file = (out / "day.lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        raise ValueError(f"another gpu_day.py is at work in {out}: process {file.read().strip()}") from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def show(jobs: Sequence[Job]) -> None:
    for name, (begin_s, end_s) in (times := timetable(jobs)).items():
        job = next(job for job in jobs if job.name == name)
        when = (f"{begin_s:.0f} s", f"{end_s:.0f} s")
        print(COLUMNS.format(name, ",".join(sorted(job.needs)), *when, job.command))
    print(f"over after {max(end_s for _, end_s in times.values()):.0f} s, as expected")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("plan", type=Path)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options.add_argument("--only", metavar="JOB[,JOB]")
    options.add_argument("--again", action="store_true", help="also what failed or was cut")
    options.add_argument("--list", action="store_true", help="print the expected times, start nothing")
    given = options.parse_args()
    out = given.out.absolute()
    try:
        plan = read_plan(given.plan, out, dict(each.split("=", 1) for each in given.set))
        jobs = chosen(plan, given.only)
        if given.list:
            show(jobs)
            return 0
        held = lock(out)
        day = Day(plan, jobs, out, again=given.again)
    except KeyError as missing:
        options.error(f"{given.plan} asks for --set {missing.args[0]}=…")
    except ValueError as problem:
        options.error(str(problem))
    for order in (signal.SIGINT, signal.SIGTERM):
        signal.signal(order, day.stop)
    with held:
        day.run()
    return 0 if all(day.rows.get(job.name, {}).get("ended") == DONE for job in jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
