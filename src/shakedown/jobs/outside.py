"""What a launch depends on besides its command: the model's config, folders of things compiled earlier.

It reads and links, and never changes a file of the user's.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shakedown.core import Cache, Command, Launch
from shakedown.engines.overrides import with_overrides
from shakedown.isolate.outside import Filled, Outside, overridden
from shakedown.jobs.reading import Reading
from shakedown.jobs.request import LaunchRequest

CONFIG = "config.json"
MOST_LOOKED_AT = 10_000  # entries of a cache, to find one that is not empty
NOT_COMPILED = (".lock", ".log", ".jsonl", ".tag")


def outside_of(reading: Reading, request: LaunchRequest, fresh: Path) -> Outside:
    """`fresh` is where empty caches may be made."""
    command = reading.command
    found = [_filled(cache, command, fresh) for cache in command.engine.caches]
    folder = model_folder(command)
    return Outside(
        marks=frozenset(expectation.mark for expectation in request.expect),
        filled=tuple(filled for filled in found if filled is not None),
        config=read_config(folder) if folder else {},
    )


def model_folder(command: Command) -> Path | None:
    """Where the model's files lie: the folder named, or its snapshot in the hub's cache."""
    named = command.value(*command.engine.model_flags)
    if not named:
        return None
    folder = command.launch.cwd / named
    if (folder / CONFIG).is_file():
        return folder
    home = Path(command.env.get("HF_HOME") or _home(command) / ".cache/huggingface")
    hub = Path(command.env.get("HF_HUB_CACHE") or home / "hub") / f"models--{named.replace('/', '--')}"
    try:
        snapshot = hub / "snapshots" / (hub / "refs" / "main").read_text().strip()
    except OSError:
        return None
    return snapshot if (snapshot / CONFIG).is_file() else None


def weight_bytes(folder: Path) -> int:
    if not folder.is_dir():
        return 0
    return sum(file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file())


def read_config(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def override_config(launch: Launch, command: Command, changes: Mapping[str, Any], work: Path) -> Launch:
    """The launch with values of the model's config changed: by the engine's flag where it has one, else with
    a folder in `work` that holds the changed config and links to everything else."""
    folder = model_folder(command)
    assert folder is not None, "a config to change without a model folder"
    values = overridden(read_config(folder), changes)
    if flag := command.engine.override_flag:
        return replace(launch, argv=with_overrides(launch.argv, flag, values))
    named = command.value(*command.engine.model_flags)
    copy = str(changed_model(folder, values, work))
    return replace(launch, argv=tuple(copy if token == named else token for token in launch.argv))


def changed_model(folder: Path, values: Mapping[str, Any], work: Path) -> Path:
    text = json.dumps({**read_config(folder), **values}, indent=2)
    copy = work / "models" / hashlib.sha256(text.encode()).hexdigest()[:12] / folder.name
    copy.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        link = copy / entry.name
        if entry.name != CONFIG and not link.is_symlink():
            link.symlink_to(entry.resolve())
    (copy / CONFIG).write_text(text)
    return copy


def _filled(cache: Cache, command: Command, fresh: Path) -> Filled | None:
    home = str(_home(command))
    default = cache.default.replace("~", home, 1).replace("{user}", getpass.getuser())
    folder = Path(command.env.get(cache.variable) or default)
    if not any(_compiled(command.launch.cwd / folder / cache.holds)):
        return None
    shown = str(folder / cache.holds)
    shown = f"~{shown.removeprefix(home)}" if shown.startswith(f"{home}/") else shown
    return Filled(cache=cache, folder=shown, fresh=str(fresh / cache.variable))


def _compiled(folder: Path) -> Iterator[bool]:
    """Whether each file in it is something compiled; a link or a log is not."""
    seen = 0
    for place, _, names in os.walk(folder):
        for name in names:
            seen += 1
            if seen > MOST_LOOKED_AT:
                return
            try:
                yield not name.endswith(NOT_COMPILED) and (Path(place) / name).lstat().st_size > 0
            except OSError:
                continue


def _home(command: Command) -> Path:
    return Path(command.env.get("HOME") or Path.home())
