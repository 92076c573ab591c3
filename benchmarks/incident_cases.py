"""Cases made from real incidents: their own flags and confirmed culprits, among flags of other incidents.

It launches nothing. A culprit is given as the terms that must hold for the failure; which factors that blames
is worked out by asking of each factor whether its change makes a term false.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from engine_like import term_holds  # tests/bad_servers
from stand_in import given_flags

from shakedown.core import Command, Experiment, Factor, FlagTable, Launch, Purpose
from shakedown.engines import engine_named, parse, read_table
from shakedown.isolate.closure import Dependencies
from shakedown.isolate.factors import apply, factors_of
from shakedown.isolate.outside import Outside

HERE = Path(__file__).parent
PROGRAM = HERE.parent / "tests" / "bad_servers" / "engine_like.py"
MODEL_FLAG = {"vllm": "--model", "sglang": "--model-path"}
MARKS = {"slow": "tokens_per_s >= 200", "few": "accept_length >= 2"}
PACE = "80"  # tokens a second of a slow one: a request is over before the hurried watch gets suspicious
MOST_ADDED = 16  # tokens' worth of flags from other incidents

# Every second launch of these engines carries some of them.
COMMON = {
    "vllm": "--seed 1|--disable-fastapi-docs|--block-size 32|--max-num-seqs 64|--generation-config vllm|"
    "--uvicorn-log-level warning|--max-logprobs 5|--enable-prompt-tokens-details|--disable-cascade-attn|"
    "--long-prefill-token-threshold 512|--enable-log-requests|--scheduling-policy fcfs",
    "sglang": "--random-seed 1|--log-level info|--stream-interval 2|--schedule-policy lpm|--enable-metrics|"
    "--max-running-requests 64|--decode-log-interval 20|--watchdog-timeout 600|--log-requests|"
    "--schedule-conservativeness 0.8|--page-size 16|--enable-cache-report",
}
COMMON_ENV = {
    "vllm": {"VLLM_LOGGING_LEVEL": "INFO", "NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "8"},
    "sglang": {"SGLANG_LOG_MS": "1", "NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "8"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`faults` are what is planted, `truth` the causes to name (an empty one: the base), one per fault."""

    id: str
    kind: str
    engine: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    faults: tuple[dict[str, Any], ...]
    truth: tuple[frozenset[str], ...]
    factors: int

    @property
    def expect(self) -> tuple[str, ...]:
        return tuple(sorted({MARKS[fault["kind"]] for fault in self.faults if fault["kind"] in MARKS}))


def table_of(engine: str) -> FlagTable:
    text = (resources.files("shakedown.engines") / "tables" / f"{engine}.json").read_text()
    table = read_table(text, engine=engine, source="shipped")
    assert isinstance(table, FlagTable)
    return table


def launch_of(case: Case, python: str, port: int, cwd: Path, env: Mapping[str, str]) -> Launch:
    argv = (python, str(PROGRAM), MODEL_FLAG[case.engine], "m", "--port", str(port), *case.argv)
    return Launch(argv=argv, env={**env, **case.env}, cwd=cwd)


def make_cases(seed: int) -> list[Case]:
    """Each incident as it was, among other flags three times, striking in seven starts of ten, together with
    another incident's fault, and with a symptom that moves."""
    rows = [json.loads(line) for line in (HERE / "incident_causes.jsonl").read_text().splitlines()]
    cases = []
    for row in rows:
        alike = [other for other in rows if other["engine"] == row["engine"] and other is not row]
        chance = random.Random(f"{seed} {row['id']}")
        fault = row["fault"]
        cases.append(_case(row, "as it was", row["argv"], row["env"], (fault,)))
        for number in (1, 2, 3):
            argv, env = _among_others(row, alike, chance)
            cases.append(_case(row, f"among others {number}", argv, env, (fault,)))
        argv, env = _among_others(row, alike, chance)
        if fault["when"]:
            cases.append(_case(row, "seven of ten", argv, env, ({**fault, "rate": 0.7},)))
            cases.append(_two_at_once(row, alike, chance))
        if len(fault["when"]) > 1:
            moved = {"kind": "crash", "phase": "config", "when": fault["when"][:1], "text": "moved on"}
            cases.append(_case(row, "symptom moves", argv, env, (fault, moved)))
    return [case for case in cases if case is not None and _sound(case)]


def _among_others(
    row: Mapping[str, Any], alike: list[dict[str, Any]], chance: random.Random
) -> tuple[list[str], dict[str, str]]:
    """The incident's flags with some of another incident's, and common ones, none given twice."""
    argv, env = list(row["argv"]), dict(row["env"])
    for group in (*_groups(chance.choice(alike)["argv"]), *_shuffled(COMMON[row["engine"]], chance)):
        used = {word for word in argv if word.startswith("--")}
        silenced = {term.lstrip("!").partition("=")[0] for term in row["fault"]["when"]}
        if group[0] not in used | silenced and len(argv) < len(row["argv"]) + MOST_ADDED:
            argv += group
    for name, value in COMMON_ENV[row["engine"]].items():
        env.setdefault(name, value)
    return argv, env


def _shuffled(text: str, chance: random.Random) -> list[list[str]]:
    groups = [group.split() for group in text.split("|")]
    chance.shuffle(groups)
    return groups


def _groups(argv: Iterable[str]) -> list[list[str]]:
    """A flag with its values, each."""
    groups: list[list[str]] = []
    for word in argv:
        if word.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(word)
    return groups


def _two_at_once(row: Mapping[str, Any], alike: list[dict[str, Any]], chance: random.Random) -> Case | None:
    """The incident and a crash of its own that another flag brings about at another place."""
    argv, env = _among_others(row, alike, chance)
    named = {term.lstrip("!").partition("=")[0].partition(">")[0] for term in row["fault"]["when"]}
    free = [group[0] for group in _groups(argv) if group[0].startswith("--") and group[0] not in named]
    if not free or row["fault"]["kind"] not in {"hang", "crash"}:
        return None
    other = {"kind": "crash", "phase": "kv_cache", "when": [chance.choice(free)], "text": "another fault"}
    return _case(row, "two at once", argv, env, (row["fault"], other))


def _case(
    row: Mapping[str, Any],
    kind: str,
    argv: Iterable[str],
    env: Mapping[str, str],
    faults: tuple[dict[str, Any], ...],
) -> Case:
    case = Case(
        id=f"{row['id']}, {kind}",
        kind=kind.rstrip(" 123"),
        engine=row["engine"],
        argv=tuple(argv),
        env=dict(env),
        faults=faults,
        truth=(),
        factors=0,
    )
    command, factors = factors_for(case)
    told = faults[:1] if kind == "symptom moves" else faults
    truth = tuple(_blamed(command, factors, fault["when"]) for fault in told)
    return replace(case, truth=truth, factors=len(factors))


def factors_for(case: Case) -> tuple[Command, tuple[Factor, ...]]:
    from shakedown.core import Expectation

    table = table_of(case.engine)
    launch = launch_of(case, "python", 1, Path("/"), {})
    command = parse(launch, table, engine=engine_named(case.engine))
    marks = frozenset(Expectation.read(text).mark for text in case.expect)
    return command, factors_of(command, table, Outside(marks=marks))


def _blamed(command: Command, factors: tuple[Factor, ...], terms: list[str]) -> frozenset[str]:
    """The factors without any of which a term no longer holds, less those that another implies."""
    names = frozenset(factor.name for factor in factors)

    def strikes(kept: frozenset[str]) -> bool:
        made = apply(
            command.launch, factors, Experiment(kept=kept, purpose=Purpose.SPLIT, reason="would it strike?")
        )
        settings = {**made.env, **given_flags(list(made.argv))}
        return all(term_holds(term, settings) for term in terms)

    needs = Dependencies(factors)
    assert strikes(names), f"{terms} do not hold as given"
    found = frozenset(name for name in names if not strikes(needs.without(names, {name})))
    return needs.core(found)


def _sound(case: Case) -> bool:
    """A case whose causes can be told: each blames something, unless it is the base that fails."""
    wanted = [fault["when"] for fault in case.faults][: len(case.truth)]
    blames = all(bool(truth) == bool(when) for truth, when in zip(case.truth, wanted, strict=True))
    apart = len(set(case.truth)) == len(case.truth)
    return blames and apart and case.factors > 1
