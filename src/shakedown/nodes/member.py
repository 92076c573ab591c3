"""One node of a launch as it runs: started, stepped, looked at, ended.

It never decides what has become of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shakedown.core import Ending, Engine, Evidence, Gap, Host, Judgement, Launch, Missing, Run
from shakedown.engines import endable
from shakedown.errors import EnvironmentProblem, UsageError
from shakedown.launch import CONTAINER_ID, refuse_held_port, stop
from shakedown.nodes.clocks import Offset, compare
from shakedown.nodes.file import Node
from shakedown.nodes.network import DEADLINE_S, Network, odd_settings, read_network, script, targets_of
from shakedown.nodes.views import View
from shakedown.trial import Failed
from shakedown.trial.conduct import look_after
from shakedown.trial.letting_go import not_ended
from shakedown.watch import Assessment, Limits, Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """A node's launch, the host it runs on, and how it is watched there.

    `port`: where the serving node listens. `own_network`: nothing of this machine can hold that port.
    `inside` runs Python in the node's own network, reading a script from its input. `clock` asks the host's
    own clock, where what the host tells may be reckoned here. `gaps`: when its host could not be seen.
    `look_after` as in `trial.Subject`, for the node that is to blame.
    """

    node: Node
    host: Host
    launch: Launch
    engine: Engine
    env: Mapping[str, str] = field(repr=False)
    port: int | None = None
    own_network: bool = False
    inside: tuple[str, ...] = ()
    clock: Callable[[], float] | None = None
    gaps: Callable[[], tuple[Gap, ...]] = tuple
    look_after: Callable[[Failed], tuple[Evidence, ...]] | None = None
    limits: Limits = field(default_factory=Limits)


class Member:
    """A station with what has been seen of it. Seconds are of our clock, since `began_s`."""

    def __init__(self, station: Station, began_s: float) -> None:
        self.station, self._began_s = station, began_s
        self.refused = ""
        self.run: Run | None = None
        self.watcher: Watcher | None = None
        self.assessment: Assessment | None = None
        self.offset = Offset()
        self._judged_s = 0.0
        self._lost_s: float | None = None
        self.network: Network | None = None

    def start(self, folder: Path) -> bool:
        """False where it could not be started; `refused` then says why."""
        station = self.station
        try:
            self.offset = compare(station.clock or station.host.clock_s, time.monotonic)
            if station.port is not None and not station.own_network:
                refuse_held_port(station.host, station.port)
            launch = endable(station.launch, folder / CONTAINER_ID)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # a far host brings its log home to it
            self.run = station.host.start(launch, folder)
        except (EnvironmentProblem, UsageError) as problem:
            self.refused = problem.message
            return False
        self.watcher = Watcher(
            station.host, self.run, station.engine, limits=station.limits, port=station.port
        )
        return True

    def step(self) -> None:
        assert self.watcher is not None
        try:
            self.assessment = self.watcher.step()
            self._lost_s = None
        except EnvironmentProblem:  # its host cannot be reached now, which says nothing of the launch
            self.lose()
        if self.assessment is not None and self.assessment.judgement is not None:
            self._judged_s = self._judged_s or self._now_s
        else:
            self._judged_s = 0.0

    def lose(self) -> None:
        """Nothing can be read of it at this moment."""
        self._lost_s = self._lost_s or time.monotonic()

    @property
    def is_lost(self) -> bool:
        return self._lost_s is not None

    def take_back(self) -> None:
        assert self.watcher is not None
        self.watcher.take_back()

    def end(self, judgement: Judgement | None) -> Ending | None:
        """None where nothing was started. What is out of reach is left to its own supervisor, and said."""
        if self.run is None:
            return None
        began_s = time.monotonic()
        try:
            if not self.is_lost:
                return stop(self.station.host, self.run, judgement)
            problem = "its host cannot be reached"
        except EnvironmentProblem as found:
            problem = found.message
        return not_ended(f"{self.station.node.title}: {problem}", time.monotonic() - began_s)

    def look(self, peers: Sequence[tuple[str, str, Network]] = ()) -> None:
        """Its network from inside; with `peers`, whether it comes through to them."""
        station = self.station
        if not station.inside or self.run is None or self.is_lost:
            return
        seen = station.host.processes(self.run)
        pids = [] if isinstance(seen, Missing) else [process.pid for process in seen]
        try:
            done = station.host.execute(
                station.inside,
                env=station.launch.env,
                cwd=station.launch.cwd,
                stdin=script(pids, targets_of([peer for peer in peers if peer[0] != station.node.name])),
                deadline_s=DEADLINE_S,
            )
        except EnvironmentProblem:  # not seen, which says nothing of the launch
            return
        found = read_network(done)
        if isinstance(found, Network):
            self.network = found

    def look_after(self, judgement: Judgement) -> tuple[Evidence, ...]:
        """What else there is to see of it while it still stands."""
        station = self.station
        if station.look_after is None or self.run is None or self.watcher is None or self.is_lost:
            return ()
        failed = Failed(
            host=station.host,
            run=self.run,
            judgement=judgement,
            pids=self.watcher.pids,
            now_s=station.host.clock_s() - self.run.started_s,
        )
        found = look_after(station.look_after, failed)
        return tuple(replace(it, kind=f"{station.node.name}: {it.kind}") for it in found)

    @property
    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _ours_s(self, at_s: float) -> float:
        """Seconds since its own start as seconds since the launch began, on our clock.

        The clock of a host stands still while it cannot be seen; ours went on.
        """
        if self.run is None:
            return 0.0
        shown_s = self.run.started_s + at_s
        unseen_s = sum(gap.seconds for gap in self.station.gaps() if gap.at_s <= shown_s)
        return self.offset.ours(shown_s) + unseen_s - self._began_s

    def view(self) -> View:
        seen = self.assessment
        network, env = self.network, self.station.env
        view = View(
            node=self.station.node,
            refused=self.refused,
            unreachable_s=time.monotonic() - self._lost_s if self._lost_s is not None else 0.0,
            network=network,
            odd=tuple(text for _, text in odd_settings(env, network, self.station.node.address))
            if network
            else (),
            uncertain_s=self.offset.uncertain_s(time.monotonic()),
            clock=describe(self.offset),
        )
        if seen is None:
            return view
        logged = [it.at_s for it in seen.evidence if it.kind == "log"]
        return replace(
            view,
            phase=seen.phase,
            state=seen.state,
            judgement=seen.judgement,
            judged_s=self._judged_s,
            error_s=self._ours_s(min(logged)) if logged else None,
            moved_s=self._ours_s(seen.last_progress.at_s if seen.last_progress else 0.0),
            phases=tuple(
                replace(
                    span,
                    started_s=self._ours_s(span.started_s),
                    ended_s=self._ours_s(span.ended_s) if span.ended_s is not None else None,
                )
                for span in seen.phases
            ),
        )


def describe(offset: Offset) -> str:
    if abs(offset.seconds) <= max(offset.within_s, 0.001):
        return f"its clock is ours to within {max(offset.within_s, 1e-6):.6f} s"
    return f"its clock less ours: {offset.seconds:+.3f} s, to within {offset.within_s:.3f} s"
