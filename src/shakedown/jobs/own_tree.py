"""Which part of a tree is one server's: from the process that holds its port up, and no further than its own.

It only reads.
"""

from __future__ import annotations

from shakedown.core import Identity, Missing
from shakedown.engines import identify
from shakedown.host import foreign
from shakedown.host.foreign import ForeignProcess
from shakedown.host.machine import Machine
from shakedown.jobs.foreign import TITLES


def lineage(holder: int, machine: Machine) -> list[ForeignProcess]:
    """The holder of a port first, its server's first process last; [] where the holder has ended.

    A script that has started several servers is none of them.
    """
    found: list[ForeignProcess] = []
    own: set[int] = set()
    for pid in machine.ask(foreign.job_of, holder):
        process = machine.ask(foreign.find, pid)
        if process is None:
            break
        tree = machine.ask(foreign.tree_of, process.identity)
        others = tuple(it for it in tree if it.pid not in own and it.pid != pid)
        if found and not is_engine(process) and holds_a_server(others, machine):
            break
        found.append(process)
        own = {it.pid for it in tree}
    return found


def nearest_engine(processes: list[ForeignProcess]) -> ForeignProcess | None:
    """The first whose command line says what it was started with."""
    return next((it for it in processes if starts_engine(it)), None)


def holds_a_server(tree: tuple[Identity, ...], machine: Machine) -> bool:
    if machine.ask(foreign.ports_of, tree):
        return True
    processes = (machine.ask(foreign.find, it.pid) for it in tree)
    return any(starts_engine(it) for it in processes if it is not None)


def is_engine(process: ForeignProcess) -> bool:
    return starts_engine(process) or any(word in process.title.lower() for word, _ in TITLES)


def starts_engine(process: ForeignProcess) -> bool:
    return not isinstance(process.argv, Missing) and identify(process.argv).name != "generic"
