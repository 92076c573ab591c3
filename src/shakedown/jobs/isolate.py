"""`shakedown isolate`: find and prove what makes a launch fail, and hand it back, working."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from shakedown.core import INTERMITTENT_FACT, Conclusion, Factor, Outcome, SearchRecord, Step
from shakedown.engines import require_isolatable
from shakedown.errors import HostProblem, Interrupted, UsageError
from shakedown.host import files
from shakedown.host.machine import Machine
from shakedown.isolate import Clues, SearchLimits, isolate
from shakedown.isolate.factors import factors_of
from shakedown.isolate.values import values_of
from shakedown.jobs.apart import apart_of
from shakedown.jobs.borrowed import borrow
from shakedown.jobs.costs import Costs, costs_of, refines
from shakedown.jobs.fleet import Fleet, require_fit
from shakedown.jobs.machines import is_far, machine_at, machine_of, on
from shakedown.jobs.oracle import TrialOracle
from shakedown.jobs.outside import outside_of
from shakedown.jobs.reading import Reading, describe, read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import ExitCode, JobResult, Talk, exit_code_of_search
from shakedown.jobs.rungs import ladder_of
from shakedown.jobs.searches import (
    PASS_S,
    SURROUNDINGS,
    new_search,
    request_of,
    require_same_files,
    take_up,
)
from shakedown.jobs.stand_ins import as_given, joined, price_of, search_stand_in, with_guess
from shakedown.jobs.surroundings import look_around, suspicions, told
from shakedown.jobs.trials import NODES_FACT, facts_of, plan_lines
from shakedown.ledger import Kind, Ledger
from shakedown.report import isolate_document, isolate_report, isolate_summary
from shakedown.report.again import ours

CACHES = "caches"  # in a search's folder: what its launches compile instead of using the user's caches


def isolate_job(
    request: LaunchRequest,
    talk: Talk,
    *,
    max_launches: int,
    resume: str | None,
    seed: int,
    pid: int | None = None,
    fleet: Fleet | None = None,
) -> JobResult:
    """Runs the search, or goes on with an interrupted one, and writes its report.

    `pid`: the process whose launch it is, in place of a command. `fleet`: where several launches may run at
    once; None: here, one after the other.
    """
    if fleet is not None:
        require_fit(fleet, request)
    with Ledger.open(request.ledger) as ledger:
        earlier = ledger.search(resume) if resume else None
    facts = dict(earlier.facts) if earlier is not None else {}
    far = machine_of(facts, talk) if is_far(facts) else machine_at(request.host, request.via, talk)
    with closing(far) as machine:
        request = on(machine, request) if pid is None else borrow(pid, request, machine, talk)
        return isolate_on(
            machine, request, talk, max_launches=max_launches, resume=resume, seed=seed, fleet=fleet
        )


def isolate_on(
    host: Machine,
    request: LaunchRequest,
    talk: Talk,
    *,
    max_launches: int,
    resume: str | None,
    seed: int,
    fleet: Fleet | None = None,
) -> JobResult:
    """The same on a machine that is open."""
    with Ledger.open(request.ledger) as ledger, ExitStack() as open_:
        earlier = ledger.search(resume) if resume else None
        if earlier is not None:
            refuse_nodes(earlier)
            request = request_of(earlier, request)
        reading = read_request(request, host, talk, live=True)
        require_isolatable(reading.command)
        search_id = earlier.id if earlier is not None else ledger.new_id(Kind.SEARCH)
        fresh = host.place(ledger.folder_of(search_id)) / CACHES
        if earlier is not None:
            require_same_files(earlier, reading)
            factors = earlier.factors
        else:
            factors = factors_of(reading.command, reading.table, outside_of(reading, request, fresh))
        if fleet is not None:
            apart_of(reading, factors)  # refused before anything is written
        if request.dry_run:
            return dry_run(reading, request, factors)
        seen = "" if earlier is not None else told(look_around(host, reading))
        costs = costs_of(ledger, reading.command.engine.name, facts_of(reading))
        given = (ledger, host, reading, request, factors, search_id, talk)
        oracle = oracle_on(fleet, open_, *given, max_launches=max_launches)
        search = earlier or new_search(search_id, reading, request, factors, seed, seen, costs.serves.mean_s)
        if earlier is None:
            ledger.open_search(search)
        else:
            take_up(ledger, host, search, reading, talk)
        announce(reading, search, costs, talk, max_launches)
        limits = SearchLimits(
            max_launches=max_launches,
            workers=fleet.workers if fleet else 1,
            pass_s=float(dict(search.facts).get(PASS_S, 0)) or None,
        )
        try:
            conclusion = search_with(oracle, ledger, search, reading, costs, limits, talk)
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; what was started has been ended, finished launches are kept",
                f"go on with: {ours('isolate --resume', search.id, dict(search.facts))}",
            ) from None
        finally:
            oracle.close()
            clear_work(host, ledger, search_id, fresh)
        ledger.close_search(search.id, conclusion, seconds=oracle.seconds)
        return result_of(ledger, search.id, conclusion, talk)


def search_with(
    oracle: TrialOracle,
    ledger: Ledger,
    search: SearchRecord,
    reading: Reading,
    costs: Costs,
    limits: SearchLimits,
    talk: Talk,
) -> Conclusion:
    """On a stand-in first, where that pays, then on the launch itself."""
    # numpy loads with the search: its matrices are small, and its threads would spin beside the server.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    factors, seed, report = search.factors, search.seed, report_to(talk)
    clues = Clues(
        values=values_of(factors, reading.command, reading.table),
        weights=suspicions(dict(search.facts).get(SURROUNDINGS, ""), factors),
        intermittent=INTERMITTENT_FACT in dict(search.facts),
    )
    found = None
    if limits.workers == 1:
        failing = oracle.look_ahead(as_given(factors))
        if refines(failing.judgement):
            talk.say(costs.after(failing).words(len(factors), limits.max_launches))
        if worth_a_stand_in(ledger, search, oracle, failing, costs):
            few = replace(limits, max_launches=max(1, limits.max_launches // 2))
            found = search_stand_in(
                oracle, factors, failing, seed=seed, clues=clues, limits=few, report=report
            )
    conclusion = isolate(
        factors,
        oracle,
        seed=seed,
        clues=with_guess(clues, found),
        limits=limits,
        report=report,
        ladder=ladder_of(oracle.base, factors),
        start=oracle.start,
    )
    return joined(found, conclusion)


def oracle_on(fleet: Fleet | None, open_: ExitStack, *given: Any, **named: Any) -> TrialOracle:
    if fleet is None:
        return TrialOracle(*given, **named)
    from shakedown.jobs.parallel import open_oracle  # Ray: only where it is asked for

    return open_.enter_context(open_oracle(fleet, *given, **named))


def refuse_nodes(earlier: SearchRecord) -> None:
    if NODES_FACT in dict(earlier.facts):
        raise UsageError(
            f"{earlier.id} is a search on several nodes",
            f"{ours('isolate --resume', earlier.id, dict(earlier.facts))} --launch {earlier.argv[-1]}",
        )


def clear_work(host: Machine, ledger: Ledger, search_id: str, fresh: Path) -> None:
    """Caches are ours, and fresh ones are as good; on another machine all goes that the search put there, but
    what its launches name: a rung's script or a model with another config is there to be launched again."""
    here, there = ledger.folder_of(search_id), fresh.parent
    named = any(f"{there}/" in word for trial in ledger.trials_of(search_id) for word in trial.argv)
    host.ask(files.clear, fresh if there == here or named else there)


def worth_a_stand_in(
    ledger: Ledger, search: SearchRecord, oracle: TrialOracle, failing: Outcome, costs: Costs
) -> bool:
    """Whether to search on a stand-in first; a resumed search does as it did."""
    trials = ledger.trials_of(search.id)
    if any(trial.experiment and trial.experiment.stand_in for trial in trials):
        return True
    price = price_of(failing, costs, len(search.factors)) if oracle.base.servers else None
    return price is not None and price.pays


def announce(reading: Reading, search: SearchRecord, costs: Costs, talk: Talk, max_launches: int) -> None:
    """What it may cost, before it costs anything."""
    talk.say(f"isolate {search.id}: {describe(reading)}, {len(search.factors)} factors")
    talk.say(costs.words(len(search.factors), max_launches))
    if seen := dict(search.facts).get(SURROUNDINGS):
        talk.say(f"found on this machine, and no cause by itself: {seen}")
    file = f" --launch {search.argv[-1]}" if NODES_FACT in dict(search.facts) else ""
    talk.say(f"if interrupted: {ours('isolate --resume', search.id, dict(search.facts))}{file}")


def report_to(talk: Talk) -> Callable[[Step], None]:
    """Says each step as it comes."""
    return lambda step: talk.say(
        f"  {step.concluded}  ({step.outcome.trial_id}, {step.outcome.seconds:.0f} s)"
    )


def dry_run(reading: Reading, request: LaunchRequest, factors: tuple[Factor, ...]) -> JobResult:
    lines = [*request.notes, *plan_lines(reading, request), f"factors        {len(factors)}"]
    lines += [f"  {factor.kind.value:<8} {factor.was}  ->  {factor.now or 'left out'}" for factor in factors]
    document = {"schema": "shakedown/1", "command": "isolate", "verdict": None, "dry_run": lines}
    return JobResult(document=document, lines=lines, exit_code=ExitCode.GOOD)


def result_of(ledger: Ledger, search_id: str, conclusion: Conclusion, talk: Talk) -> JobResult:
    record, trials = ledger.search(search_id), ledger.trials_of(search_id)
    report = ledger.folder_of(search_id) / "report.md"
    try:
        files.write_text(report, isolate_report(record, trials))
    except HostProblem as problem:  # the ledger has it all: the answer does not wait for room on a disk
        talk.say(f"no report.md: {problem.message}; later: {ours('report', search_id, dict(record.facts))}")
    else:
        talk.say(f"report: {report}")
    return JobResult(
        document=isolate_document(record, trials),
        lines=isolate_summary(record, trials),
        exit_code=exit_code_of_search(conclusion),
    )
