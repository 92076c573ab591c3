"""The plan of a build: defaults that fit the target, and a recipe whose every key is one that is read."""

import math
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shakedown.cli.draft import extract, synth, train
from shakedown.cli.draft_checks import evaluate
from shakedown.cli.main import cli
from shakedown.drafter.limits import LIMITS, OneOf, Place, Within
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


def test_a_recipe_says_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").touch()
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


@pytest.mark.parametrize(
    ("section", "text", "why"),
    [
        ("synth", 'reasoning = "Keep"', "'Keep': it must be one of keep, drop"),
        ("synth", "samples = 0", "0: it must be at least 1"),
        ("synth", "concurrency = 5000", "5000: it must be at least 1 and at most 4096"),
        ("synth", "temperature = -1", "-1: it must be at least 0 and at most 10"),
        ("synth", "top_p = nan", "nan: it must be more than 0 and at most 1"),
        ("synth", 'prompts = "gone.jsonl"', "'gone.jsonl': there is no such file, seen from /"),
        ("questions", "samples = -5", "-5: it must be at least 1"),
        ("questions", 'prompts = "gone.jsonl"', "'gone.jsonl': there is no such file"),
        ("extract", 'backend = "vlm"', "'vlm': it must be one of transformers, vllm, sglang"),
        ("extract", 'engine_python = "/gone"', "'/gone': there is no such file"),
        ("train", 'start = "/gone"', "'/gone': there is no such folder"),
        ("train", "learning_rate = 0", "0: it must be more than 0"),
        ("train", "learning_rate = nan", "nan: it must be more than 0"),
        ("train", "teacher_temperature = inf", "inf: it must be more than 0"),
        ("train", "pack_rows = 1", "1: it must be at least 2"),
        ("train", "batch_packs = 0", "0: it must be at least 1"),
        ("evaluate", "drafts = 0", "0: it must be at least 1 and at most 15"),
        ("engines", "break_even = {vllm = 0}", "{'vllm': 0}: vllm must be a number more than 0"),
        ("engines", 'break_even = {vllm = "x"}', "{'vllm': 'x'}: vllm must be a number more than 0"),
    ],
)
def test_a_value_that_no_stage_can_work_with_is_refused(tmp_path: Path, section: str, text: str, why: str):
    with pytest.raises(UsageError) as caught:
        read_plan(recipe(tmp_path, f"[{section}]\n{text}"), 576)
    key = text.partition(" ")[0]
    assert f"recipe.toml: [{section}] {key} is {why}" in caught.value.message


def test_a_recipe_takes_what_the_options_of_the_same_names_take():
    commands = {"synth": synth, "extract": extract, "train": train, "evaluate": evaluate}
    held = 0
    for section, command in commands.items():
        options = {each.name: each.type for each in command.params}
        for key, limit in LIMITS[section].items():
            kind = options.get(key)
            if isinstance(kind, click.Choice):
                assert limit == OneOf(tuple(kind.choices)), key
            elif isinstance(kind, click.IntRange | click.FloatRange):
                most = math.inf if kind.max is None else kind.max
                assert limit == Within(kind.min, most, kind.min_open), key
            else:
                assert isinstance(limit, Place) or key == "processes"  # which torchrun is told
                continue
            held += 1
    assert held == 19
    for section in fields(Plan):  # and every number and choice has a limit
        free = {"server", "command", "keep_truncated", "template_options", "engine_options"}
        free |= {"freeze_head", "seed"}
        assert {key.name for key in fields(getattr(Plan(), section.name))} - free == set(LIMITS[section.name])


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_what_is_no_number_is_refused_on_the_command_line_too(tmp_path: Path, value: str):
    words = ["draft", "train", "--target", "M", "--states", str(tmp_path), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(cli, [*words, "--learning-rate", value])
    assert result.exit_code == 2
    assert f"'{value}' is not a finite number" in result.output


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
