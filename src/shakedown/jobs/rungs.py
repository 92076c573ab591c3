"""The base ladder of one launch: which rungs it stands on, and the launch that each of them is.

It runs none: `jobs.oracle` does, as it runs every launch of a search.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shakedown.core import Command, Factor, FactorKind, Launch, Rung, Verdict
from shakedown.engines.needs import needs_of
from shakedown.isolate import Ladder
from shakedown.isolate.factors import device_of
from shakedown.jobs.reading import Reading
from shakedown.rungs import ScriptRung, parameters, script_rungs, script_text

DUMMY, TINY = "dummy weights", "a tiny model of the architecture"
WEIGHTS = "the weights of this model"
LAYERS = "num_hidden_layers"
FEWEST = 2  # layers: one may be a dense one before the experts
MOST_CURES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What the rungs of one launch are made from. `safe`: the launch in safe mode."""

    command: Command
    device: str
    ranks: int
    attention: str
    config: dict[str, Any]
    folder: Path  # where the scripts are written

    @property
    def scripts(self) -> tuple[ScriptRung, ...]:
        return script_rungs(self.device, self.ranks) if self.command.interpreter else ()

    @property
    def servers(self) -> tuple[str, ...]:
        """Rungs that are the engine itself with less to do; only where it can make up weights."""
        engine = self.command.engine
        if not engine.random_weight_settings:
            return ()
        return (TINY, DUMMY) if engine.override_flag and self.config.get(LAYERS, 0) > FEWEST else (DUMMY,)

    def launch(self, name: str, safe: Launch) -> Launch:
        """The launch of a rung; for a script, the file it is in must have been written."""
        script = next((it for it in self.scripts if it.name == name), None)
        if script is not None:
            argv = (*self.command.interpreter[:-1], str(self.script_path(script)))
            told = {"device": self.device, "ranks": self.ranks, "engine": self.command.engine.name}
            env = {**self.command.env, **parameters({**told, "attention": self.attention})}
            return replace(safe, argv=argv, env=env)
        added = [word for setting in self.command.engine.random_weight_settings for word in setting]
        if name == TINY:
            added += [self.command.engine.override_flag, json.dumps(self.overrides())]
        return replace(safe, argv=(*safe.argv, *added))

    def script_path(self, script: ScriptRung) -> Path:
        return self.folder / f"{script.script}.py"

    def write_script(self, name: str) -> bool:
        """Whether the rung is a script; it is then there, for the user to run again by hand."""
        script = next((it for it in self.scripts if it.name == name), None)
        if script is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.script_path(script).write_text(script_text(script.script))
        return script is not None

    def overrides(self) -> dict[str, Any]:
        """The user's own overrides, with few layers; what is listed layer by layer is cut with them."""
        few = max(FEWEST, int(self.config.get("first_k_dense_replace") or 0) + 1)
        given = self.command.value(self.command.engine.override_flag)
        try:
            own = json.loads(given or "{}")
        except ValueError:
            own = {}
        listed = {
            key: value[:few]
            for key, value in self.config.items()
            if isinstance(value, list) and len(value) == self.config[LAYERS]
        }
        return {**(own if isinstance(own, dict) else {}), **listed, LAYERS: few}


def base_of(reading: Reading, folder: Path) -> Base:
    command = reading.command
    return Base(
        command=command,
        device=device_of(command, reading.table),
        ranks=needs_of(command, reading.port).ranks,
        attention=command.value("--attention-backend") or "",
        config=model_config(command),
        folder=folder,
    )


def model_config(command: Command) -> dict[str, Any]:
    """The model's config.json where the model is a folder here, else {}."""
    model = command.value(*command.engine.model_flags)
    path = command.launch.cwd / (model or "") / "config.json"
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def ladder_of(base: Base, factors: tuple[Factor, ...], failing: Verdict | None = None) -> Ladder:
    """Rungs and cures. A launch that answers wrongly says nothing through made-up weights."""
    servers = base.servers if failing is not Verdict.WRONG else ()
    scripts = [Rung(name=it.name, title=it.title) for it in base.scripts]
    made_up = [Rung(name=name, title=f"the engine serves {name}", same=True) for name in servers]
    return Ladder(
        rungs=(*scripts, *made_up),
        beyond=WEIGHTS if DUMMY in servers else "",
        cures=cures_of(base, factors),
    )


def cures_of(base: Base, factors: tuple[Factor, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Other values of what the engine picks itself, or the user chose for it: backends."""
    siblings = {it.flag: it.values for it in base.command.engine.siblings if base.device in it.devices}
    found: list[tuple[str, tuple[str, ...]]] = []
    for factor in factors:
        if factor.kind is not FactorKind.BACKEND:
            continue
        flag = next((flag for flag in siblings if flag in (*factor.add_argv, *factor.was.split())), None)
        tried = {*factor.add_argv, *factor.was.split()}
        found += [
            (factor.name, (flag, value))
            for value in siblings.get(flag or "", ())
            if flag and value not in tried
        ]
    return tuple(found[:MOST_CURES])
