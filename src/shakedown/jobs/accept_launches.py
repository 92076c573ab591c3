"""The launches that `accept` compares: a command without its speculation, and with one drafter or another.

It starts nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from shakedown.core import Command, FlagTable, Launch
from shakedown.engines.needs import Speculation, speculation_of, vllm_speculation
from shakedown.errors import UsageError

GROUP = "speculative decoding"
ROUND_METRICS = "--per-request-spec-decode-metrics"  # vLLM from 0.32 on: every round in the answer
EAGLE3 = {"vllm": "eagle3", "sglang": "EAGLE3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One launch of the comparison. `speculation` None: the plain server."""

    name: str
    launch: Launch
    speculation: Speculation | None
    lookup: tuple[int, int] | None = None  # the shortest and longest match of prompt lookup
    topk: int = 1
    engine: str = "vllm"

    @property
    def drafts(self) -> int:
        return self.speculation.tokens or 0 if self.speculation else 0


def contenders(
    command: Command, table: FlagTable | None, drafters: Sequence[Path], drafts: int | None
) -> tuple[Contender, tuple[Contender, ...]]:
    """(plain, speculating ones). Raises UsageError where nothing would speculate."""
    told = speculation_of(command)
    if command.engine.name not in EAGLE3:
        raise UsageError(
            f"accept knows how vLLM and SGLang speculate, not {command.engine.name}",
            "say which engine it is with --engine, if the command hides it",
        )
    if told is None and not drafters:
        raise UsageError(
            "this command does not speculate, and no --drafter is given: there is nothing to accept",
            "give the command its speculative flags, or accept --drafter DIR",
        )
    bare = stripped(command)
    engine = command.engine.name
    plain = Contender(name="plain", launch=bare, speculation=None, engine=engine)
    if not drafters:
        assert told is not None
        k = told.tokens or default_drafts(command)
        launch = observed(command.launch, table, command)
        return plain, (
            Contender(
                name=named(told),
                launch=launch,
                speculation=replace(told, tokens=k),
                lookup=lookup_of(command, told),
                topk=topk_of(command),
                engine=engine,
            ),
        )
    k = drafts or (told.tokens if told else None) or 3
    every = observed(bare, table, command)
    return plain, tuple(with_drafter(command, every, folder, k, told) for folder in drafters)


def named(told: Speculation) -> str:
    return Path(told.drafter).name if told.drafter else told.method


def stripped(command: Command) -> Launch:
    """The same launch without what makes it speculate, or is refused where nothing does."""
    patterns = dict(command.engine.groups)[GROUP]
    gone = {
        position
        for use in command.uses
        if any(fnmatch(use.name, pattern) for pattern in patterns)
        for position in use.positions
    }
    argv = tuple(token for at, token in enumerate(command.launch.argv) if at not in gone)
    return replace(command.launch, argv=argv)


def observed(launch: Launch, table: FlagTable | None, command: Command) -> Launch:
    """With every round in each answer, where this very engine can: another version would refuse the flag, and
    this one refuses it without speculation."""
    own = command.value(ROUND_METRICS)
    if own is not None:  # what the command itself asks for; `stripped` has taken it away
        return (
            launch if launch == command.launch else replace(launch, argv=(*launch.argv, ROUND_METRICS, own))
        )
    flags = table.flags if table is not None and table.source == "live" else ()
    known = any(ROUND_METRICS in flag.names for flag in flags)
    if command.engine.name != "vllm" or not known:
        return launch
    return replace(launch, argv=(*launch.argv, ROUND_METRICS, "detailed"))


def unobserved(launch: Launch, given: Launch) -> Launch:
    """Without the flag that `observed` added: with speculation taken away vLLM would refuse it."""
    if ROUND_METRICS in given.argv:
        return launch
    at = launch.argv.index(ROUND_METRICS) if ROUND_METRICS in launch.argv else len(launch.argv)
    return replace(launch, argv=launch.argv[:at] + launch.argv[at + 2 :])


def with_drafter(
    command: Command, bare: Launch, folder: Path, drafts: int, told: Speculation | None
) -> Contender:
    """The command with this EAGLE-3 drafter; settings of its own speculation stay, but for the drafter."""
    speculation = Speculation(method=EAGLE3[command.engine.name], drafter=str(folder), tokens=drafts)
    if command.engine.name == "vllm":
        own = vllm_speculation(command) if told and told.eagle3 else {}
        config: dict[str, Any] = {
            **own,
            "method": "eagle3",
            "model": str(folder),
            "num_speculative_tokens": drafts,
        }
        added = ["--speculative-config", json.dumps(config)]
    else:
        added = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(folder)]
        added += ["--speculative-num-steps", str(drafts), "--speculative-eagle-topk", "1"]
        added += ["--speculative-num-draft-tokens", str(drafts + 1)]
    launch = replace(bare, argv=(*bare.argv, *added))
    return Contender(name=folder.name, launch=launch, speculation=speculation, engine=command.engine.name)


def default_drafts(command: Command) -> int:
    """Where the command leaves the number to the engine, it cannot be mapped to positions."""
    raise UsageError(
        "the command does not say how many tokens are drafted a round",
        'say it: "num_speculative_tokens" of vLLM, --speculative-num-steps of SGLang'
        if command.engine.name == "sglang"
        else 'say it: "num_speculative_tokens" in --speculative-config',
    )


def lookup_of(command: Command, told: Speculation) -> tuple[int, int] | None:
    if command.engine.name != "vllm" or told.method != "ngram":
        return None
    config = vllm_speculation(command)
    given = [config.get(name) for name in ("prompt_lookup_min", "prompt_lookup_max")]
    known = [each for each in given if isinstance(each, int)]
    return (known[0], known[-1]) if known else (5, 5)  # vLLM's own default


def topk_of(command: Command) -> int:
    given = command.value("--speculative-eagle-topk") or "1"
    return int(given) if given.isdecimal() else 1
