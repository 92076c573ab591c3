"""The plan of a build: defaults that fit the target, and a recipe whose every key is one that is read."""

from dataclasses import fields
from pathlib import Path

import pytest

from shakedown.drafter.plan import Plan, read_plan
from shakedown.errors import UsageError


def recipe(tmp_path: Path, text: str) -> Path:
    (tmp_path / "recipe.toml").write_text(text)
    return tmp_path / "recipe.toml"


def test_without_a_recipe_the_target_writes_its_own_prompts():
    plan = read_plan(None, 4096)
    assert (plan.synth.prompts, plan.synth.samples) == (None, 20_000)
    assert plan.questions.prompts == "built-in"


def test_a_small_target_teaches_its_choice_first():
    assert read_plan(None, 576).train.teacher_temperature == 0.5
    assert read_plan(None, 4096).train.teacher_temperature == 1.0


def test_a_recipe_says_what_differs(tmp_path: Path):
    text = '[synth]\nprompts = "p.jsonl"\ntemperature = 1\n[train]\nepochs = 2\n'
    plan = read_plan(recipe(tmp_path, text + "[engines]\nbreak_even = {vllm = 1.2}"), 576)
    assert (plan.synth.prompts, plan.synth.samples, plan.synth.temperature) == ("p.jsonl", None, 1)
    assert (plan.train.epochs, plan.train.steps) == (2, 7)
    assert plan.engines.break_even == {"vllm": 1.2}


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("[synth", "is not TOML", ""),
        ("[sinth]", "has no 'sinth'", "it is synth"),
        ("[train]\nepoch = 3", "[train] has no 'epoch'", "it is epochs"),
        ("[train]\nzzz = 3", "has no 'zzz'", "known: processes, start"),
        ('[train]\nepochs = "3"', "[train] epochs is '3', which is no int", ""),
        ("[train]\nepochs = true", "epochs is True, which is no int", ""),
        ("[train]\nepochs = 1.5", "epochs is 1.5, which is no int", ""),
        ("train = 3", "[train] is not a section", ""),
    ],
)
def test_what_no_stage_reads_is_refused(tmp_path: Path, text: str, what: str, hint: str):
    with pytest.raises(UsageError) as caught:
        read_plan(recipe(tmp_path, text), 576)
    assert "recipe.toml" in caught.value.message
    assert what in caught.value.message
    assert hint in " ".join(caught.value.hints)


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"none\.toml cannot be read"):
        read_plan(tmp_path / "none.toml", 576)


def test_the_documentation_names_every_key_of_a_recipe():
    text = (Path(__file__).parents[1] / "docs" / "drafter.md").read_text()
    table = text[text.index("## The recipe") : text.index("## On eight GPUs")]
    for section in fields(Plan):
        assert f"`{section.name}`" in table
        missing = [
            f"`{key.name}`" for key in fields(getattr(Plan(), section.name)) if f"`{key.name}`" not in table
        ]
        assert not missing, f"[{section.name}] {missing}"


def test_the_recipe_of_the_example_is_read():
    plan = read_plan(Path(__file__).parents[1] / "examples" / "smollm2-on-a-cpu.toml", 576)
    assert plan.synth.samples is not None
