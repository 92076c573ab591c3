"""Prompts from JSON Lines: three forms, our own set, and what is broken named by file and line."""

import json
from collections import Counter
from pathlib import Path

import pytest

from shakedown.drafter.prompts import BUILT_IN, Prompt, read_prompts
from shakedown.errors import DataProblem, UsageError


def test_messages_turns_and_text_are_read(tmp_path: Path):
    lines = [
        {"text": "Hi?"},
        {"turns": ["One?", "Two?"], "category": "math"},
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "One?"},
                {"role": "assistant", "content": "what some other model said"},
                {"role": "user", "content": "Two?"},
            ]
        },
    ]
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read_prompts(path) == [
        Prompt(turns=["Hi?"]),
        Prompt(turns=["One?", "Two?"], kind="math"),
        Prompt(turns=["One?", "Two?"], system="Be brief."),
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"text": "Hi?"', "is not JSON"),
        ('["Hi?"]', "is not a JSON object"),
        ('{"question": "Hi?"}', "it has none of messages, turns and text, only question"),
        ('{"text": " "}', "text is not a text"),
        ('{"text": "\\ud800"}', "half a character"),
        ('{"turns": []}', "turns is not a list of texts"),
        ('{"turns": ["One?", 2]}', "turn 2 is not a text"),
        ('{"messages": "Hi?"}', "messages is not a list"),
        ('{"messages": [{"role": "assistant", "content": "Hi."}]}', "no message is a user's"),
        ('{"messages": [{"role": "tool", "content": "4"}]}', "message 1 has the role 'tool'"),
        ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "message 1 is not a text"),
    ],
)
def test_a_broken_line_is_named_by_file_and_line(tmp_path: Path, line: str, what: str):
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "Hi?"}\n' * 2 + line + "\n")
    with pytest.raises(DataProblem) as caught:
        read_prompts(path)
    assert f"{path}:3" in caught.value.message
    assert what in caught.value.message


def test_a_file_without_prompts_is_refused(tmp_path: Path):
    (tmp_path / "p.jsonl").write_text("\n\n")
    with pytest.raises(UsageError, match="holds no prompt"):
        read_prompts(tmp_path / "p.jsonl")


def test_our_own_prompts_are_twenty_of_each_of_eight_kinds():
    found = read_prompts(Path(BUILT_IN))
    assert set(Counter(prompt.kind for prompt in found).values()) == {20}
    assert len(found) == 160
    assert len({prompt.turns[0] for prompt in found}) == 160
