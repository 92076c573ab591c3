"""`--launch FILE`: the nodes of a launch file, each read with its engine's table on the machine it names.

It starts nothing but the connections to those machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shakedown.core import Launch
from shakedown.engines.wrappers import unwrap
from shakedown.errors import ShakedownError, UsageError
from shakedown.host.local import LocalHost
from shakedown.host.machine import Machine
from shakedown.host.namespaced import NamespacedHost
from shakedown.jobs.machines import machine_at, on
from shakedown.jobs.reading import Reading, read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Talk
from shakedown.nodes import Node, NodesFile, read_nodes

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
    posts: list[Post] = []
    try:
        for node in file.nodes:
            posts.append(_post(request, file, node, talk, live=live))
    except BaseException:
        for post in posts:
            post.host.close()
        raise
    joint = replace(request.launch, argv=(*PROGRAM, str(path)), env=_environment(request.launch.env, file))
    return Roster(
        path=path,
        file=file,
        posts=tuple(posts),
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
