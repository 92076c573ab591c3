"""The plan of a build: every number of every stage, from one TOML file over defaults that fit the target.

It never runs a stage, and takes no key that no stage reads.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shakedown.drafter.limits import what_is_wrong
from shakedown.drafter.prompts import BUILT_IN
from shakedown.errors import UsageError

TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "str | None": (str,),
    "int | None": (int,),
    "Mapping[str, Any]": (dict,),
    "Mapping[str, float]": (dict,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthPlan:
    """Where the target is served and what it is asked. `prompts` None: it writes them itself."""

    server: str | None = None
    command: str | None = None  # started for this stage; {target} stands for the target
    prompts: str | None = None
    samples: int | None = None  # None: each prompt once, or a number that fits the target
    turns: int = 1
    concurrency: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 1024
    reasoning: str = "keep"
    keep_truncated: bool = False
    template_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionsPlan:
    """What the drafter is judged on, answered greedily; none of it is trained on."""

    prompts: str = BUILT_IN
    samples: int | None = None
    max_tokens: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractPlan:
    backend: str = "transformers"
    engine_python: str | None = None
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    parity_sequences: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """As `draft train` takes them. `processes` None: one a GPU."""

    processes: int | None = None
    start: str | None = None  # an EAGLE-3 directory to go on from
    epochs: int = 5
    steps: int = 7
    draft_vocab: int = 32_000
    intermediate: int | None = None  # None: as wide an MLP as a layer of the target has
    learning_rate: float = 2e-4
    decay: float = 0.8  # weight of each further draft against the one before it
    teacher_temperature: float = 1.0  # below 1 the target's choice stands out of what is taught
    freeze_head: bool = False
    pack_rows: int = 16_384
    batch_packs: int | None = None  # None: one pack's rows, shared out among the processes
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatePlan:
    drafts: int = 3


# Measured with SmolLM2-135M-Instruct at batch 1 on one H200, k = 3 (SGLang 0.5.14, vLLM 0.25.1): one drafter
# layer beside 30 thin ones. A larger target pays relatively less for its drafter.
BREAK_EVEN = {"sglang": 2.2, "vllm": 1.6}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesPlan:
    """What a round of drafting and verifying costs, in plain steps, by engine."""

    break_even: Mapping[str, float] = field(default_factory=lambda: dict(BREAK_EVEN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    synth: SynthPlan = field(default_factory=SynthPlan)
    questions: QuestionsPlan = field(default_factory=QuestionsPlan)
    extract: ExtractPlan = field(default_factory=ExtractPlan)
    train: TrainPlan = field(default_factory=TrainPlan)
    evaluate: EvaluatePlan = field(default_factory=EvaluatePlan)
    engines: EnginesPlan = field(default_factory=EnginesPlan)


def defaults_for(hidden_size: int) -> Plan:
    """States cost 8 x hidden bytes a token: 10,000 answers of 500 tokens at width 4096 are 160 GB."""
    if hidden_size <= 1024:  # takes a high rate and many small steps; and its drafter is too small for tails
        train = TrainPlan(learning_rate=1e-3, pack_rows=4096, teacher_temperature=0.5)
        return Plan(synth=SynthPlan(max_tokens=512, concurrency=256), train=train)
    if hidden_size <= 4096:
        return Plan(synth=SynthPlan(concurrency=256))
    return Plan(train=TrainPlan(epochs=3))


def samples_for(hidden_size: int) -> int:
    return 20_000 if 1024 < hidden_size <= 4096 else 10_000


def read_plan(path: Path | None, hidden_size: int) -> Plan:
    """The defaults with what the file says instead. Raises UsageError naming file, section and key."""
    plan = overlaid(defaults_for(hidden_size), read_toml(path) if path else {}, str(path))
    if plan.synth.samples is None and plan.synth.prompts is None:
        return replace(plan, synth=replace(plan.synth, samples=samples_for(hidden_size)))
    return plan


def read_toml(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as problem:
        raise UsageError(f"{path} cannot be read: {problem.strerror}") from None
    except ValueError as problem:  # also for bytes that are no UTF-8
        raise UsageError(f"{path} is not TOML: {problem}") from None


def overlaid(plan: Plan, found: Mapping[str, Any], place: str) -> Plan:
    refuse_unknown(found, [each.name for each in fields(plan)], place)
    sections = {}
    for name, values in found.items():
        section, where = getattr(plan, name), f"{place}: [{name}]"
        if not isinstance(values, dict):
            raise UsageError(f"{where} is not a section", f"write [{name}] on a line of its own")
        known = {each.name: str(each.type) for each in fields(section)}
        refuse_unknown(values, list(known), where)
        for key, value in values.items():
            if type(value) not in TYPES[known[key]]:
                raise UsageError(f"{where} {key} is {value!r}, which is no {known[key].split(' |')[0]}")
            if wrong := what_is_wrong(name, key, value):
                raise UsageError(f"{where} {key} is {value!r}: {wrong}")
        sections[name] = replace(section, **values)
    return replace(plan, **sections)


def refuse_unknown(found: Mapping[str, Any], known: list[str], where: str) -> None:
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise UsageError(
                f"{where} has no {key!r}", f"it is {near[0]}" if near else f"known: {', '.join(known)}"
            )


def settings_of(section: Any) -> dict[str, Any]:
    """A section as JSON takes it."""
    return asdict(section)
