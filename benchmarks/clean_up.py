"""What a launch leaves behind however it ends, and who beside it is hurt.

    python benchmarks/clean_up.py [--runs 50] [--only CASE;…] [--without-cgroups]

Real processes, launched and ended by `shakedown` itself. Beside every run stands a bystander: the same
program, command line and user. The clean-up begins with Ctrl-C, with the kill of our tool, or with the first
statement of `shakedown stop`. Counted 2 s later: own processes left (those in uninterruptible sleep apart);
then the seconds until the last is gone, bystanders that died or were so much as stopped or woken, files of
/dev/shm that were ours and stay, and one that was not and does not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from shakedown import __version__
from shakedown.host import cgroup, procfs
from shakedown.host.reach import free_port

SERVER = Path(__file__).with_name("clean_up_server.py")
RESULTS = Path(__file__).with_name("results") / "clean_up.json"
ROLES = ("leader", "rank-0", "rank-1", "fled")
ALLOWED_S = 2.0
LONGEST_S = 60.0
SETTLE_S = 1.0  # between a family that stands and its end
POLL_S = 0.01
NOT_STARTED = 125  # the port was held
PIDFDS = "pidfds"
WAITING_STOP = """
import shakedown.cli.main, shakedown.jobs.stop
print("waiting", flush=True)
input()
shakedown.cli.main.main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One started server: its folder, whose name is that of its shared memory, and its processes by role."""

    folder: Path
    pids: Mapping[str, int]

    @property
    def shared(self) -> list[Path]:
        return [Path("/dev/shm") / f"{self.folder.name}-{part}" for part in ("all", "leader")]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one run showed. `left` and `stuck` are counts 2 s after the clean-up began."""

    gone_s: float
    left: int
    stuck: int
    hurt: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)


class Run:
    """One launch under `shakedown run`, with a folder and a ledger of its own."""

    def __init__(self, place: Path, command: list[str], options: tuple[str, ...]) -> None:
        self.place = place
        family = None
        while family is None:  # others on this machine take free ports as well
            self.folder = Path(tempfile.mkdtemp(prefix="clean-up-", dir=place))
            port = free_port()
            self.env = {**os.environ, **variables(self.folder, port)}
            self.tool = self.shakedown("run", "--port", str(port), *self._common, *options, "--", *command)
            family = stand_up(self.folder, lambda: self.tool.poll() == NOT_STARTED)
        self.family = family

    @property
    def _common(self) -> list[str]:
        return ["--ledger", str(self.folder / "state" / "ledger.db"), "--json"]

    def shakedown(self, *words: str) -> subprocess.Popen[str]:
        return self.start("-m", "shakedown", *words)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def prepare_stop(self) -> None:
        """`shakedown stop` of what the tool left running: imported already, and waiting for a line."""
        said = json.loads(self.tool.communicate(timeout=LONGEST_S)[0])
        self.tool = self.start("-c", WAITING_STOP, "stop", said.get("trial") or said["id"], *self._common)
        assert self.tool.stdout
        assert self.tool.stdout.readline() == "waiting\n"

    def stop(self) -> None:
        assert self.tool.stdin
        self.tool.stdin.write("now\n")
        self.tool.stdin.flush()

    def own(self) -> dict[int, str]:
        """Living processes of the server, by the folder in their environment, and our supervisor: states."""
        found = {}
        mark = f"CLEAN_UP_FOLDER={self.folder}\0".encode()
        supervisor = tuple(f"shakedown:{run.name}" for run in self.folder.glob("state/runs/*"))
        for pid in procfs.list_pids():
            if pid == self.tool.pid:
                continue
            try:
                ours = mark in Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            ours = ours or procfs.read_cmdline(pid)[-1:] in [[name] for name in supervisor]
            stat = procfs.read_stat(pid)
            if ours and stat and not stat.is_dead:
                found[pid] = stat.state
        return found


def variables(folder: Path, port: int) -> dict[str, str]:
    return {"CLEAN_UP_FOLDER": str(folder), "CLEAN_UP_PORT": str(port)}


def stand_up(folder: Path, refused: Callable[[], bool] = lambda: False) -> Family | None:
    until = time.monotonic() + LONGEST_S
    while not all((folder / role).exists() for role in ROLES):
        if refused():
            return None
        if time.monotonic() > until:
            raise SystemExit(f"the server in {folder} does not stand")
        time.sleep(POLL_S)
    return Family(folder=folder, pids={role: int((folder / role).read_text()) for role in ROLES})


# --- how a run is brought to its end ----------------------------------------------------------------------


def interrupt(run: Run) -> None:
    run.tool.send_signal(signal.SIGINT)


def kill_leader(run: Run) -> None:
    os.kill(run.family.pids["leader"], signal.SIGKILL)
    time.sleep(0.1)


def stop_rank(run: Run) -> None:
    os.kill(run.family.pids["rank-1"], signal.SIGSTOP)
    time.sleep(0.1)


def begin_storm(run: Run) -> None:
    for role in ("rank-0", "rank-1", "fled"):
        os.kill(run.family.pids[role], signal.SIGUSR1)
    time.sleep(0.2)


def kill_tool(run: Run) -> None:
    run.tool.kill()


def nothing(run: Run) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`before` makes the trouble, `end` begins the clean-up: from there on time counts.

    Only what is to be kept serves; the others are still loading.
    """

    end: Callable[[Run], None]
    before: Callable[[Run], None] = nothing
    flags: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        loading = () if "--keep" in self.options else ("--loading",)
        return [sys.executable, str(SERVER), *loading, *self.flags]


CASES = {
    "leader SIGKILLed": Case(before=kill_leader, end=interrupt),
    "a rank stopped": Case(before=stop_rank, end=interrupt),
    "double fork, setsid": Case(end=interrupt),
    "fork storm during the kill": Case(before=begin_storm, end=interrupt, flags=("--storm",)),
    "TERM ignored": Case(end=interrupt, flags=("--deaf",)),
    "our tool SIGKILLed": Case(end=kill_tool),
    "our tool SIGKILLed, TERM ignored": Case(end=kill_tool, flags=("--deaf",)),
    "--detach, then stop": Case(before=Run.prepare_stop, end=Run.stop, options=("--detach",)),
    "--keep, then stop": Case(before=Run.prepare_stop, end=Run.stop, options=("--keep",)),
}


# --- one run ----------------------------------------------------------------------------------------------


def one_run(case: Case, place: Path, bystander: Family) -> Outcome:
    before = snapshot(bystander)
    stranger = Path("/dev/shm") / f"{place.name}-foreign"
    stranger.write_text("not ours")
    inode = stranger.stat().st_ino
    run = Run(place, case.command, case.options)
    try:
        time.sleep(SETTLE_S)
        case.before(run)
        began = time.monotonic()
        case.end(run)
        outcome = watch_end(run, began)
        run.tool.communicate(timeout=LONGEST_S)
        after = snapshot(bystander)
        outcome.hurt = [f"{it}: {before[it]}, then {after[it]}" for it in ROLES if before[it] != after[it]]
        outcome.leaked = [path.name for path in run.family.shared if path.exists()]
        if not stranger.exists() or stranger.stat().st_ino != inode or stranger.read_text() != "not ours":
            outcome.hurt.append("the foreign file of /dev/shm")
        return outcome
    finally:  # also where we are told to end in the middle
        run.tool.kill()
        kill_all(run.own())
        for path in (*run.family.shared, stranger):
            path.unlink(missing_ok=True)


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def watch_end(run: Run, began: float) -> Outcome:
    """Until everything is gone, or past all patience: what is left then is killed and counts as left."""
    late: dict[int, str] | None = None
    while own := run.own():
        now = time.monotonic() - began
        if now >= ALLOWED_S and late is None:
            late = own
        if now > LONGEST_S:
            kill_all(own)
            break
        time.sleep(POLL_S)
    gone_s = time.monotonic() - began
    states = list((late or {}).values())
    return Outcome(gone_s=gone_s, left=len(states) - states.count("D"), stuck=states.count("D"))


def snapshot(family: Family) -> dict[str, tuple[int, str]]:
    """Identity and state of every bystander; a sleeper that runs for a moment is no change."""
    seen = {}
    for role, pid in family.pids.items():
        stat = procfs.read_stat(pid)
        state = "gone" if stat is None or stat.is_dead else "T" if stat.state in "Tt" else "lives"
        seen[role] = (stat.started_ticks if stat else 0, state)
    return seen


def start_bystander(case: Case, place: Path) -> Family:
    """The very command line of the runs; one of its ranks is stopped and must stay so."""
    folder = Path(tempfile.mkdtemp(prefix="clean-up-bystander-", dir=place))
    subprocess.Popen(
        case.command,
        env={**os.environ, **variables(folder, free_port())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    family = stand_up(folder)
    assert family
    os.kill(family.pids["rank-0"], signal.SIGSTOP)
    while snapshot(family)["rank-0"][1] != "T":
        time.sleep(POLL_S)
    return family


def end_bystander(family: Family) -> None:
    kill_all(family.pids.values())
    for path in family.shared:
        path.unlink(missing_ok=True)


def run_case(name: str, runs: int) -> list[Outcome]:
    case = CASES[name]
    with tempfile.TemporaryDirectory(prefix="clean-up-") as folder:
        place = Path(folder)
        bystander = start_bystander(case, place)
        try:
            return [one_run(case, place, bystander) for _ in range(runs)]
        finally:
            end_bystander(bystander)


# --- the table --------------------------------------------------------------------------------------------


def row(name: str, outcomes: list[Outcome]) -> str:
    seconds = [it.gone_s for it in outcomes]
    counts = [sum(it.left for it in outcomes), sum(it.stuck for it in outcomes)]
    counts += [sum(len(it.hurt) for it in outcomes), sum(len(it.leaked) for it in outcomes)]
    shown = "".join(f"{count:9d}" for count in counts)
    return f"{name:<34}{len(outcomes):5d}{statistics.median(seconds):9.2f}{max(seconds):9.2f}{shown}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--runs", type=int, default=50)
    options.add_argument("--only", help="cases, separated by semicolons")
    options.add_argument("--without-cgroups", action="store_true", help="as on a box that lets us make none")
    options.add_argument("--output", type=Path, default=RESULTS)
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # bystanders are ended first
    if chosen.without_cgroups and means() != PIDFDS:
        hide_cgroups()
    names = chosen.only.split(";") if chosen.only else list(CASES)
    print(
        f"shakedown {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, by {means()}"
    )
    head = "".join(f"{word:>9}" for word in ("median s", "max s", "left 2 s", "D state", "hurt", "shm left"))
    print(f"{'case':<34}{'runs':>5}{head}")
    found = {}
    for name in names:
        found[name] = run_case(name, chosen.runs)
        print(row(name, found[name]), flush=True)
    record(found, chosen.output)
    missed = [name for name, all_of in found.items() if any(it.left or it.hurt or it.leaked for it in all_of)]
    print(f"misses in: {'; '.join(missed)}" if missed else "no process left, nobody hurt, nothing leaked")
    sys.exit(bool(missed))


def means() -> str:
    """How a run is ended here: by a cgroup of its own where one can be made."""
    group = cgroup.make(f"clean-up-{os.getpid()}")
    if group is None:
        return PIDFDS
    cgroup.remove(group)
    return "cgroup.kill"


def hide_cgroups() -> None:
    """Goes on as another process, in whose mounts the cgroup-v2 tree is an empty folder. Only root can."""
    mounts = [line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    points = [before.split()[4] for before, _, after in mounts if after.startswith("cgroup2 ")]
    script = " && ".join([*(f"mount -t tmpfs none {point}" for point in points), 'exec "$@"'])
    os.execvp("unshare", ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, *sys.argv])


def record(found: Mapping[str, list[Outcome]], output: Path) -> None:
    document = json.loads(output.read_text()) if output.exists() else {}
    document |= {"shakedown": __version__, "python": platform.python_version(), "cores": os.cpu_count()}
    document |= {"kernel": platform.release(), "allowed_s": ALLOWED_S}
    cases = document.setdefault("ended_by", {}).setdefault(means(), {})
    for name, outcomes in found.items():
        cases[name] = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "load": round(os.getloadavg()[2], 1),  # of the last 15 minutes: seconds are its as well
            "runs": len(outcomes),
            "left": sum(it.left for it in outcomes),
            "uninterruptible": sum(it.stuck for it in outcomes),
            "hurt": [role for it in outcomes for role in it.hurt],
            "shm_left": [name for it in outcomes for name in it.leaked],
            "gone_s": sorted(round(it.gone_s, 2) for it in outcomes),
        }
    output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
