"""How each version of each engine reads an EAGLE-3 directory, from surveys of their sources.

It opens no file: the shipped surveys and a live one are text handed to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shakedown.core import Missing
from shakedown.engines.lint.survey import SENTINEL


class LayerRule(StrEnum):
    """How a configured number k becomes the layer whose input is captured."""

    INPUT = "input"  # the input of layer k
    OUTPUT = "output"  # k + 1: the output of layer k
    OUTPUT_IF_FIRST_IS_1 = "output_if_first_is_1"  # k + 1 where the first number is 1, else k
    OUTPUT_UNLESS_LAST_IS_N = "output_unless_last_is_n"  # k where the largest is the layer count, else k + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """One engine, version and (vLLM) model runner."""

    engine: str
    version: str
    runner: str | None  # "V1" or "V2" in vLLM
    targets: Mapping[str, LayerRule]  # architecture -> rule, of every target it captures states from
    drafters: Mapping[str, str]  # architecture -> module that loads it
    honoured: Mapping[str, frozenset[str]]  # module -> keys of the config that it reads
    reads_top_level: bool
    reads_nested: bool
    speculators: bool  # reads the speculators format
    raises_max_positions: bool = False  # to the target's
    refuses_short_drafters: bool = False  # whose max_position_embeddings is below the target's length
    live: bool = False

    @property
    def title(self) -> str:
        name = {"vllm": "vLLM", "sglang": "SGLang"}[self.engine]
        return f"{name} {self.version}" + (f" ({self.runner} runner)" if self.runner else "")

    @property
    def is_sglang(self) -> bool:
        return self.engine == "sglang"


def read_surveys(text: str) -> tuple[EngineProfile, ...]:
    """The shipped table: a JSON list of surveys."""
    return tuple(profile for row in json.loads(text) for profile in _profiles(row, live=False))


def read_live_survey(text: str) -> tuple[EngineProfile, ...] | Missing:
    """What the survey script printed in an engine's interpreter."""
    _, found, after = text.rpartition(SENTINEL)
    try:
        if not found:
            raise ValueError("it printed no survey")
        return _profiles(json.loads(after.strip().partition("\n")[0]), live=True)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        return Missing(what="survey of the engine", why=str(problem))


def nearest(
    profiles: Sequence[EngineProfile], engine: str | None, version: str | None
) -> tuple[EngineProfile, ...]:
    """The profiles to judge by: all, one engine's, or of a version the newest read at or below it."""
    chosen = [profile for profile in profiles if engine in (None, profile.engine)]
    if version is None:
        return tuple(chosen)
    wanted = numbers(version)
    below = [profile.version for profile in chosen if numbers(profile.version) <= wanted]
    found = max(below or [min(chosen, key=lambda p: numbers(p.version)).version], key=numbers)
    return tuple(profile for profile in chosen if profile.version == found)


def numbers(version: str) -> tuple[int, ...]:
    """`0.5.14.post1` as (0, 5, 14): what follows the digits is left out."""
    parts = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


def _profiles(row: Mapping[str, Any], *, live: bool) -> tuple[EngineProfile, ...]:
    is_vllm = row["engine"] == "vllm"
    runners = ("V1", *(("V2",) if row.get("has_v2") else ())) if is_vllm else (None,)
    return tuple(
        EngineProfile(
            engine=str(row["engine"]),
            version=str(row["version"]),
            runner=runner,
            targets={name: LayerRule(rule) for rule, names in row["targets"].items() for name in names},
            drafters=dict(row["drafters"]),
            honoured={module: frozenset(keys) for module, keys in row["honoured"].items()},
            reads_top_level=is_vllm,
            reads_nested=not is_vllm or (runner == "V1" and bool(row["v1_reads_nested"])),
            speculators="eagle3" in row["speculators"],
            raises_max_positions=bool(row.get("raises_max_positions")),
            refuses_short_drafters=bool(row.get("refuses_short_drafters")),
            live=live,
        )
        for runner in runners
    )
