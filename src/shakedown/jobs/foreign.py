"""A process that we did not start, as commands show it: its tree, owner, GPUs, ports and shared memory.

It never signals anything.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from shakedown.core import Command, GpuUse, Launch, Missing
from shakedown.engines import engine_named, identify, parse
from shakedown.errors import UsageError
from shakedown.host import foreign
from shakedown.host.foreign import ForeignProcess, Listening
from shakedown.host.machine import Machine
from shakedown.host.survey import Survey, look_at
from shakedown.jobs.reading import shipped_table
from shakedown.report.words import seconds_words

TITLES = (("vllm::", "vllm"), ("sglang::", "sglang"))  # what engines call their processes once argv is wiped
MOST_SHOWN = 40  # processes of a tree; a compile pool has hundreds


def require_process(pid: int, machine: Machine) -> ForeignProcess:
    """Raises UsageError for a number that no living process has."""
    process = machine.ask(foreign.find, pid)
    if process is None:
        raise UsageError(f"there is no process {pid}", "it may have ended; ps -ef lists what runs")
    return process


def survey(pid: int, machine: Machine) -> Survey | None:
    """All that is held by a process and its descendants; None where there is none."""
    found = machine.ask(look_at, pid)
    if found is None:
        return None
    return replace(found, gpus=machine.gpu_use([each.pid for each in found.tree]))


def command_of(process: ForeignProcess, engine: str | None, title_of: str = "") -> tuple[Command, list[str]]:
    """Its command as far as /proc still tells it, and what it does not tell."""
    notes = []
    argv = process.argv
    if isinstance(argv, Missing):
        notes.append(f"{argv.what} cannot be read: {argv.why}; {process.title!r} is all that is left")
        argv = ()
    env, cwd = process.env, process.cwd
    if isinstance(env, Missing):
        notes.append(f"{env.what} cannot be read: {env.why}")
        env = {}
    launch = Launch(argv=argv, env=env, cwd=Path("/") if isinstance(cwd, Missing) else cwd)
    chosen = engine_named(engine) if engine else identify(argv, env)
    if chosen.name == "generic" and engine is None:
        words = f"{process.title} {title_of}".lower()
        chosen = next((engine_named(name) for word, name in TITLES if word in words), chosen)
    return parse(launch, shipped_table(chosen), engine=chosen), notes


def survey_lines(found: Survey) -> list[str]:
    lines = [f"{'pid':>8}  {'user':<10} {'age':>10} {'cpu':>10} {'memory':>9}  state  name"]
    depth: dict[int, int] = {}
    for member in found.members[:MOST_SHOWN]:
        it = member.sample
        depth[it.pid] = depth.get(it.ppid, -1) + 1
        lines.append(
            f"{it.pid:>8}  {member.user:<10} {seconds_words(member.age_s):>10} {seconds_words(it.cpu_s):>10}"
            f" {size_words(it.rss_bytes):>9}  {it.state:<5}  {'  ' * depth[it.pid]}{it.name}"
        )
    if len(found.members) > MOST_SHOWN:
        lines.append(f"{'':>8}  and {len(found.members) - MOST_SHOWN} more")
    lines.append(f"owner    {', '.join(sorted({member.user for member in found.members}))}")
    lines.append(f"GPUs     {gpu_words(found.gpus)}")
    ports = (f"{shown_address(each)} (pid {each.pid})" for each in found.ports)
    lines.append(f"ports    {', '.join(ports) or 'none'}")
    shm = ", ".join(it.path for it in found.shm[:8])
    more = f" and {len(found.shm) - 8} more" if len(found.shm) > 8 else ""
    lines.append(f"/dev/shm {shm or 'nothing'}{more}")
    if found.run_id:
        lines.append(f"started by shakedown: `shakedown stop {found.run_id}` ends all of that run")
    return lines


def survey_document(found: Survey) -> dict[str, Any]:
    return {
        "pid": found.process.identity.pid,
        "tree": [
            {
                "pid": member.sample.pid,
                "ppid": member.sample.ppid,
                "name": member.sample.name,
                "state": member.sample.state,
                "user": member.user,
                "age_s": member.age_s,
                "cpu_s": member.sample.cpu_s,
                "rss_bytes": member.sample.rss_bytes,
            }
            for member in found.members
        ],
        "owner": found.process.user,
        "gpus": None
        if isinstance(found.gpus, Missing)
        else [{"pid": use.pid, "used_bytes": use.used_bytes} for use in found.gpus],
        "ports": [{"port": it.port, "address": it.address, "pid": it.pid} for it in found.ports],
        "shm": [it.path for it in found.shm],
        "run": found.run_id or None,
    }


def gpu_words(gpus: tuple[GpuUse, ...] | Missing) -> str:
    if isinstance(gpus, Missing):
        return f"not known: {gpus.why}"
    return ", ".join(f"pid {use.pid} holds {size_words(use.used_bytes)}" for use in gpus) or "none held"


def shown_address(it: Listening) -> str:
    return f"[{it.address}]:{it.port}" if ":" in it.address else f"{it.address}:{it.port}"


def size_words(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
