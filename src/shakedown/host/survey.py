"""All that a process we did not start holds at one moment: its tree, owners, ports and shared memory.

It never signals anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from shakedown.core import GpuUse, Identity, Missing, ProcessSample
from shakedown.host import foreign, procfs
from shakedown.host.foreign import ForeignProcess, Listening
from shakedown.host.procfs import ShmObject
from shakedown.host.samples import Sampler
from shakedown.redact import Redactor

NO_GPUS = Missing(what="gpu", why="not asked yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    sample: ProcessSample
    uid: int
    user: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All that is held by a process and its descendants at one moment. `run_id`: of ours, "" if not."""

    process: ForeignProcess
    members: tuple[Member, ...]
    gpus: tuple[GpuUse, ...] | Missing
    ports: tuple[Listening, ...]
    shm: tuple[ShmObject, ...]
    run_id: str

    @property
    def tree(self) -> tuple[Identity, ...]:
        return tuple(Identity(pid=m.sample.pid, started_ticks=m.sample.started_ticks) for m in self.members)


def redactor_of(process: ForeignProcess | None, *more: str) -> Redactor:
    """Knows the secrets of its command line and environment, as far as they can be read, and `more`."""
    env = {} if process is None or isinstance(process.env, Missing) else process.env
    argv = () if process is None or isinstance(process.argv, Missing) else process.argv
    return Redactor.of(env, argv, more)


def look_at(pid: int) -> Survey | None:
    """All but the GPUs, which are a reading of the host; None where there is no such process."""
    process = foreign.find(pid)
    if process is None:
        return None
    tree = foreign.tree_of(process.identity)
    sampler, redactor = Sampler(), redactor_of(process)
    members = []
    for each in tree:
        sample = sampler.sample(each.pid, each.started_ticks, redactor)
        if sample is not None:
            uid = foreign.uid_of(each.pid)
            age_s = foreign.age_s(each.started_ticks)
            members.append(Member(sample=sample, uid=uid, user=foreign.user_name(uid), age_s=age_s))
    shm = {it for each in tree for it in procfs.shm_used(each.pid) or ()}
    return Survey(
        process=process,
        members=tuple(members),
        gpus=NO_GPUS,
        ports=foreign.ports_of(tree),
        shm=tuple(sorted(shm)),
        run_id=foreign.supervised_run(pid)[0],
    )
