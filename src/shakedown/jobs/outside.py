"""What a launch depends on besides its command: the model's config, folders of things compiled earlier.

It reads and links, and never changes a file of the user's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shakedown.core import Cache, Command, Launch
from shakedown.engines.overrides import with_overrides
from shakedown.host import files, foreign
from shakedown.host.local import LocalHost
from shakedown.host.machine import Machine
from shakedown.isolate.outside import Filled, Outside, overridden
from shakedown.jobs.reading import Reading
from shakedown.jobs.request import LaunchRequest

CONFIG = "config.json"
MOST_LOOKED_AT = 10_000  # entries of a cache, to find one that is not empty
NOT_COMPILED = (".lock", ".log", ".jsonl", ".tag")
HERE = LocalHost()


def outside_of(reading: Reading, request: LaunchRequest, fresh: Path) -> Outside:
    """`fresh` is where empty caches may be made."""
    command, machine = reading.command, reading.machine
    found = [_filled(cache, command, fresh, machine) for cache in command.engine.caches]
    folder = model_folder(command, machine)
    return Outside(
        marks=frozenset(expectation.mark for expectation in request.expect),
        filled=tuple(filled for filled in found if filled is not None),
        config=read_config(folder, machine) if folder else {},
    )


def model_folder(command: Command, machine: Machine = HERE) -> Path | None:
    """Where the model's files lie: the folder named, or its snapshot in the hub's cache."""
    named = command.value(*command.engine.model_flags)
    if not named:
        return None
    folder = command.launch.cwd / named
    if machine.ask(files.is_file, folder / CONFIG):
        return folder
    home = Path(command.env.get("HF_HOME") or _home(command) / ".cache/huggingface")
    hub = Path(command.env.get("HF_HUB_CACHE") or home / "hub") / f"models--{named.replace('/', '--')}"
    version = machine.ask(files.read_text, hub / "refs" / "main")
    if version is None:
        return None
    snapshot = hub / "snapshots" / version.strip()
    return snapshot if machine.ask(files.is_file, snapshot / CONFIG) else None


def weight_bytes(folder: Path, machine: Machine = HERE) -> int:
    """Some folders hold the weights twice, as `consolidated.safetensors` beside the files that are loaded."""
    loaded = machine.ask(files.size_of, folder, "model*.safetensors")
    return loaded or machine.ask(files.size_of, folder, "*.safetensors")


def read_config(folder: Path, machine: Machine = HERE) -> Mapping[str, Any]:
    try:
        found = json.loads(machine.ask(files.read_text, folder / CONFIG) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def override_config(
    command: Command,
    changes: Mapping[str, Any],
    work: Path,
    others: Callable[[Launch], Launch],
    machine: Machine = HERE,
) -> Launch:
    """The launch with values of the model's config changed: by the engine's flag where it has one, else with
    a folder in `work` that holds the changed config and links to everything else.

    `others` makes the other changes of an experiment to the launch as it was read, whose places they name.
    """
    folder = model_folder(command, machine)
    assert folder is not None, "a config to change without a model folder"
    values = overridden(read_config(folder, machine), changes)
    if flag := command.engine.override_flag:
        launch = others(command.launch)
        return replace(launch, argv=with_overrides(launch.argv, flag, values))
    return others(_with_model(command, str(changed_model(folder, values, work, machine))))


def _with_model(command: Command, other: str) -> Launch:
    """The launch with another model: in the last use of its flag, which is the one that counts."""
    use = [use for use in command.uses if use.name in command.engine.model_flags][-1]
    argv, at, named = list(command.launch.argv), use.positions[-1], use.values[-1]
    assert argv[at].endswith(named), f"{argv[at]!r} does not name the model {named!r}"
    argv[at] = argv[at].removesuffix(named) + other
    return replace(command.launch, argv=tuple(argv))


def changed_model(folder: Path, values: Mapping[str, Any], work: Path, machine: Machine = HERE) -> Path:
    text = json.dumps({**read_config(folder, machine), **values}, indent=2)
    copy = work / "models" / hashlib.sha256(text.encode()).hexdigest()[:12] / folder.name
    machine.ask(files.copy_with, folder, copy, CONFIG, text)
    return copy


def _filled(cache: Cache, command: Command, fresh: Path, machine: Machine) -> Filled | None:
    home = str(_home(command))
    default = cache.default.replace("~", home, 1)
    if "{user}" in default:
        default = default.replace("{user}", machine.ask(foreign.user_name, machine.ask(foreign.own_uid)))
    folder = Path(command.env.get(cache.variable) or default)
    if not machine.ask(
        files.holds_any, command.launch.cwd / folder / cache.holds, NOT_COMPILED, MOST_LOOKED_AT
    ):
        return None
    shown = str(folder / cache.holds)
    shown = f"~{shown.removeprefix(home)}" if shown.startswith(f"{home}/") else shown
    return Filled(cache=cache, folder=shown, fresh=str(fresh / cache.variable))


def _home(command: Command) -> Path:
    return Path(command.env.get("HOME") or Path.home())
