"""`run --launch FILE`: one launch of all the nodes of a file.

It decides nothing: `nodes` watches and blames, `nodes_isolate` searches.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from shakedown.core import Launch, TrialRecord
from shakedown.engines import display
from shakedown.host import files
from shakedown.jobs.reading import describe
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import ExitCode, JobResult, Talk
from shakedown.jobs.roster import PROGRAM, Roster, read_roster
from shakedown.jobs.run import result_of
from shakedown.jobs.trials import NODES_FACT, looking_on, occasion_of, subject_of
from shakedown.ledger import Kind, Ledger
from shakedown.nodes import Crew, NodesFile, Station, run_nodes, write_nodes
from shakedown.redact import Redactor
from shakedown.trial import Occasion, Subject, run_recorded

WRITTEN = "launch.yaml"  # in the folder of a trial: what it launched, to be launched again


def run_nodes_job(request: LaunchRequest, path: Path, talk: Talk) -> JobResult:
    """Launches every node of the file once and says what became of the whole."""
    with closing(read_roster(request, path, talk, live=False)) as roster:
        return run_roster(roster, talk)


def run_roster(roster: Roster, talk: Talk) -> JobResult:
    request = roster.request
    if request.dry_run:
        lines = plan_lines(roster)
        document = {"schema": "shakedown/1", "command": "run", "verdict": None, "dry_run": lines}
        return JobResult(document=document, lines=lines, exit_code=ExitCode.GOOD)
    talk.say(f"run: {roster.title}; {describe(roster.lead.reading)}")
    with Ledger.open(request.ledger) as ledger:
        subject = subject_of(
            roster.lead.reading,
            roster.request,
            ledger,
            title=roster.title,
            deadline_s=request.deadline_s,
            launch=roster.request.launch,
        )
        launches = [post.reading.command.launch for post in roster.posts]
        record = launch_nodes(
            roster, launches, subject, occasion_of(roster.lead.reading, request), ledger, talk
        )
    return result_of(record)


def launch_nodes(
    roster: Roster,
    launches: Sequence[Launch],
    subject: Subject,
    occasion: Occasion,
    ledger: Ledger,
    talk: Talk,
) -> TrialRecord:
    """One trial of all nodes, `launches` in order of rank; written beside it is the file that repeats it."""
    trial_id = occasion.trial_id or ledger.new_id(Kind.TRIAL)
    written = ledger.run_folder(trial_id) / WRITTEN
    files.write_text(written, write_nodes(as_launched(roster, launches)))
    crew = crew_of(roster, launches, subject, ledger)
    joint = replace(roster.request.launch, argv=(*PROGRAM, str(written)))
    facts = {**occasion.facts, NODES_FACT: ", ".join(post.node.name for post in roster.posts)}
    return run_recorded(
        ledger,
        roster.lead.host,
        replace(subject, launch=joint),
        replace(occasion, trial_id=trial_id, facts=facts),
        looking_on(talk, subject.title),
        conduct=lambda host, its, folder, look_on: run_nodes(crew, its, folder, look_on),
    )


def crew_of(roster: Roster, launches: Sequence[Launch], subject: Subject, ledger: Ledger) -> Crew:
    stations = []
    for post, launch in zip(roster.posts, launches, strict=True):
        own = subject_of(post.reading, roster.request, ledger, title="", deadline_s=None, launch=launch)
        stations.append(
            Station(
                node=post.node,
                host=post.host,
                launch=launch,
                engine=post.reading.command.engine,
                env={**launch.env, **{name: value for name, value, _ in post.reading.command.assigned}},
                port=subject.port if post is roster.lead else None,
                own_network=post.own_network,
                inside=post.inside,
                clock=partial(post.host.ask, files.now_s),
                gaps=post.host.gaps,
                look_after=own.look_after,
                limits=own.limits,
            )
        )
    return Crew(stations=tuple(stations), serves=roster.file.serves)


def as_launched(roster: Roster, launches: Sequence[Launch]) -> NodesFile:
    """The file with the commands as they are launched; of variables only those not as in this shell."""
    nodes = []
    for post, launch in zip(roster.posts, launches, strict=True):
        redactor = Redactor.of(launch.env, launch.argv, cwd=launch.cwd)
        changed = {name: value for name, value in launch.env.items() if post.shell.get(name) != value}
        nodes.append(
            replace(
                post.node,
                argv=redactor.redact_argv(launch.argv),
                env=tuple(sorted(redactor.redact_env(changed).items())),
                unset=tuple(sorted(post.shell.keys() - launch.env.keys())),
            )
        )
    return replace(roster.file, nodes=tuple(nodes))


def plan_lines(roster: Roster) -> list[str]:
    """What --dry-run prints: each node's command, secrets left out."""
    lines = [f"launch file    {roster.path}"]
    for post in roster.posts:
        launch = post.reading.command.launch
        redactor = Redactor.of(launch.env, launch.argv, cwd=launch.cwd)
        lines.append(f"{post.node.title:<14} {display(redactor.redact_argv(launch.argv))}")
        lines += [
            f"  with         {name}={value}"
            for name, value in redactor.redact_env(dict(post.node.env)).items()
        ]
    target = roster.lead.reading.target
    asked = redactor.redact_text(target.base_url) if target else ""
    deadline_s = roster.request.deadline_s
    return [
        *lines,
        f"would ask      {asked or 'nothing: its port is not known'}",
        f"deadline       {f'{deadline_s:.0f} s' if deadline_s else 'none'}",
        *(f"must meet      {mark}" for mark in roster.request.expect),
        "would signal   only processes this launch starts: TERM, up to 15 s of grace when healthy, then KILL",
    ]
