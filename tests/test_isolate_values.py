from pathlib import Path

from shakedown.core import Experiment, Launch, Purpose
from shakedown.engines import parse, read_table
from shakedown.isolate.factors import apply, factors_of
from shakedown.isolate.values import values_of

TABLE = read_table(
    '{"version": "1", "flags": ['
    '{"names": ["--max-num-seqs"], "values": "one", "default": "2"},'
    '{"names": ["--block-size"], "values": "one", "default": "128"},'
    '{"names": ["--attention-backend"], "values": "one", "choices": ["a", "b", "c"], "default": "c"},'
    '{"names": ["--enable-lora"], "values": "none"}]}',
    engine="vllm",
    source="shipped",
)


def offered(*flags: str):
    launch = Launch(argv=("vllm", "serve", "m", *flags), env={}, cwd=Path("/"))
    command = parse(launch, TABLE)
    return launch, factors_of(command, TABLE), values_of(factors_of(command, TABLE), command, TABLE)


def test_a_number_above_its_default_is_halved_towards_it_safest_first():
    _, _, values = offered("--max-num-seqs", "64")
    assert [tokens[-1] for tokens in values["--max-num-seqs 64"]] == ["4", "8", "16", "32"]


def test_a_number_below_its_default_is_doubled_towards_it_safest_first():
    _, _, values = offered("--block-size", "16")
    assert [tokens[-1] for tokens in values["--block-size 16"]] == ["64", "32"]


def test_siblings_of_a_choice_are_offered_the_default_first():
    _, _, values = offered("--attention-backend", "a")
    (name,) = values
    assert [tokens[-1] for tokens in values[name]] == ["c", "b"]


def test_a_bare_flag_has_no_values():
    assert offered("--enable-lora")[2] == {}


def test_a_substitute_stands_in_the_launch_in_place_of_the_users_value():
    launch, factors, values = offered("--max-num-seqs", "64")
    kept = frozenset(factor.name for factor in factors)
    (first, *_) = values["--max-num-seqs 64"]
    experiment = Experiment(
        kept=kept, purpose=Purpose.VALUE, reason="", substitutes=(("--max-num-seqs 64", first),)
    )
    argv = apply(launch, factors, experiment).argv
    assert "64" not in argv
    assert argv[argv.index("--max-num-seqs") + 1] == "4"
