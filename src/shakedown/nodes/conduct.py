"""One launch on several nodes: all up, watched and asked as one, all down, whatever happens in between.

It never chooses what to try next, never prints and never writes the ledger; `blame` says whose fault it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from shakedown.core import Ending, Judgement, Verdict
from shakedown.nodes.blame import blame, is_over, waiting_in_vain
from shakedown.nodes.crew import AtOnce, Everyone, look_at_networks, together
from shakedown.nodes.member import Member, Station
from shakedown.nodes.telling import judge, judge_served, spans, standing
from shakedown.trial import Result, Subject
from shakedown.trial.asking import STEP_S, Asking
from shakedown.trial.conduct import LOOKED_AFTER, explained
from shakedown.trial.letting_go import held_interrupts, with_ending, with_evidence
from shakedown.trial.passing import PassPhase
from shakedown.watch import Assessment

FOLDER = "nodes"  # in the run folder; the serving node's run is the folder itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """The stations of one launch in order of rank; `serves` is the rank of the one that answers."""

    stations: tuple[Station, ...]
    serves: int = 0


def run_nodes(crew: Crew, subject: Subject, folder: Path, look_on: Callable[[Assessment], None]) -> Result:
    """Starts every node, watches them to one verdict, ends every node.

    `subject` says what is asked and stated of the launch; its own launch is not started. Lets
    `KeyboardInterrupt` through after the clean-up.
    """
    began_s = time.monotonic()
    members = [Member(station, began_s) for station in crew.stations]
    at_once = AtOnce(len(members))
    judgement: Judgement | None = None
    endings: list[Ending] = []
    try:
        with held_interrupts():
            started = all(member.start(folder_of(crew, member, folder)) for member in members)
        watch = _Watch(members, crew, subject, began_s, at_once)
        judgement = watch.observe(look_on) if started else watch.refused()
        if subject.work is not None and judgement.serves:
            subject.work()
        if started and judgement.verdict in LOOKED_AFTER:
            to_blame = [it for it in members if judgement.node in ("", it.station.node.name)]
            seen = at_once.do(partial(Member.look_after, judgement=judgement), to_blame)
            judgement = with_evidence(judgement, chain(*seen))
    finally:
        endings = end_all(members, judgement, at_once)
        at_once.close()
    seconds = time.monotonic() - began_s
    for ending in endings:
        judgement = with_ending(judgement, ending, seconds)
    return Result(
        judgement=judgement,
        seconds=seconds,
        ending=together_ended(endings),
        silences={},  # a node that waits for another teaches nothing of its own phases
    )


def folder_of(crew: Crew, member: Member, folder: Path) -> Path:
    """A name that no other trial has: a far machine keeps the folders of all of them side by side."""
    node = member.station.node
    return folder if node.rank == crew.serves else folder / FOLDER / f"{folder.name}-{node.name}"


def end_all(members: Sequence[Member], judgement: Judgement | None, at_once: AtOnce) -> list[Ending]:
    """Side by side: the patience with a healthy node is not spent once for each."""
    with held_interrupts():  # a second Ctrl-C must not leave half of the nodes behind
        found = at_once.do(lambda member: member.end(judgement), members)
    return [ending for ending in found if ending is not None]


def together_ended(endings: Sequence[Ending]) -> Ending | None:
    if not endings:
        return None
    return Ending(
        seconds=max(ending.seconds for ending in endings),
        left=tuple(process for ending in endings for process in ending.left),
        swept_shm=tuple(name for ending in endings for name in ending.swept_shm),
        forced=any(ending.forced for ending in endings),
        problem="; ".join(ending.problem for ending in endings if ending.problem),
        not_ended="; ".join(ending.not_ended for ending in endings if ending.not_ended),
    )


class _Watch:
    """All nodes side by side until the launch is judged."""

    def __init__(
        self, members: Sequence[Member], crew: Crew, subject: Subject, began_s: float, at_once: AtOnce
    ) -> None:
        self._members, self._subject, self._began_s = members, subject, began_s
        self._lead = members[crew.serves]
        self._at_once = at_once
        self._everyone = Everyone(members)
        self._asking = Asking(subject.target, subject.ready_log, self._clock_s, subject.stated)

    def _clock_s(self) -> float:
        return time.monotonic() - self._began_s

    def refused(self) -> Judgement:
        views = [member.view() for member in self._members]
        return judge(blame(views), views, self._clock_s())

    def observe(self, look_on: Callable[[Assessment], None]) -> Judgement:
        subject = self._subject
        getting_past = PassPhase(subject.past) if subject.past else None
        try:
            while True:
                self._at_once.step(self._members)
                seen = together(self._members, self._lead)
                if (judgement := self._failed()) is not None:
                    return judgement
                if seen is not None:
                    look_on(seen)
                    judgement = self._answered() or (getting_past.step(seen) if getting_past else None)
                    if judgement is not None:
                        return judgement
                if subject.deadline_s is not None and self._clock_s() >= subject.deadline_s:
                    return self._cut(subject.deadline_s)
                time.sleep(STEP_S)
        finally:
            self._everyone.mark_signal()
            self._asking.abandon()

    def _failed(self) -> Judgement | None:
        views = [member.view() for member in self._members]
        if is_over(views, self._clock_s()):
            look_at_networks(self._members, self._at_once)
            views = [member.view() for member in self._members]
            return judge(blame(views), views, self._clock_s())
        early = {view.node.rank for view in waiting_in_vain(views, self._clock_s())}
        for member in self._members:
            if member.station.node.rank in early:
                member.take_back()
        return None

    def _answered(self) -> Judgement | None:
        lead = self._lead.assessment
        if lead is None or lead.judgement is not None:
            return None
        answer = self._asking.step(lead, self._everyone)
        if answer is None:
            return None
        views = [member.view() for member in self._members]
        return judge_served(explained(answer, self._subject.wrong_because), views, self._clock_s())

    def _cut(self, deadline_s: float) -> Judgement:
        """By the deadline: named is the node that has been silent longest."""
        views = [member.view() for member in self._members]
        cuts = [
            member.watcher.cut(f"cut by the deadline of {deadline_s:.0f} s")
            for member in self._members
            if member.watcher
        ]
        behind = min(range(len(views)), key=lambda at: (views[at].phase.order, views[at].moved_s))
        moving = any(cut.verdict is Verdict.SLOW for cut in cuts)
        node, now_s = views[behind].node, self._clock_s()
        return replace(
            cuts[behind],
            verdict=Verdict.SLOW if moving else Verdict.UNDECIDED,
            cause=f"{node.title} is furthest behind, in {views[behind].phase}: {cuts[behind].cause}",
            phases=spans(views),
            evidence=(*standing(views, now_s), *cuts[behind].evidence),
            node=node.name,
            rank=node.rank,
        )
