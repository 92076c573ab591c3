"""End a family step by step: ask the leader, ask all, kill until nothing is left.

It never waits without a limit and never takes a process that will not die for one that did.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from shakedown.host import procfs
from shakedown.host.family import Family, Member

_AFTER_LEADER_S = 0.5  # a leader that exits has usually told its children
_ASK_ALL_S = 5.0
_KILL_S = 3.0  # longer than any kill measured; what is left then sits in the kernel
_EXITING_S = 15.0  # giving back hundreds of GB may take this long
_STORM_ROUNDS = 5
_QUIET_LOOKS = 3  # a chain of forks may slip through one look
_QUIET_S = 0.01
_SETTLE_S = 0.05


class Fall(NamedTuple):
    forced: bool  # a KILL was needed
    left: list[Member]


def bring_down(
    family: Family,
    leader_pid: int,
    grace_s: float,
    *,
    turn: Callable[[float], None],
    hurried: Callable[[], bool],
) -> Fall:
    """`turn(s)` does the caller's other duties for up to s seconds; `hurried` cuts every wait short."""
    family.look(thorough=True)
    leader = family.find(leader_pid)
    if leader:
        family.signal(signal.SIGTERM, only=leader)
    if grace_s > 0:
        began = time.monotonic()
        if leader:
            _wait(family, grace_s, turn, lambda: hurried() or family.find(leader_pid) is None)
            _wait(family, min(_AFTER_LEADER_S, began + grace_s - time.monotonic()), turn, hurried)
        family.look()
        family.signal(signal.SIGTERM)
        family.signal(signal.SIGCONT)  # who is stopped cannot listen
        _wait(family, min(_ASK_ALL_S, grace_s), turn, hurried)
    return _kill(family, turn)


def _wait(family: Family, limit_s: float, turn: Callable[[float], None], enough: Callable[[], bool]) -> None:
    until = time.monotonic() + limit_s
    while family.members and not enough() and time.monotonic() < until:
        turn(_SETTLE_S)
        family.look()


def _kill(family: Family, turn: Callable[[float], None]) -> Fall:
    began = time.monotonic()
    rounds = quiet_looks = 0
    while quiet_looks < _QUIET_LOOKS:
        family.look(thorough=True)
        if not family.members:
            quiet_looks += 1
            turn(_QUIET_S)
            continue
        quiet_looks = 0
        waited = time.monotonic() - began
        if waited > _EXITING_S or (waited > _KILL_S and not any(map(_is_exiting, family.members))):
            break
        if rounds == 0 or rounds >= _STORM_ROUNDS:
            # Also before the first kill: a chain of forks outlives the leader that proves its session ours.
            family.kill_process_groups()
        family.kill()
        turn(0.0 if rounds < _STORM_ROUNDS * 4 else _SETTLE_S)
        rounds += 1
    return Fall(rounds > 0, [member for member in family.members if member.is_alive()])


def _is_exiting(member: Member) -> bool:
    stat = procfs.read_stat(member.pid)
    return stat is not None and stat.started_ticks == member.started_ticks and stat.exiting
