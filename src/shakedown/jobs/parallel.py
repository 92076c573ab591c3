"""A search's oracle whose launches run on a Ray cluster, several at once where the search allows it.

It never chooses an experiment, and writes the ledger as the local oracle does: from here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shakedown.core import BESIDE_FACT, Experiment, Factor, Host, Outcome, TrialRecord, Verdict
from shakedown.engines.needs import needs_of
from shakedown.errors import HostProblem
from shakedown.host.machine import Machine
from shakedown.host.procfs import boot_id
from shakedown.jobs.apart import apart_of
from shakedown.jobs.fleet import Fleet
from shakedown.jobs.oracle import TrialOracle
from shakedown.jobs.ray_cluster import Cluster, Stopped, WorkerLost, open_cluster
from shakedown.jobs.ray_task import Assignment, travelling, unpack
from shakedown.jobs.reading import Reading
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Talk
from shakedown.ledger import Kind, Ledger
from shakedown.ledger.events import experiment_key
from shakedown.trial import Occasion, Result, Subject, run_recorded
from shakedown.watch import Assessment

MOST_LOST = 3  # workers lost with one launch: a launch that takes its node down would go on for ever


@contextmanager
def open_oracle(
    fleet: Fleet,
    ledger: Ledger,
    host: Machine,
    reading: Reading,
    request: LaunchRequest,
    factors: tuple[Factor, ...],
    search_id: str,
    talk: Talk,
    *,
    max_launches: int,
) -> Iterator[ParallelOracle]:
    """An oracle on an open cluster; after it nothing of ours runs there."""
    talk.say(
        f"joining the Ray cluster at {fleet.address}" if fleet.address else "starting a local Ray cluster"
    )
    ranks = needs_of(reading.command, reading.port).ranks
    with ExitStack() as open_:
        quiet = open_.enter_context(Path(os.devnull).open("w"))
        open_.enter_context(redirect_stdout(quiet))  # Ray prints there what it thinks of a lost worker
        cluster = open_cluster(fleet.address, slots=fleet.workers, ranks=ranks, gpus=fleet.gpus_per_launch)
        open_.enter_context(closing(cluster))
        given = (ledger, host, reading, request, factors, search_id, talk)
        oracle = ParallelOracle(cluster, fleet.workers, *given, max_launches=max_launches)
        open_.enter_context(closing(oracle))
        yield oracle


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A launch that was begun with others."""

    title: str
    experiment: Experiment
    record: Future[TrialRecord]
    alone: bool


class ParallelOracle(TrialOracle):
    """`start` begins several launches; each is waited for when the search asks for it."""

    def __init__(self, cluster: Cluster, workers: int, ledger: Ledger, *given: Any, **named: Any) -> None:
        super().__init__(ledger, *given, **named)
        self._cluster = cluster
        self._apart = apart_of(self._reading, self._factors) if workers > 1 else None
        self._pool = ThreadPoolExecutor(max_workers=workers)
        self._flights: dict[str, Flight] = {}

    def start(self, experiments: Sequence[Experiment]) -> None:
        """Begins what the ledger does not know; as many of them at once as there are."""
        new = [each for each in experiments if self._recall(each) is None]
        for number, each in enumerate(new, self._asked + 1):
            title = self._title(each, number)
            self._talk.say(f"{title}: {each.reason}")
            subject, occasion = self._prepare(each, title, self._left_s())
            if len(new) > 1:
                facts = {**occasion.facts, BESIDE_FACT: str(len(new) - 1)}
                occasion = replace(occasion, facts=facts)
            record = self._pool.submit(self._record, each, subject, occasion, title)
            self._flights[experiment_key(each)] = Flight(
                title=title, experiment=each, record=record, alone=len(new) == 1
            )

    def __call__(self, experiment: Experiment) -> Outcome:
        flight = self._flights.pop(experiment_key(experiment), None)
        if flight is None:
            return super().__call__(experiment)
        self._asked += 1
        outcome = self._outcome(flight.record.result(), flight.title)
        return self._learn(replace(outcome, alone=flight.alone))

    def close(self) -> None:
        """What is under way is cancelled, and cleaned before this returns."""
        self._cluster.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _record(
        self, experiment: Experiment, subject: Subject, occasion: Occasion, title: str
    ) -> TrialRecord:
        """One trial, repeated where its worker is lost. Runs in a thread of its own."""
        conduct = self._conduct(int(dict(occasion.facts).get(BESIDE_FACT, 0)))
        with Ledger.open(self._ledger.path) as ledger:
            for _ in range(MOST_LOST):
                trial_id = ledger.new_id(Kind.TRIAL)
                try:
                    return run_recorded(
                        ledger, self._host, subject, replace(occasion, trial_id=trial_id), look_on, conduct
                    )
                except WorkerLost as lost:
                    self._end_lost(ledger, trial_id)
                    self._talk.say(f"{title}: its worker was lost ({lost}); {trial_id} is repeated")
                except Stopped:
                    ledger.mark_stopped(trial_id)
                    raise
        raise HostProblem(
            f"{title}: {MOST_LOST} workers in a row were lost with it",
            "it may take its node down: search with --executor local on a machine you can watch",
        )

    def _conduct(self, beside: int) -> Callable[..., Result]:
        def conduct(host: Host, subject: Subject, folder: Path, _: Callable[[Assessment], None]) -> Result:
            returned = self._cluster.run(
                Assignment(
                    subject=travelling(subject),
                    command=self._reading.command,
                    folder=folder,
                    boot_id=boot_id(),
                    gpus=self._cluster.gpus,
                    scratch=self._cluster.scratch,
                    apart=self._apart if beside else None,
                    beside=beside,
                )
            )
            unpack(returned.files, folder)
            if returned.refused is not None:
                raise returned.refused
            assert returned.result is not None
            return unhurried(returned.result) if beside else returned.result

        return conduct

    def _end_lost(self, ledger: Ledger, trial_id: str) -> None:
        """The run of a worker that died, where it was on this machine; elsewhere it ends by itself."""
        try:
            run = self._reading.machine.attach_run(ledger.run_folder(trial_id), patience_s=2.0)
        except HostProblem:
            ending = None  # nothing was started, or not here
        else:
            ending = self._host.end(run, grace_s=0.0)
        ledger.mark_stopped(trial_id, ending)


def look_on(assessment: Assessment) -> None:
    """A launch elsewhere is not looked on at."""


def unhurried(result: Result) -> Result:
    """Slow beside others says nothing of the launch: it shows nothing, so the search looks again, alone."""
    if result.judgement.verdict is not Verdict.SLOW:
        return result
    judgement = replace(
        result.judgement,
        verdict=Verdict.UNDECIDED,
        cause=f"slow beside other launches: {result.judgement.cause}",
        environment=True,
    )
    return replace(result, judgement=judgement)
