"""Prompts: what the target will be asked, read from JSON Lines.

It never asks, and keeps no answer that a file brings along: only the target's own count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from shakedown.drafter.samples import read_lines, read_object
from shakedown.errors import DataProblem, UsageError

BUILT_IN = "built-in"  # the 160 prompts of our own that come with the package
FORMS = 'a line holds {"messages": [{"role", "content"}, ...]}, {"turns": [...]} or {"text": "..."}'
OPENING_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One conversation to hold: its user turns in order, after a system message if there is one."""

    turns: Sequence[str]
    system: str | None = None
    kind: str | None = None

    @property
    def opening(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}] if self.system is not None else []


def read_prompts(path: Path) -> list[Prompt]:
    """Every prompt of a file. Raises UsageError, or DataProblem naming file and line."""
    if str(path) == BUILT_IN:
        with resources.as_file(resources.files("shakedown.drafter") / "prompts.jsonl") as shipped:
            return list(prompts_of(shipped))
    found = list(prompts_of(path))
    if not found:
        raise UsageError(f"{path} holds no prompt", FORMS)
    return found


def prompts_of(path: Path) -> Iterator[Prompt]:
    for number, line in read_lines(path):
        place = f"{path}:{number}"
        try:
            yield prompt_of(read_object(line, place))
        except ValueError as problem:
            raise DataProblem(f"{place} is no prompt: {problem}", FORMS) from None


def prompt_of(found: dict[str, Any]) -> Prompt:
    """Raises ValueError saying what of it is no prompt."""
    kind = found.get("kind", found.get("category"))
    kind = kind if isinstance(kind, str) else None
    if "messages" in found:
        system, turns = read_messages(found["messages"])
    elif "turns" in found:
        system, turns = None, read_turns(found["turns"])
    elif "text" in found:
        system, turns = None, [text_of(found["text"], "text")]
    else:
        raise ValueError(
            f"it has none of messages, turns and text, only {', '.join(sorted(found)) or 'nothing'}"
        )
    return Prompt(turns=turns, system=system, kind=kind)


def read_turns(found: object) -> list[str]:
    if not isinstance(found, list) or not found:
        raise ValueError("turns is not a list of texts")
    return [text_of(turn, f"turn {number}") for number, turn in enumerate(found, 1)]


def read_messages(found: object) -> tuple[str | None, list[str]]:
    """The system message and the user turns; what an assistant said is left to the target."""
    if not isinstance(found, list):
        raise ValueError("messages is not a list")
    system, turns = None, []
    for number, message in enumerate(found, 1):
        where = f"message {number}"
        if not isinstance(message, dict):
            raise ValueError(f"{where} is not an object")
        role = message.get("role")
        if role == "user":
            turns.append(text_of(message.get("content"), where))
        elif role in OPENING_ROLES and number == 1:
            system = text_of(message.get("content"), where)
        elif role != "assistant":
            raise ValueError(f"{where} has the role {role!r}, which the target cannot be asked with")
    if not turns:
        raise ValueError("no message is a user's")
    return system, turns


def text_of(found: object, where: str) -> str:
    if not isinstance(found, str) or not found.strip():
        raise ValueError(f"{where} is not a text")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} holds half a character (a lone surrogate)") from None
    return found
