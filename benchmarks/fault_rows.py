"""The rows of the fault benchmark, and whether what was said of one is right.

It launches nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FAULTS = Path(__file__).with_name("faults.jsonl")

SHORT: Mapping[str, tuple[str, ...]] = {
    "{vllm}": ("{python}", "-m", "vllm.entrypoints.openai.api_server"),
    "{sglang}": ("{python}", "-m", "sglang.launch_server", "--device", "cpu"),
    "{here}": ("--host", "127.0.0.1", "--port", "{port}"),
    "{small}": ("--max-model-len", "2048", "--dtype", "bfloat16"),
}


def filled(text: str, names: Mapping[str, str]) -> str:
    """`{model}` and the like replaced; braces of JSON stay."""
    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], found[0]), text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row. `words` must all stand in the cause; `not_made` says why this machine cannot make it."""

    id: str
    engine: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    setup: tuple[str, ...]
    verdict: str
    phase: str
    wait: str | None
    words: tuple[str, ...]
    root: str
    usual_s: float
    not_made: str

    @classmethod
    def read(cls, line: str) -> Fault:
        row = json.loads(line)
        expected = row["expected"]
        return cls(
            id=row["id"],
            engine=row["engine"],
            argv=tuple(row["argv"]),
            env=row.get("env", {}),
            setup=tuple(row.get("setup", ())),
            verdict=expected["verdict"],
            phase=expected["phase"],
            wait=expected.get("wait"),
            words=tuple(expected.get("words", ())),
            root=row.get("root", ""),
            usual_s=row["usual_s"],
            not_made=row.get("not_made", ""),
        )

    @property
    def expected(self) -> str:
        return f"{self.verdict}{f'({self.wait})' if self.wait else ''} {self.phase}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What our program said of one fault, and which parts of it are right."""

    document: Mapping[str, Any]
    exit_code: int
    seconds: float
    struck: tuple[str, ...]
    verdict_right: bool
    phase_right: bool
    root_right: bool

    @property
    def right(self) -> bool:
        return self.verdict_right and self.phase_right and self.root_right

    @property
    def said(self) -> str:
        wait = self.document.get("wait")
        phase = self.document.get("phase") or self.document.get("error", "")
        return f"{self.document['verdict']}{f'({wait})' if wait else ''} {phase}"

    @property
    def mark(self) -> str:
        if self.right:
            return "right"
        wrong = [("verdict", self.verdict_right), ("phase", self.phase_right), ("root", self.root_right)]
        return "MISS: " + ", ".join(name for name, good in wrong if not good)


def read_faults() -> list[Fault]:
    return [Fault.read(line) for line in FAULTS.read_text().splitlines() if line]


def chosen(only: str | None) -> list[Fault]:
    """The cheapest first. `only` names rows by their id or the part before its first dash."""
    faults = sorted(read_faults(), key=lambda fault: fault.usual_s)
    if only is None:
        return faults
    wanted = only.split(",")
    unknown = [name for name in wanted if not any(named(fault, name) for fault in faults)]
    if unknown:
        raise SystemExit(f"no such fault: {', '.join(unknown)}; --list shows them all")
    return [fault for name in wanted for fault in faults if named(fault, name)]


def named(fault: Fault, name: str) -> bool:
    return name in (fault.id, fault.id.partition("-")[0])


def judge(
    fault: Fault,
    document: Mapping[str, Any],
    names: Mapping[str, str],
    *,
    exit_code: int,
    seconds: float,
    struck: tuple[str, ...] = (),
) -> Shown:
    """What our program said, held against the row. `names` are those that the row's {places} had."""
    cause = str(document.get("cause") or "")
    words = [filled(word, names) for word in fault.words]
    waits = fault.wait is None or document.get("wait") == fault.wait
    return Shown(
        document={**document, "cause": without_places(cause, names)},
        exit_code=exit_code,
        seconds=seconds,
        struck=struck,
        verdict_right=document.get("verdict") == fault.verdict and waits,
        phase_right=document.get("phase") == fault.phase,
        root_right=all(word.lower() in cause.lower() for word in words),
    )


def without_places(text: str, names: Mapping[str, str]) -> str:
    """Paths of this machine by their names; what is left of them by their last part."""
    for name in sorted(names, key=lambda name: -len(names[name])):
        if names[name].startswith("/"):
            text = text.replace(names[name], f"{{{name}}}")
    return re.sub(r"(?<![\w}.<])/(?:[^\s/'\"()]+/)+", "…/", text)


def record_of(fault: Fault, shown: Shown) -> dict[str, Any]:
    document = shown.document
    return {
        "expected": {"verdict": fault.verdict, "wait": fault.wait, "phase": fault.phase, "root": fault.root},
        "verdict": document["verdict"],
        "wait": document.get("wait"),
        "phase": document.get("phase"),
        "cause": document.get("cause") or document.get("error", ""),
        "signals": list(shown.struck),
        "exit_code": shown.exit_code,
        "seconds": round(shown.seconds, 1),
        "result": shown.mark,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
