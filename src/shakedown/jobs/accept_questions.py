"""The questions that servers are compared by: our own, or any JSON Lines.

It asks nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from shakedown.errors import DataProblem, UsageError

FORMS = 'a line holds {"text": "..."}, {"turns": ["..."]} or {"messages": [{"role", "content"}]}; also "kind"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`prompt`: its token ids, where the server must be given them."""

    kind: str
    text: str
    prompt: tuple[int, ...] | None = None


def read_questions(path: Path | None, say: Callable[[str], None] = lambda text: None) -> tuple[Question, ...]:
    """A question of each kind in turn, each once: the same answer again is no second observation.

    `say` is told how many were left out. Raises UsageError, or DataProblem naming file and line.
    """
    if path is None:
        text = (resources.files("shakedown.acceptance") / "prompts.jsonl").read_text()
    else:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(f"{path} cannot be read: {problem}") from None
    found = [
        question_of(line, f"{path or 'the built-in prompts'}:{number}")
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    if not found:
        raise UsageError(f"{path} holds no prompt", FORMS)
    different: dict[str, Question] = {}
    for question in found:
        different.setdefault(question.text, question)
    if again := len(found) - len(different):
        say(f"{again} of {len(found)} prompts in {path} ask what another one asks: left out")
    kinds: dict[str, list[Question]] = {}
    for question in different.values():
        kinds.setdefault(question.kind, []).append(question)
    deepest = max(map(len, kinds.values()))
    return tuple(each[n] for n in range(deepest) for each in kinds.values() if n < len(each))


def in_token_ids(questions: Sequence[Question], target: Path) -> tuple[Question, ...]:
    """With the prompts that the target's chat template makes of them."""
    from shakedown.drafter.template import load_template

    template = load_template(str(target))
    return tuple(
        replace(each, prompt=tuple(template.prompt([{"role": "user", "content": each.text}])))
        for each in questions
    )


def question_of(line: str, place: str) -> Question:
    """The first thing that a user says in it. Raises DataProblem."""
    try:
        found = json.loads(line)
        text = first_text(found)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        text = None
    if not isinstance(text, str) or not text.strip():
        raise DataProblem(f"{place} is no prompt", FORMS)
    kind = found.get("kind", found.get("category"))
    return Question(kind=kind if isinstance(kind, str) else "", text=text)


def first_text(found: Any) -> Any:
    if "messages" in found:
        return next(each["content"] for each in found["messages"] if each["role"] == "user")
    return found["turns"][0] if "turns" in found else found["text"]
