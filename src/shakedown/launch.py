"""Starting a launch and ending it: what is refused before, how gently it is stopped after.

It never watches and never judges.
"""

from __future__ import annotations

from pathlib import Path

from shakedown.core import Ending, Host, Judgement, Launch, Run, Verdict
from shakedown.engines import endable
from shakedown.errors import PortHeld

# SGLang needs 5-8 s to end by itself; a hung server ignored TERM in every case seen.
HEALTHY_GRACE_S = 15.0
CONTAINER_ID = "container.id"  # in the run folder
BROKEN = frozenset({Verdict.HUNG, Verdict.CRASHED})


def refuse_held_port(host: Host, port: int | None) -> None:
    """Raises `PortHeld` naming the holder: a foreign server would answer for ours."""
    holder = host.listener(port) if port else None
    if holder is None:
        return
    who = f"{holder.program} (pid {holder.pid})" if holder.pid else "another user's process"
    raise PortHeld(
        f"port {port} is already held by {who}; nothing was started",
        "give the launch another port, or end the holder yourself",
    )


def start(host: Host, launch: Launch, folder: Path, *, port: int | None) -> Run:
    """Starts the launch under a supervisor. Raises `PortHeld`, `HostProblem` or `UsageError`."""
    refuse_held_port(host, port)
    return host.start(endable(launch, folder / CONTAINER_ID), folder)


def stop(host: Host, run: Run, judgement: Judgement | None) -> Ending:
    """Ends everything the launch started: gently when it was healthy, at once when it was not."""
    broken = judgement is None or judgement.verdict in BROKEN or judgement.passed is not None
    return host.end(run, grace_s=0.0 if broken else HEALTHY_GRACE_S)
