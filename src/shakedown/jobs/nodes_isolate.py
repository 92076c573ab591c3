"""`isolate --launch FILE`: the search among the factors of all nodes together.

It never chooses an experiment: `isolate` does, as for one command.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from shakedown.core import (
    INTERMITTENT_FACT,
    Command,
    Experiment,
    Factor,
    FactorKind,
    Launch,
    SearchRecord,
    TrialRecord,
)
from shakedown.engines import passing_on, require_isolatable
from shakedown.errors import Interrupted, UsageError
from shakedown.host.local import LocalHost
from shakedown.isolate import Clues, SearchLimits, isolate
from shakedown.isolate.factors import apply, factors_of, with_debug_logging
from shakedown.jobs.costs import costs_of
from shakedown.jobs.isolate import announce, report_to, result_of
from shakedown.jobs.nodes import launch_nodes, plan_lines
from shakedown.jobs.oracle import TrialOracle
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import ExitCode, JobResult, Talk
from shakedown.jobs.roster import Post, Roster, read_roster
from shakedown.jobs.searches import PASS_S, new_search, require_secrets, take_up
from shakedown.jobs.trials import NODES_FACT, facts_of
from shakedown.ledger import Kind, Ledger
from shakedown.nodes import JointFactors
from shakedown.nodes.network import DEADLINE_S, Network, read_network, right_setting, script
from shakedown.report.again import ours
from shakedown.trial import Occasion, Subject


def isolate_nodes_job(
    request: LaunchRequest, path: Path, talk: Talk, *, max_launches: int, resume: str | None, seed: int
) -> JobResult:
    """Runs the search, or goes on with an interrupted one, and writes its report."""
    with closing(read_roster(request, path, talk, live=True)) as roster:
        return isolate_roster(roster, talk, max_launches=max_launches, resume=resume, seed=seed)


def isolate_roster(
    roster: Roster, talk: Talk, *, max_launches: int, resume: str | None, seed: int
) -> JobResult:
    request, path = roster.request, roster.path
    for post in roster.posts:
        require_isolatable(post.reading.command)
    own = [factors_on(post) for post in roster.posts]
    joint = JointFactors.of([(post.node.name, it) for post, it in zip(roster.posts, own, strict=True)])
    if request.dry_run:
        return dry_run(roster, joint)
    with Ledger.open(request.ledger) as ledger:
        search = open_search(ledger, roster, joint, talk, resume=resume, seed=seed)
        costs = costs_of(ledger, search.engine, facts_of(roster.lead.reading))
        announce(roster.lead.reading, search, costs, talk, max_launches)
        oracle = NodesOracle(ledger, roster, joint, own, search.id, talk, max_launches=max_launches)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in `isolate` of one command
        limits = SearchLimits(
            max_launches=max_launches, pass_s=float(dict(search.facts).get(PASS_S, 0)) or None
        )
        try:
            conclusion = isolate(
                joint.factors,
                oracle,
                seed=search.seed,
                clues=Clues(intermittent=INTERMITTENT_FACT in dict(search.facts)),
                limits=limits,
                report=report_to(talk),
            )
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; what was started has been ended, finished launches are kept",
                f"go on with: {ours('isolate --resume', search.id, dict(search.facts))} --launch {path}",
            ) from None
        ledger.close_search(search.id, conclusion, seconds=oracle.seconds)
        return result_of(ledger, search.id, conclusion, talk)


def open_search(
    ledger: Ledger, roster: Roster, joint: JointFactors, talk: Talk, *, resume: str | None, seed: int
) -> SearchRecord:
    if resume is None:
        reading, request = roster.lead.reading, roster.request
        command = replace(reading.command, launch=request.launch)
        costs = costs_of(ledger, command.engine.name, facts_of(reading))
        names = ", ".join(post.node.name for post in roster.posts)
        request = replace(request, facts=(*request.facts, (NODES_FACT, names)))
        search = new_search(
            ledger.new_id(Kind.SEARCH),
            replace(reading, command=command),
            request,
            joint.factors,
            seed,
            "",
            costs.serves.mean_s,
        )
        ledger.open_search(search)
        return search
    earlier = ledger.search(resume)
    require_secrets(earlier, roster.request)
    if earlier.factors != joint.factors:
        raise UsageError(
            f"the launch file has other factors than {resume} searched among", "start a new search with it"
        )
    take_up(ledger, LocalHost(), earlier, roster.lead.reading, talk)
    return earlier


def factors_on(post: Post) -> tuple[Factor, ...]:
    """One node's own factors. That it is one of several is no factor, and what names its own interface or
    address is not removed but set right: without it a node of several addresses may choose a wrong one."""
    reading = post.reading
    found = factors_of(of_several(reading.command), reading.table)
    network = look_from(post)
    if network is None:
        return found
    righted = (set_right(factor, post, network) for factor in found)
    return tuple(factor for factor in righted if factor is not None)


def of_several(command: Command) -> Command:
    engine = command.engine
    if engine.layout is None:
        return command
    layout = engine.layout
    spread = {layout.nodes, *layout.splits, layout.replicas, *dict(engine.groups)[layout.group]} - {""}
    groups = tuple(group for group in engine.groups if group[0] != layout.group)
    essential = engine.essential_flags | spread
    return replace(command, engine=replace(engine, layout=None, groups=groups, essential_flags=essential))


def set_right(factor: Factor, post: Post, network: Network) -> Factor | None:
    """None where it is right already: what a node cannot do without is no suspect."""
    if factor.kind is not FactorKind.ENV or len(factor.drop_env) != 1:
        return factor
    variable = factor.drop_env[0]
    right = right_setting(variable, post.node.address, network)
    if right is None:
        return factor
    if post.reading.command.env.get(variable) == right:
        return None
    return replace(factor, now=f"replaced by {variable}={right}", add_env=((variable, right),))


def look_from(post: Post) -> Network | None:
    launch = post.reading.command.launch
    if not post.inside:
        return None
    done = post.host.execute(
        post.inside, env=launch.env, cwd=launch.cwd, stdin=script(()), deadline_s=DEADLINE_S
    )
    found = read_network(done)
    return found if isinstance(found, Network) else None


class NodesOracle(TrialOracle):
    """Answers by launches of all nodes; the serving one is asked."""

    def __init__(
        self,
        ledger: Ledger,
        roster: Roster,
        joint: JointFactors,
        own: Sequence[tuple[Factor, ...]],
        search_id: str,
        talk: Talk,
        *,
        max_launches: int,
    ) -> None:
        lead = roster.lead
        super().__init__(
            ledger,
            lead.host,
            lead.reading,
            roster.request,
            joint.factors,
            search_id,
            talk,
            max_launches=max_launches,
        )
        self._roster, self._joint, self._own = roster, joint, own

    def _launch_of(self, experiment: Experiment) -> Launch:
        return self._launch_on(self._roster.file.serves, experiment)

    def _launch_on(self, rank: int, experiment: Experiment) -> Launch:
        """A node's launch; as the user gave it where nothing of it is changed."""
        post = self._roster.posts[rank]
        command = post.reading.command
        here = self._joint.experiment_of(rank, experiment)
        launch = apply(command.launch, self._own[rank], here)
        if experiment.debug:
            launch = with_debug_logging(launch, command.engine)
        return passing_on(launch, command.launch)

    def _record(
        self, experiment: Experiment, subject: Subject, occasion: Occasion, title: str
    ) -> TrialRecord:
        launches = [self._launch_on(rank, experiment) for rank in range(len(self._roster.posts))]
        return launch_nodes(self._roster, launches, subject, occasion, self._ledger, self._talk)


def dry_run(roster: Roster, joint: JointFactors) -> JobResult:
    lines = [*plan_lines(roster), f"factors        {len(joint.factors)}"]
    lines += [
        f"  {factor.kind.value:<8} {factor.was}  ->  {factor.now or 'left out'}" for factor in joint.factors
    ]
    document = {"schema": "shakedown/1", "command": "isolate", "verdict": None, "dry_run": lines}
    return JobResult(document=document, lines=lines, exit_code=ExitCode.GOOD)
