from pathlib import Path

import pytest

from shakedown.core import Experiment, Launch, Purpose
from shakedown.engines import parse, read_table
from shakedown.isolate.factors import apply, factors_of
from shakedown.isolate.judge import Showing
from shakedown.isolate.remedy import mildest_value
from shakedown.isolate.values import values_of

TABLE = read_table(
    '{"version": "1", "flags": ['
    '{"names": ["--max-num-seqs"], "values": "one", "default": "2"},'
    '{"names": ["--block-size"], "values": "one", "default": "128"},'
    '{"names": ["--attention-backend"], "values": "one", "choices": ["a", "b", "c"], "default": "c"},'
    '{"names": ["--kv-cache-dtype"], "values": "one", "default": "auto"},'
    '{"names": ["--compilation-config"], "values": "one"}, {"names": ["--enforce-eager"], "values": "none"},'
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


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e999", "Infinity"])
def test_what_nothing_lies_half_way_to_has_no_milder_values(value: str):
    """Halving the infinite never ends, and took all memory before the first launch."""
    assert offered("--max-num-seqs", value)[2].get(f"--max-num-seqs {value}") is None


def test_a_number_without_measure_is_halved_some_times_only():
    _, _, values = offered("--max-num-seqs", "1e300")
    assert len(values["--max-num-seqs 1e300"]) == 64


def test_siblings_that_read_like_no_number_are_tried_in_turn():
    offer = [("--timeout", "60"), ("--timeout", "inf")]
    tried = []

    def settle(tokens):
        tried.append(tokens)
        return Showing.FAILS

    assert mildest_value(offer, 4, settle) == (None, offer[1])
    assert tried == offer


def test_siblings_of_a_choice_are_offered_the_default_first():
    _, _, values = offered("--attention-backend", "a")
    assert [tokens[-1] for tokens in values["--attention-backend a"]] == ["c", "b"]


def test_a_bare_flag_has_no_values():
    assert offered("--enable-lora", "--enforce-eager")[2] == {}


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


def test_siblings_the_engines_table_knows_are_offered_where_its_parser_names_no_choices():
    _, _, values = offered("--kv-cache-dtype", "fp8")
    assert [tokens[-1] for tokens in values["--kv-cache-dtype fp8"]] == [
        "auto",
        "bfloat16",
        "fp8_e5m2",
        "fp8_e4m3",
    ]


def test_what_is_milder_than_an_off_switch_is_offered_for_the_default():
    _, _, values = offered()
    assert [tokens[-1] for tokens in values["compilation and CUDA graphs"]] == [
        '{"cudagraph_mode": "PIECEWISE"}',
        '{"cudagraph_mode": "NONE"}',
    ]
    assert "compilation and CUDA graphs" not in offered("--compilation-config", "{}")[2]
