"""`docker run …` and its kin: what of the command line is whose, and the command that we can watch and end.

It runs no client; a container is only ever named by the ID that its own start writes down.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from shakedown.core import Container, Launch
from shakedown.engines.shared import words

CLIENTS = frozenset({"docker", "podman", "nerdctl"})

# Options of `run` that take no value; every other one does.
_BARE = frozenset(
    words(
        "--detach --init --interactive --no-healthcheck --oom-kill-disable --privileged --publish-all "
        "--quiet --read-only --replace --rm --rmi --rootfs --sig-proxy --tty --env-host --http-proxy "
        "--no-hosts --no-hostname --passwd --read-only-tmpfs --tls-verify --unsetenv-all "
        "--disable-content-trust"
    )
)
_SHORT = {
    "d": "--detach", "i": "--interactive", "t": "--tty", "q": "--quiet", "P": "--publish-all",
    "e": "--env", "p": "--publish",
}  # fmt: skip
_LETTERS = {name: letter for letter, name in _SHORT.items()}
_BARE_SHORT = frozenset("ditqP")
_AWAY = ("-H", "-c", "-r", "--host", "--context", "--connection", "--remote", "--url", "--identity")
_GLOBAL_VALUED = frozenset(
    words(
        "--config -l --log-level --root --runroot --runtime --storage-driver --storage-opt --tmpdir "
        "--namespace -n --address -a --cgroup-manager --conmon --events-backend --network-config-dir"
    )
)
_UNATTACHED = frozenset({"--detach", "--interactive", "--tty", "--cidfile", "--detach-keys"})
_PORT = re.compile(r"(?:(?P<address>\[[^]]+\]|[\d.]+):)?(?P<outer>\d+):(?P<inner>\d+)(?:/tcp)?")

# Images whose entry point is the server, by the beginning of their last name: arguments alone follow it.
_SERVER_IMAGES = (("vllm-openai", "vllm.entrypoints.openai.api_server"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of `run` by its long name, and its places in argv."""

    name: str
    value: str
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerCommand:
    """A `run` read. `seen` is argv as the server's own command reads: what starts it stands at `program`."""

    container: Container
    options_at: int
    options: tuple[Option, ...]
    image_at: int
    seen: tuple[str, ...]
    program: int

    def assigned(self) -> tuple[tuple[str, str | None, int], ...]:
        """Every `-e K=V`, and `-e K` with None for a value that the client's environment has."""
        found = []
        for option in self.options:
            if option.name == "--env":
                name, equals, value = option.value.partition("=")
                found += [(name, value if equals else None, at) for at in option.positions]
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why the server's own flags cannot be changed through this command, and the way out.

    `unended`: nor could the server be ended.
    """

    what: str
    hint: str
    unended: bool = False


def read_run(argv: tuple[str, ...], at: int) -> ContainerCommand | Obstacle:
    """`argv[at]` is the client; what stands before it is some other wrapper."""
    client = at
    at += 1
    while at < len(argv) and argv[at].startswith("-"):
        name = argv[at].partition("=")[0]
        if name in _AWAY:
            return Obstacle(
                what=f"`{argv[client]} {name}` starts the server on another machine",
                hint="Run shakedown on that machine.",
                unended=True,
            )
        at += 2 if name in _GLOBAL_VALUED and "=" not in argv[at] else 1
    globals_end = at
    at += argv[at : at + 1] == ("container",)
    verb = argv[at] if at < len(argv) else ""
    if verb != "run":
        return Obstacle(
            what=f"what `{f'{argv[client]} {verb}'.strip()}` starts could not be ended by a container's ID",
            hint="Give the `run` command that makes the container, or run shakedown inside it.",
            unended=True,
        )
    options, image_at = _read_options(argv, at + 1)
    if image_at >= len(argv):
        return Obstacle(
            what=f"`{argv[client]} run` names no image", hint="Give the image, then what it shall run."
        )
    given = {option.name: option.value for option in options}
    network = given.get("--network", given.get("--net", ""))
    container = Container(
        client=argv[client:globals_end],
        ports=tuple(
            port for option in options if option.name == "--publish" for port in _ports(option.value)
        ),
        shares_network=network == "host",
    )
    seen, program = _server(argv, image_at, given.get("--entrypoint"))
    return ContainerCommand(
        container=container,
        options_at=at + 1,
        options=options,
        image_at=image_at,
        seen=seen,
        program=program,
    )


def attached(launch: Launch, found: ContainerCommand, id_file: Path) -> Launch:
    """The launch as it is started: in the foreground, without a terminal, its container's ID written down.

    In the foreground its output is ours to read and its end ours to see; the container is the same.
    """
    argv: list[str] = list(launch.argv[: found.options_at])
    argv += ["--cidfile", str(id_file)]
    argv += _without(launch.argv, found, _UNATTACHED)
    argv += launch.argv[found.image_at :]
    return replace(launch, argv=tuple(argv), container=replace(found.container, id_file=id_file))


def with_variables(launch: Launch, before: Launch, found: ContainerCommand) -> Launch:
    """What an experiment set in the environment becomes `-e`, for nothing else reaches the server."""
    new = {name: value for name, value in launch.env.items() if before.env.get(name) != value}
    options = [word for name, value in sorted(new.items()) for word in ("-e", f"{name}={value}")]
    at = found.options_at  # what stands before it is never changed
    return replace(launch, argv=(*launch.argv[:at], *options, *launch.argv[at:]), env=before.env)


def _without(argv: tuple[str, ...], found: ContainerCommand, names: frozenset[str]) -> list[str]:
    """The options but those; of a bundle such as `-itp 8000:8000` the rest stays."""
    kept: dict[int, str] = {at: argv[at] for at in range(found.options_at, found.image_at)}
    for option in found.options:
        if option.name not in names:
            continue
        first, *others = option.positions
        for at in others:
            kept.pop(at)
        letter = _LETTERS.get(option.name, "")
        left = "-" if argv[first].startswith("--") else kept[first].replace(letter, "", 1)
        kept[first] = left
        if left == "-":
            kept.pop(first)
    return [kept[at] for at in sorted(kept)]


def _read_options(argv: tuple[str, ...], at: int) -> tuple[tuple[Option, ...], int]:
    """The options from `at` on, and where the image stands."""
    options: list[Option] = []
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "-":
        token = argv[at]
        if token == "--":
            at += 1
            break
        read = _long(argv, at) if token.startswith("--") else _shorts(argv, at)
        options += read
        at = max(option.positions[-1] for option in read) + 1
    return tuple(options), at


def _long(argv: tuple[str, ...], at: int) -> list[Option]:
    name, equals, value = argv[at].partition("=")
    if equals or name in _BARE:
        return [Option(name=name, value=value, positions=(at,))]
    return [Option(name=name, value="".join(argv[at + 1 : at + 2]), positions=(at, at + 1))]


def _shorts(argv: tuple[str, ...], at: int) -> list[Option]:
    """`-it`, `-eK=V`, `-p 8000:8000`, `-dp8000:8000`: bare letters, then at most one that takes a value."""
    found: list[Option] = []
    letters = argv[at][1:]
    for place, letter in enumerate(letters):
        name = _SHORT.get(letter, f"-{letter}")
        if letter in _BARE_SHORT:
            found.append(Option(name=name, value="", positions=(at,)))
            continue
        glued = letters[place + 1 :].removeprefix("=")
        value = glued or "".join(argv[at + 1 : at + 2])
        found.append(Option(name=name, value=value, positions=(at,) if glued else (at, at + 1)))
        break
    return found


def _ports(value: str) -> list[tuple[str, int, int]]:
    found = _PORT.fullmatch(value)
    if found is None:
        return []
    address = (found["address"] or "").strip("[]")
    return [(address, int(found["outer"]), int(found["inner"]))]


def _server(argv: tuple[str, ...], image_at: int, entry: str | None) -> tuple[tuple[str, ...], int]:
    """argv with the entry point in the place of the image, where it starts the server, and where that is."""
    if entry:
        return (*argv[:image_at], entry, *argv[image_at + 1 :]), image_at
    name = re.split(r"[:@]", argv[image_at].rsplit("/", 1)[-1])[0]
    for beginning, started in _SERVER_IMAGES:
        if name.startswith(beginning):
            return (*argv[:image_at], started, *argv[image_at + 1 :]), image_at
    if argv[image_at + 1 : image_at + 2] and argv[image_at + 1].startswith("-"):
        return argv, image_at  # arguments of whatever the image starts
    return argv, image_at + 1
