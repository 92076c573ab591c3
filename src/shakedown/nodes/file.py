"""The launch file: one command per node, with variables in double braces that every node shares.

It opens nothing and starts nothing: text in, nodes out, and back.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shakedown.errors import UsageError

LARGEST = 1 << 20  # characters of a file
FILE_KEYS = frozenset({"variables", "env", "command", "nodes", "serves"})
NODE_KEYS = frozenset({"name", "address", "command", "env", "unset", "host", "via", "variables"})
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,62}")
_ENV_NAME = re.compile(r"[A-Za-z_]\w*")
BUILT_IN = ("rank", "nodes", "master", "name", "address")
FORM = """write for example:
nodes:
  - {name: alpha, address: 10.0.0.1}
  - {name: beta, address: 10.0.0.2}
command: [vllm, serve, MODEL, --nnodes, "{{nodes}}", --node-rank, "{{rank}}", --master-addr, "{{master}}"]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node, variables filled in. `env` is what the file sets, `unset` what it takes away.

    `host` and `via` mean what the options of these names mean; "" for this machine.
    """

    name: str
    rank: int
    address: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    unset: tuple[str, ...] = ()
    host: str = ""
    via: str = ""

    @property
    def title(self) -> str:
        return f"node {self.name} (rank {self.rank})"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesFile:
    """The nodes in order of rank; `serves` is the rank of the one that answers requests."""

    nodes: tuple[Node, ...]
    serves: int = 0


def read_nodes(text: str, source: str) -> NodesFile:
    """Raises UsageError, naming the file and the place, for what is no launch file."""
    file = _load(text, source)
    _known(file, FILE_KEYS, source)
    entries = file.get("nodes")
    if not isinstance(entries, list) or len(entries) < 2:
        raise UsageError(f"{source}: `nodes` must list two nodes or more", FORM)
    nodes = tuple(_node(file, entries, rank, source) for rank in range(len(entries)))
    names = [node.name for node in nodes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{source}: two nodes are called {name!r}", "give each a `name` of its own")
    serves = file.get("serves", names[0])
    if serves not in names:
        raise UsageError(
            f"{source}: `serves` names {serves!r}, which is no node", f"nodes: {', '.join(names)}"
        )
    return NodesFile(nodes=nodes, serves=names.index(serves))


def write_nodes(file: NodesFile) -> str:
    """The file with everything filled in: it reads back as the same nodes."""
    import yaml

    nodes = [
        {
            "name": node.name,
            "address": node.address,
            **({"host": node.host} if node.host else {}),
            **({"via": node.via} if node.via else {}),
            "command": list(node.argv),
            "env": dict(node.env),
            **({"unset": list(node.unset)} if node.unset else {}),
        }
        for node in file.nodes
    ]
    whole = {"serves": file.nodes[file.serves].name, "nodes": nodes}
    return str(yaml.safe_dump(whole, sort_keys=False, width=110))


def _load(text: str, source: str) -> Mapping[str, Any]:
    import yaml  # only a launch file needs it

    if len(text) > LARGEST:
        raise UsageError(f"{source} is longer than {LARGEST >> 20} MiB: no launch file")
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        what = getattr(problem, "problem", None) or "it cannot be read"
        raise UsageError(f"{source}{where}: no YAML: {what}", FORM) from None
    except (RecursionError, ValueError) as problem:
        raise UsageError(f"{source}: no YAML: {problem}", FORM) from None
    if not isinstance(found, dict):
        raise UsageError(f"{source}: a launch file is a mapping with `nodes` and `command`", FORM)
    return found


def _node(file: Mapping[str, Any], entries: Sequence[Any], rank: int, source: str) -> Node:
    entry = entries[rank]
    where = f"{source}: node {rank}"
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is no mapping", FORM)
    _known(entry, NODE_KEYS, where)
    name = str(entry.get("name", f"node{rank}"))
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: {name!r} is no name for a node", "use letters, digits, . _ and -")
    first = entries[0] if isinstance(entries[0], dict) else {}
    shared = {**_table(file, "variables", source), **_table(entry, "variables", where)}
    for taken in BUILT_IN:
        if taken in shared:
            raise UsageError(f"{where}: {{{{{taken}}}}} is set by Shakedown itself", "choose another name")
    values = {
        **shared,
        "rank": str(rank),
        "nodes": str(len(entries)),
        "master": str(first.get("address", "")),
        "name": name,
        "address": str(entry.get("address", "")),
    }

    def fill(text: str) -> str:
        return _filled(text, values, where)

    env = {**_table(file, "env", source), **_table(entry, "env", where)}
    for variable in env:
        if not _ENV_NAME.fullmatch(variable):
            raise UsageError(f"{where}: {variable!r} is no name for a variable")
    argv = tuple(fill(word) for word in _words(entry.get("command", file.get("command")), where))
    return Node(
        name=name,
        rank=rank,
        address=fill(values["address"]),
        argv=argv,
        env=tuple(sorted((variable, fill(value)) for variable, value in env.items())),
        unset=tuple(map(str, entry.get("unset") or ())),
        host=fill(str(entry.get("host") or "")),
        via=fill(str(entry.get("via") or "")),
    )


def _words(command: Any, where: str) -> list[str]:
    """A list stands as it is; a line is split as a shell would, before anything is filled in."""
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError as problem:
            raise UsageError(f"{where}: its command cannot be split: {problem}") from None
    elif isinstance(command, list) and all(isinstance(word, str | int | float) for word in command):
        words = [str(word) for word in command]
    else:
        words = []
    if not words:
        raise UsageError(
            f"{where} has no command", "write `command:` for all nodes, or one in each, as a list or a line"
        )
    return words


def _table(entry: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    found = entry.get(key) or {}
    if not isinstance(found, dict) or any(isinstance(value, dict | list) for value in found.values()):
        raise UsageError(f"{where}: `{key}` must map names to values")
    return {str(name): _plain(value) for name, value in found.items()}


def _plain(value: Any) -> str:
    """YAML reads `on` and `1` as something else than text; a variable wants the text that engines take."""
    return "" if value is None else str(int(value)) if isinstance(value, bool) else str(value)


def _filled(text: str, values: Mapping[str, str], where: str) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name not in values:
            known = ", ".join(sorted(values))
            raise UsageError(f"{where}: {{{{{name}}}}} is not known", f"known: {known}")
        if not values[name] and name in ("master", "address"):
            raise UsageError(
                f"{where}: {{{{{name}}}}} needs the `address` of {'node 0' if name == 'master' else 'it'}"
            )
        return values[name]

    for _ in range(4):  # a variable may hold another
        if not _VARIABLE.search(text):
            return text
        text = _VARIABLE.sub(value, text)
    raise UsageError(f"{where}: {text!r} leads round in a circle")


def _known(entry: Mapping[str, Any], keys: frozenset[str], where: str) -> None:
    for key in entry:
        if key not in keys:
            raise UsageError(
                f"{where}: {key!r} is no key of a launch file", f"known: {', '.join(sorted(keys))}"
            )
