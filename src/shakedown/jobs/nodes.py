"""`--launch FILE`: the nodes of a launch file, read with their engines' tables, and launched as one.

It decides nothing: `nodes` watches and blames, `nodes_isolate` searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from shakedown.core import Launch, TrialRecord
from shakedown.engines import display
from shakedown.engines.wrappers import unwrap
from shakedown.errors import ShakedownError, UsageError
from shakedown.host import files
from shakedown.host.local import LocalHost
from shakedown.host.machine import Machine
from shakedown.host.namespaced import NamespacedHost
from shakedown.jobs.machines import machine_at, on
from shakedown.jobs.reading import Reading, describe, read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import ExitCode, JobResult, Talk
from shakedown.jobs.run import result_of
from shakedown.jobs.trials import NODES_FACT, looking_on, occasion_of, subject_of
from shakedown.ledger import Kind, Ledger
from shakedown.nodes import Crew, Node, NodesFile, Station, read_nodes, run_nodes, write_nodes
from shakedown.redact import Redactor
from shakedown.trial import Occasion, Subject, run_recorded

WRITTEN = "launch.yaml"  # in the folder of a trial: what it launched, to be launched again
PROGRAM = ("shakedown", "run", "--launch")
LOOPBACK = "://127.0.0.1:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A node of the file, how its command reads, and the host it runs on."""

    node: Node
    reading: Reading
    host: Machine
    own_network: bool
    shell: Mapping[str, str] = field(repr=False)  # the variables that a launch there gets anyway

    @property
    def inside(self) -> tuple[str, ...]:
        """Python in the node's own network: its wrappers, then its interpreter."""
        launch = self.reading.command.launch
        found = unwrap(launch.argv)
        if found.container is not None or found.obstacles:
            return ()
        program = found.program - len(found.runner)
        return (*launch.argv[:program], *(self.reading.command.interpreter or (self.host.python(), "-")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """A launch file as it was read here. `request` is the whole launch's; its own command is not started."""

    path: Path
    file: NodesFile
    posts: tuple[Post, ...]
    request: LaunchRequest

    @property
    def lead(self) -> Post:
        return self.posts[self.file.serves]

    def close(self) -> None:
        for post in self.posts:
            post.host.close()

    @property
    def title(self) -> str:
        return f"{len(self.posts)} nodes ({', '.join(post.node.name for post in self.posts)})"


def read_roster(request: LaunchRequest, path: Path, talk: Talk, *, live: bool) -> Roster:
    """Raises UsageError for a file that cannot be used, naming the place in it."""
    if request.launch.argv:
        raise UsageError("--launch reads the commands from a file: give no CMD with it")
    if request.host or request.via:
        raise UsageError("--launch: each node of the file may have a `host` or a `via` of its own")
    path = path.absolute()
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"the launch file {path} cannot be read: {problem}") from None
    file = read_nodes(text, path.name)
    posts = tuple(_post(request, file, node, talk, live=live) for node in file.nodes)
    joint = replace(request.launch, argv=(*PROGRAM, str(path)), env=_environment(request.launch.env, file))
    return Roster(
        path=path,
        file=file,
        posts=posts,
        request=replace(request, launch=joint),
    )


def _environment(shell: Mapping[str, str], file: NodesFile) -> dict[str, str]:
    """All that may hold a secret: every node's variables beside this shell's."""
    own = {f"{node.name}:{name}": value for node in file.nodes for name, value in node.env}
    return {**shell, **own}


def _post(request: LaunchRequest, file: NodesFile, node: Node, talk: Talk, *, live: bool) -> Post:
    own_network = unwrap(node.argv).own_network
    host = machine_of(node, talk, own_network=own_network)
    there = on(host, request).launch
    env = {name: value for name, value in there.env.items() if name not in node.unset}
    launch = Launch(argv=node.argv, env={**env, **dict(node.env)}, cwd=there.cwd)
    serves = node.rank == file.serves
    asked = replace(
        request,
        launch=launch,
        port=request.port if serves else None,
        ready_url=request.ready_url if serves else None,
        ready_log=request.ready_log if serves else None,
    )
    try:
        reading = read_request(asked, host, talk, live=live)
    except UsageError as problem:
        raise UsageError(f"{node.title}: {problem.message}", *problem.hints) from None
    target = reading.target
    if target is not None and own_network and node.address and LOOPBACK in target.base_url:
        target = replace(target, base_url=target.base_url.replace(LOOPBACK, f"://{node.address}:"))
    return Post(
        node=node,
        reading=replace(reading, target=target),
        host=host,
        own_network=own_network,
        shell=there.env,
    )


def machine_of(node: Node, talk: Talk, *, own_network: bool) -> Machine:
    """Where a node runs. Raises UsageError and HostProblem, naming the node, where it cannot be reached."""
    if not node.host and not node.via:
        return NamespacedHost() if own_network else LocalHost()
    try:
        return machine_at(node.host or None, node.via or None, talk)
    except ShakedownError as problem:
        raise type(problem)(f"{node.title}: {problem.message}", *problem.hints) from None


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
        record = launch_nodes(roster, launches, subject, occasion_of(roster.lead.reading), ledger, talk)
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
    written.write_text(write_nodes(as_launched(roster, launches)))
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
    deadline_s = roster.request.deadline_s
    return [
        *lines,
        f"would ask      {target.base_url if target else 'nothing: its port is not known'}",
        f"deadline       {f'{deadline_s:.0f} s' if deadline_s else 'none'}",
        *(f"must meet      {mark}" for mark in roster.request.expect),
        "would signal   only processes this launch starts: TERM, up to 15 s of grace when healthy, then KILL",
    ]
