"""What stands in front of a server's own command: `env K=V`, `numactl`, `timeout 2h`, `ip netns exec N` …

It keeps every token; it only says where the server's command begins and what lies before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shakedown.engines.containers import CLIENTS, ContainerCommand, Obstacle, read_run
from shakedown.engines.shared import words

# Options that take the next token, and how many plain words follow them, per wrapper.
_VALUED: dict[str, tuple[str, ...]] = {
    "nice": words("-n"),
    "ionice": words("-c -n -p"),
    "nohup": (),
    "setsid": (),
    "time": words("-f -o"),
    "exec": words("-a"),
    "command": (),
    "stdbuf": words("-i -o -e"),
    "timeout": words("-k -s"),
    "taskset": (),
    "numactl": words("-m -N -C -i -p --membind --cpunodebind --physcpubind --interleave --preferred"),
    "sudo": words("-u -g -h -p -C -D -T"),
    "env": words("-C --chdir"),
    "uv": words("--with --python -p --project --directory --extra --env-file --group --index-url"),
}
_WORDS = {"timeout": 1, "taskset": 1}

_ELSEWHERE = frozenset({"kubectl", "docker-compose", "podman-compose"})
_ROOMS = frozenset({"apptainer", "singularity", "enroot"})  # what they start descends from them
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "fish", "csh", "tcsh"})
_LAUNCHERS = frozenset({"torchrun", "accelerate", "mpirun", "mpiexec", "srun", "ray", "ssh"})

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwrapped:
    """Where the server's own command begins, and what the wrappers before it do to its environment.

    `argv` is the command as given, but for an image that is a server: its entry point stands in its place.
    """

    argv: tuple[str, ...]
    program: int
    assigned: tuple[tuple[str, str | None, int], ...] = ()  # None: as the environment has it
    unset: tuple[tuple[str, tuple[int, ...]], ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    runner: tuple[str, ...] = ()  # `uv run …`: chooses the interpreter, so it stays before it
    container: ContainerCommand | None = None
    own_network: bool = False


def base_name(token: str) -> str:
    return token.rsplit("/", 1)[-1]


def unwrap(argv: tuple[str, ...]) -> Unwrapped:
    """Look through every known wrapper; tokens are only read."""
    at = 0
    assigned: list[tuple[str, str | None, int]] = []
    unset: list[tuple[str, tuple[int, ...]]] = []
    obstacles: list[Obstacle] = []
    runner: tuple[str, ...] = ()
    container: ContainerCommand | None = None
    own_network = False
    while at < len(argv):
        name = base_name(argv[at])
        if name == "ip" and argv[at + 1 : at + 3] == ("netns", "exec"):
            own_network, at = True, at + 4
            continue
        if name in CLIENTS and container is None:
            found = read_run(argv, at)
            if isinstance(found, Obstacle):
                obstacles.append(found)
                break
            container, argv, at = found, found.seen, found.program
            assigned = list(found.assigned())  # nothing else reaches the server
            unset.clear()
            continue
        if obstacle := _opaque(name, argv[at]):
            obstacles.append(obstacle)
            break
        if name not in _VALUED or (name == "uv" and argv[at + 1 : at + 2] != ("run",)):
            break
        begin = at
        at = _skip_options(argv, at + (2 if name == "uv" else 1), name, unset, obstacles)
        at += _WORDS.get(name, 0)
        while name in {"env", "sudo"} and at < len(argv) and _ASSIGNMENT.match(argv[at]):
            key, _, value = argv[at].partition("=")
            assigned.append((key, value, at))
            at += 1
        if name == "uv":
            runner = argv[begin:at]
    return Unwrapped(
        argv=argv,
        program=min(at, len(argv)),
        assigned=tuple(assigned),
        unset=tuple(unset),
        obstacles=tuple(obstacles),
        runner=runner,
        container=container,
        own_network=own_network,
    )


def _skip_options(
    argv: tuple[str, ...],
    at: int,
    name: str,
    unset: list[tuple[str, tuple[int, ...]]],
    obstacles: list[Obstacle],
) -> int:
    begin = at
    while at < len(argv) and argv[at].startswith("-"):
        token = argv[at]
        if name == "uv" and token in {"-m", "--module"}:
            break
        at += 1
        if token == "--":
            break
        if name == "env":
            if token in {"-u", "--unset"} and at < len(argv):
                unset.append((argv[at], (at - 1, at)))
                at += 1
            elif token.startswith("--unset="):
                unset.append((token.partition("=")[2], (at - 1,)))
            elif token in {"-i", "-", "--ignore-environment"} or token.startswith(("-S", "--split-string")):
                obstacles.append(_ENV_HIDES)
        if token in _VALUED[name]:
            at += 1
    if name == "sudo" and not any(
        token == "-E" or token.startswith("--preserve-env") for token in argv[begin:at]
    ):
        obstacles.append(_SUDO_HIDES)
    return at


_ENV_HIDES = Obstacle(
    what="`env -i` or `env -S` hides the environment of the server",
    hint="Name the variables it needs instead: env K=V …, before the command.",
)
_SUDO_HIDES = Obstacle(
    what="`sudo` gives the server another environment, and another user whom we may not signal",
    hint="Run shakedown itself as that user, with the server's command without sudo.",
)


def _opaque(name: str, token: str) -> Obstacle | None:
    if name in _SHELLS or token.endswith((".sh", ".bash")):
        return Obstacle(
            what=f"`{token}` is a shell script: its flags stand inside it",
            hint="Give the command that it starts in the end (ps -ww -o args= -p PID), or --pid PID.",
        )
    if name in _ELSEWHERE:
        return Obstacle(
            what=f"what `{token}` starts could not be ended by a container's ID",
            hint="Run shakedown inside the container, or give a `docker run` command.",
            unended=True,
        )
    if name in _ROOMS:
        return Obstacle(
            what=f"`{token}` starts the server in a container whose options are not known here",
            hint="Run shakedown inside the container, or give the engine's own command.",
        )
    if name in _LAUNCHERS:
        return Obstacle(
            what=f"`{token}` starts the server through another launcher, which is not supported yet",
            hint="Give the command of one rank.",
        )
    return None
