"""A YAML file of flags written out on the command line, as the engines' own parsers do it.

It opens nothing: the file's entries are handed in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shakedown.core import Command, Flag, FlagTable, FlagUse, Launch, Values
from shakedown.engines.flags import SENTINEL

# Run by the launch's interpreter, which has the engine's own YAML reader; the path is its argument.
SCRIPT = f"""
import json, sys, yaml
with open(sys.argv[1]) as file:
    found = yaml.safe_load(file) or {{}}
sys.stdout.write("\\n{SENTINEL}\\n" + json.dumps(list(found.items()), default=str) + "\\n")
"""


def read_entries(printed: str) -> tuple[tuple[str, Any], ...] | None:
    """What the script printed, in the file's order; None where it is none of ours."""
    try:
        rows = json.loads(printed.rpartition(SENTINEL)[2])
        return tuple((str(key), value) for key, value in rows)
    except (ValueError, TypeError):
        return None


def config_file_use(command: Command) -> FlagUse | None:
    uses = [use for use in command.uses if use.name == command.engine.config_file_flag and use.values]
    return uses[-1] if uses else None


def write_out(command: Command, entries: Sequence[tuple[str, Any]], table: FlagTable | None) -> Launch:
    """The same launch without the file. Its flags come first: what the command line says wins over them."""
    use = config_file_use(command)
    assert use is not None, "no config file is named"
    flags = {name: flag for flag in (table.flags if table else ()) for name in flag.names}
    tokens = [token for key, value in entries for token in _tokens(key, value, flags)]
    argv = command.launch.argv
    first = min(each.positions[0] for each in command.uses if each.spelled)
    kept = [token for at, token in enumerate(argv) if at not in use.positions]
    return replace(command.launch, argv=(*kept[:first], *tokens, *kept[first:]))


def _tokens(key: str, value: Any, flags: Mapping[str, Flag]) -> list[str]:
    name = f"--{key.replace('_', '-')}" if f"--{key}" not in flags else f"--{key}"
    if isinstance(value, bool):
        flag = flags.get(name)
        if flag is not None and flag.values is not Values.NONE:
            return [name, str(value).lower()]
        off = f"--no-{name.removeprefix('--')}"
        return [name] if value else [off] if off in flags else []
    if isinstance(value, list):
        return [name, *map(str, value)] if value else []
    return [name, json.dumps(value) if isinstance(value, dict) else str(value)]
