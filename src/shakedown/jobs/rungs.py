"""The base ladder of one launch: which rungs it stands on, and the launch that each of them is.

It runs none: `jobs.oracle` does, as it runs every launch of a search.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shakedown.core import Command, Factor, Launch, Rung
from shakedown.engines import engine_named
from shakedown.engines.needs import needs_of
from shakedown.engines.overrides import with_overrides
from shakedown.host import files
from shakedown.host.local import LocalHost
from shakedown.host.machine import Machine
from shakedown.isolate import Ladder
from shakedown.isolate.factors import device_of
from shakedown.jobs.reading import Reading
from shakedown.rungs import PASSED, ScriptRung, parameters, script_rungs, script_text
from shakedown.trial import Subject

DUMMY, TINY = "dummy weights", "a tiny model of the architecture"
WEIGHTS = "the weights of this model"
LAYERS = "num_hidden_layers"
ATTENTION = "--attention-backend"
FEWEST = 2  # layers: one may be a dense one before the experts
MOST_CURES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What the rungs of one launch are made from. `safe`: the launch in safe mode."""

    command: Command
    device: str
    ranks: int
    config: dict[str, Any]
    folder: Path  # where the scripts are written, on the machine
    drafter_reads_layers: bool = False
    machine: Machine = field(default_factory=LocalHost)

    @property
    def scripts(self) -> tuple[ScriptRung, ...]:
        told = self.known and self.command.interpreter
        return script_rungs(self.device, self.ranks, self.command.engine.name) if told else ()

    @property
    def known(self) -> bool:
        """What a server stands on that no table knows cannot be told."""
        return self.command.engine.name != "generic"

    @property
    def servers(self) -> tuple[str, ...]:
        """Rungs that are the engine itself with less to do; only where it can make up weights."""
        engine = self.command.engine
        if not self.known or not engine.random_weight_settings:
            return ()
        return (TINY, DUMMY) if engine.override_flag and self.config.get(LAYERS, 0) > FEWEST else (DUMMY,)

    def launch(self, name: str, safe: Launch) -> Launch:
        """The launch of a rung; for a script, the file it is in must have been written."""
        script = next((it for it in self.scripts if it.name == name), None)
        if script is not None:
            argv = (*self.command.interpreter[:-1], str(self.script_path(script)))
            told = {"device": self.device, "ranks": self.ranks, "engine": self.command.engine.name}
            env = {**self.command.env, **parameters({**told, "attention": attention_of(safe.argv)})}
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
            self.machine.ask(files.write_text, self.script_path(script), script_text(script.script))
        return script is not None

    def watched(self, subject: Subject) -> Subject:
        """A script is watched like any program, and passes by saying so: there is nothing to ask of it."""
        return replace(
            subject,
            engine=engine_named("generic"),
            port=None,
            target=None,
            ready_log=None,
            passed_log=PASSED,
            wrong_because="",
        )

    def stand_in(self, launch: Launch) -> Launch:
        """The same launch for less: made-up weights, and few layers where the engine can be told so and no
        drafter reads the states of the others (EAGLE-3 would fail for reasons of its own)."""
        added = [word for setting in self.command.engine.random_weight_settings for word in setting]
        flag = self.command.engine.override_flag
        argv = (*launch.argv, *added)
        if TINY in self.servers and not self.drafter_reads_layers:
            argv = with_overrides(argv, flag, self.few_layers())
        return replace(launch, argv=argv)

    def overrides(self) -> dict[str, Any]:
        """The user's own overrides, with few layers."""
        given = self.command.value(self.command.engine.override_flag)
        try:
            own = json.loads(given or "{}")
        except ValueError:
            own = {}
        return {**(own if isinstance(own, dict) else {}), **self.few_layers()}

    def few_layers(self) -> dict[str, Any]:
        """What is listed layer by layer is cut with them."""
        few = max(FEWEST, int(self.config.get("first_k_dense_replace") or 0) + 1)
        listed = {
            key: value[:few]
            for key, value in self.config.items()
            if isinstance(value, list) and len(value) == self.config[LAYERS]
        }
        return {**listed, LAYERS: few}


def base_of(reading: Reading, folder: Path) -> Base:
    command = reading.command
    needs = needs_of(command, reading.port)
    return Base(
        command=command,
        device=device_of(command, reading.table),
        ranks=needs.ranks,
        config=model_config(command, reading.machine),
        folder=folder,
        drafter_reads_layers=bool(needs.speculation and needs.speculation.eagle3),
        machine=reading.machine,
    )


def attention_of(argv: Sequence[str]) -> str:
    """The attention backend that a launch names, "" for the engine's own choice; safe mode names its own."""
    chosen = ""
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        flag, given, value = word.partition("=")
        if flag == ATTENTION:
            chosen = value if given else following
    return chosen


def model_config(command: Command, machine: Machine) -> dict[str, Any]:
    """The model's config.json where the model is a folder here, else {}."""
    model = command.value(*command.engine.model_flags)
    if not model:
        return {}
    try:
        told = json.loads(machine.ask(files.read_text, command.launch.cwd / model / "config.json") or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def ladder_of(base: Base, factors: tuple[Factor, ...]) -> Ladder:
    scripts = [Rung(name=it.name, title=it.title) for it in base.scripts]
    made_up = [Rung(name=name, title=f"the engine serves {name}", same=True) for name in base.servers]
    return Ladder(
        rungs=(*scripts, *made_up),
        beyond=WEIGHTS if base.servers else "",
        cures=cures_of(base, factors),
    )


def cures_of(base: Base, factors: tuple[Factor, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Other values of the backends that the engine picks itself, or that the user picked for it."""
    engine = base.command.engine
    backends = {switch.argv[0] for switch in engine.switches if switch.backend and switch.argv}
    found: list[tuple[str, tuple[str, ...]]] = []
    for factor in factors:
        words = {*factor.add_argv, *factor.was.split()}
        for sibling in engine.siblings:
            if sibling.flag in words & backends and base.device in sibling.devices:
                tried = words if factor.drop_argv else set(factor.add_argv)
                values = [value for value in sibling.values if value not in tried]
                found += [(factor.name, (sibling.flag, value)) for value in values]
    return tuple(found[:MOST_CURES])
