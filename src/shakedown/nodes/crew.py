"""All nodes of a launch at once: stepped side by side, told the same, seen as one.

It never decides what has become of the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeVar

from shakedown.core import Phase
from shakedown.nodes.member import Member
from shakedown.watch import Assessment, State

T = TypeVar("T")
LONGEST_STEP_S = 15.0  # looks at the stacks of two dozen processes take a few seconds


class Everyone:
    """What is told to the watch of one node is told to all: a request to the server keeps all nodes busy."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._watchers = [member.watcher for member in members if member.watcher]

    def enter(self, phase: Phase) -> None:
        for watcher in self._watchers:
            watcher.enter(phase)

    def probe_pending(self, pending: bool) -> None:
        for watcher in self._watchers:
            watcher.probe_pending(pending)

    def request_cut(self) -> None:
        for watcher in self._watchers:
            watcher.request_cut()

    def mark_signal(self) -> None:
        for watcher in self._watchers:
            watcher.mark_signal()


class AtOnce:
    """Does something with all members side by side: a slow host must not hold up the others."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="shakedown-node")
        self._steps: dict[Member, Future[None]] = {}

    def step(self, members: Iterable[Member]) -> None:
        """One step of each watch; one that hangs, as a lost connection does, goes on by itself."""
        for member in members:
            under_way = self._steps.get(member)
            if under_way is None or under_way.done():
                self._steps[member] = self._pool.submit(member.step)
        wait(self._steps.values(), timeout=LONGEST_STEP_S)
        for member, future in self._steps.items():
            if future.done():
                future.result()
            else:
                member.lose()

    def do(self, work: Callable[[Member], T], members: Iterable[Member]) -> list[T]:
        return list(self._pool.map(work, members))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def together(members: Sequence[Member], lead: Member) -> Assessment | None:
    """All nodes as one launch, for a look-on: as far as the last of them, as lively as the liveliest."""
    seen = [(member, member.assessment) for member in members if member.assessment is not None]
    if lead.assessment is None or len(seen) < len(members):
        return None
    assessments = [assessment for _, assessment in seen]
    behind, last = min(seen, key=lambda pair: pair[1].phase.order)
    states = [assessment.state for assessment in assessments]
    lines = [
        line
        if member is lead
        else replace(line, line=replace(line.line, text=f"[{member.station.node.name}] {line.line.text}"))
        for member, assessment in seen
        for line in assessment.new_lines
    ]
    note = next((it.note for it in assessments if it.note), "")
    if last.phase is not lead.assessment.phase:
        note = f"{behind.station.node.title} is in {last.phase}" + (f"; {note}" if note else "")
    return replace(
        lead.assessment,
        phase=last.phase,
        state=State.MOVING if State.MOVING in states else lead.assessment.state,
        quiet_s=min(assessment.quiet_s for assessment in assessments),
        first_error=next((it.first_error for it in assessments if it.first_error), None),
        new_lines=tuple(lines),
        note=note,
    )


def look_at_networks(members: Sequence[Member], at_once: AtOnce) -> None:
    """First who listens where, then who comes through to whom."""
    at_once.do(lambda member: member.look(), members)
    peers = [
        (member.station.node.name, member.station.node.address, member.network)
        for member in members
        if member.network is not None
    ]
    at_once.do(lambda member: member.look(peers), members)
