"""How a run is brought down from outside its supervisor, alive or dead.

It never signals a process that is not provably of the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from shakedown.core import Identity, ProcessSample, Run
from shakedown.host import cgroup, procfs
from shakedown.host.container import ContainerRun
from shakedown.host.family import Family
from shakedown.host.ladder import bring_down
from shakedown.host.shm import sweep
from shakedown.host.state import ContainerState, RunState, write_state

_AFTER_GRACE_S = 30.0  # the ladder's own limits add up to less
_POLL_S = 0.02


def ask_supervisor(run: Run, grace_s: float, *, told: bool) -> None:
    """SIGTERM, and where it was not `told` the patience a second one when that is over; wait for its end."""
    signal_process(run.supervisor, signal.SIGTERM)
    _wait_while_supervised(run, grace_s)
    if not told:
        signal_process(run.supervisor, signal.SIGTERM)
    _wait_while_supervised(run, _AFTER_GRACE_S)
    signal_process(run.supervisor, signal.SIGKILL)  # stuck: a full or hung disk


def _wait_while_supervised(run: Run, most_s: float) -> None:
    until = time.monotonic() + most_s
    while is_supervised(run) and time.monotonic() < until:
        time.sleep(_POLL_S)


def is_supervised(run: Run) -> bool:
    return procfs.is_alive(run.supervisor.pid, run.supervisor.started_ticks)


def end_without_supervisor(run: Run, state: RunState, grace_s: float) -> RunState:
    """The supervisor was killed: what it wrote down still proves what is ours."""
    family = Family(root=None, group=Path(state.cgroup) if state.cgroup else None, known=state.owned)
    if found := state.container:
        container = ContainerRun(found.client, Path(found.id_file), os.environ)
        container.end(grace_s, time.sleep, lambda: False)
        found.gone, grace_s = container.end_surely(time.sleep), 0.0
    fall = bring_down(family, state.leader[0], grace_s, turn=time.sleep, hurried=lambda: False)
    if state.cgroup:
        cgroup.remove(Path(state.cgroup))
    state.swept = sweep(state.shm)
    state.left = [(member.pid, member.started_ticks) for member in fall.left]
    state.ended, state.forced = "the supervisor was killed", fall.forced
    with contextlib.suppress(OSError):
        write_state(run.folder, state)
    return state


def signal_process(process: Identity, number: int) -> None:
    """To that very process, or to nobody."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if procfs.is_alive(process.pid, process.started_ticks):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def container_left(container: ContainerState) -> ProcessSample:
    """What is shouted of a container that its engine did not say to be gone."""
    own = ContainerRun(container.client, Path(container.id_file), {}).id or "?"
    return ProcessSample(
        pid=container.first,
        started_ticks=0,
        ppid=0,
        name=f"container {own[:12]}",
        state="?",
        wchan="",
        cpu_s=0.0,
        children_cpu_s=0.0,
        rss_bytes=0,
        minor_faults=0,
        read_bytes=0,
        written_bytes=0,
        threads=0,
    )


def unwritten(run: Run) -> RunState:
    """What a handle alone proves, where the folder of the run was removed."""
    leader = (run.leader.pid, run.leader.started_ticks)
    supervisor = (run.supervisor.pid, run.supervisor.started_ticks)
    return RunState(
        boot_id=procfs.boot_id(),
        supervisor=supervisor,
        started_s=run.started_s,
        leader=leader,
        owned=[leader],
    )
