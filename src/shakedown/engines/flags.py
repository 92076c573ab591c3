"""Flag tables: the scripts that print one from a launch's own interpreter, and how their answer is read.

It runs nothing: the scripts are text, handed to whoever has a host.
"""

from __future__ import annotations

import json
from typing import Any

from shakedown.core import Flag, FlagTable, Missing, Values

# Engines print banners and warnings to stdout while they are imported: the table follows this line.
SENTINEL = "=== shakedown flag table ==="

_HEAD = """
import importlib, json, sys

def text(value):
    if value is None or callable(value) or type(value).__name__ == "Sentinel":
        return None
    shown = value if isinstance(value, str) else repr(value)
    return shown if len(shown) <= 80 else None

def row(names, values, choices=(), default=None):
    names = sorted(names, key=lambda name: (not name.startswith("--"), name.startswith("--no-")))
    found = {"names": names, "values": values}
    if choices:
        found["choices"] = [str(getattr(choice, "value", choice)) for choice in choices]
    if text(default) is not None:
        found["default"] = text(default)
    return found

def rows(parser):
    kinds = {0: "none", None: "one", "?": "optional"}
    return [
        row(action.option_strings, kinds.get(action.nargs, "many"), action.choices or (), action.default)
        for action in parser._actions
        if action.option_strings and "--help" not in action.option_strings
    ]
"""

_TAIL = f"""
table = read()
sys.stdout.write("\\n{SENTINEL}\\n" + json.dumps(table) + "\\n")
sys.stdout.flush()
"""

_VLLM = """
def read():
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    for name in ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"):
        try:
            make = importlib.import_module(name).make_arg_parser
            break
        except (ImportError, AttributeError):
            make = None
    import vllm
    import vllm.envs as envs
    from vllm.platforms import current_platform
    return {
        "version": vllm.__version__,
        "device": getattr(current_platform, "device_type", ""),
        "flags": rows(make(FlexibleArgumentParser())),
        "env": sorted(getattr(envs, "environment_variables", {})),
    }
"""

_SGLANG = """
def read():
    import argparse
    import sglang
    from sglang.srt.server_args import ServerArgs
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    try:
        from sglang.srt import environ
        env = sorted(n for n, f in vars(environ.Envs).items() if isinstance(f, environ.EnvField))
    except (ImportError, AttributeError):
        env = []
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {"version": sglang.__version__, "device": device, "flags": rows(parser), "env": env}
"""

_TRANSFORMERS = """
def read():
    import transformers
    from transformers.cli import transformers as program
    group = program.app
    if not hasattr(group, "commands"):
        import typer
        group = typer.main.get_command(group)
    command = group.commands["serve"]
    flags = []
    for option in command.params:
        if option.param_type_name != "option" or "--help" in option.opts:
            continue
        names = list(option.opts) + list(option.secondary_opts)
        kind = "none" if option.is_flag else "many" if option.multiple else "one"
        flags.append(row(names, kind, getattr(option.type, "choices", ()), option.default))
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {"version": transformers.__version__, "device": device, "flags": flags, "env": []}
"""

VLLM_SCRIPT = _HEAD + _VLLM + _TAIL
SGLANG_SCRIPT = _HEAD + _SGLANG + _TAIL
TRANSFORMERS_SCRIPT = _HEAD + _TRANSFORMERS + _TAIL


def read_table(text: str, *, engine: str, source: str) -> FlagTable | Missing:
    """The flag table in what a script printed (after its sentinel line) or in a shipped file (all of it)."""
    _, found, after = text.rpartition(SENTINEL)
    try:
        table: dict[str, Any] = json.loads(after.strip().partition("\n")[0] if found else text)
        flags = tuple(_read_flag(row) for row in table["flags"])
        return FlagTable(
            engine=engine,
            version=str(table["version"]),
            source=source,
            flags=flags,
            env=frozenset(table.get("env", ())),
            device=str(table.get("device", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        return Missing(what=f"flag table of {engine}", why=f"{type(problem).__name__}: {problem}")


def _read_flag(row: dict[str, Any]) -> Flag:
    return Flag(
        names=tuple(row["names"]),
        values=Values(row["values"]),
        choices=tuple(row.get("choices", ())),
        default=row.get("default"),
    )


def shipped_text(text: str) -> str:
    """What a script printed, made small enough to ship: one flag a line, no choices, no device."""
    table = json.loads(text.rpartition(SENTINEL)[2].strip().partition("\n")[0])
    lines = [
        json.dumps({key: row[key] for key in ("names", "values", "default") if key in row})
        for row in table["flags"]
    ]
    env = json.dumps(table["env"])
    return (
        f'{{"version": {json.dumps(table["version"])},\n"flags": [\n'
        + ",\n".join(lines)
        + f'],\n"env": {env}}}\n'
    )
