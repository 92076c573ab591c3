"""The launches that `accept` compares: only speculation differs between them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shakedown.core import Flag, FlagTable, Launch, Values
from shakedown.engines import parse
from shakedown.errors import UsageError
from shakedown.jobs.accept_launches import ROUND_METRICS, contenders, unobserved

CONFIG = json.dumps(
    {"method": "eagle3", "model": "d", "num_speculative_tokens": 4, "draft_sample_method": "x"}
)
VLLM = ("vllm", "serve", "m", "--port", "8000", "--speculative-config", CONFIG, "--dtype", "bfloat16")
SGLANG = (
    *("python", "-m", "sglang.launch_server", "--model-path", "m", "--speculative-algorithm", "EAGLE3"),
    *("--speculative-draft-model-path", "d", "--speculative-num-steps", "3", "--speculative-eagle-topk", "4"),
)


def command(argv: tuple[str, ...]):
    return parse(Launch(argv=argv, env={}, cwd=Path("/")), None)


def table(*names: str) -> FlagTable:
    flags = tuple(Flag(names=(name,), values=Values.ONE) for name in names)
    return FlagTable(engine="vllm", version="0.32.0", source="live", flags=flags)


def test_the_plain_server_lacks_its_speculation_and_nothing_else():
    plain, (drafted,) = contenders(command(VLLM), None, (), None)
    assert plain.launch.argv == ("vllm", "serve", "m", "--port", "8000", "--dtype", "bfloat16")
    assert drafted.launch.argv == VLLM
    assert (plain.drafts, drafted.drafts, drafted.name) == (0, 4, "d")
    plain, (drafted,) = contenders(command(SGLANG), None, (), None)
    assert plain.launch.argv == SGLANG[:5]
    assert (drafted.drafts, drafted.topk) == (3, 4)


def test_every_round_is_asked_for_where_the_engine_can_tell_it_and_speculates():
    plain, (drafted,) = contenders(command(VLLM), table(ROUND_METRICS), (), None)
    assert ROUND_METRICS not in plain.launch.argv  # vLLM refuses it without speculation
    assert drafted.launch.argv == (*VLLM, ROUND_METRICS, "detailed")
    assert unobserved(drafted.launch, command(VLLM).launch).argv == VLLM


def test_a_table_of_another_version_adds_no_flag_that_this_one_may_refuse():
    shipped = replace(table(ROUND_METRICS), source="shipped")
    _, (drafted,) = contenders(command(VLLM), shipped, (), None)
    assert drafted.launch.argv == VLLM


def test_several_drafters_compete_under_the_commands_own_settings():
    _, (one, two) = contenders(command(VLLM), None, (Path("/a"), Path("/b")), None)
    assert (one.name, two.name, one.drafts) == ("a", "b", 4)
    config = json.loads(two.launch.argv[-1])
    assert config == {**json.loads(CONFIG), "model": "/b"}
    _, (other,) = contenders(command(SGLANG[:5]), None, (Path("/a"),), 5)
    assert other.launch.argv[-10:] == (
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/a"),
        *(
            "--speculative-num-steps",
            "5",
            "--speculative-eagle-topk",
            "1",
            "--speculative-num-draft-tokens",
            "6",
        ),
    )


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, (5, 5)),
        ({"prompt_lookup_max": 3}, (3, 3)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4)),
    ],
)
def test_prompt_lookup_matches_as_vllm_would(given, match):
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 3, **given})
    _, (drafted,) = contenders(command((*VLLM[:5], "--speculative-config", config)), None, (), None)
    assert drafted.lookup == match


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (VLLM[:5], "does not speculate"),
        (("transformers", "serve", "--port", "8000"), "not transformers"),
        ((*VLLM[:5], "--speculative-config", '{"method": "ngram"}'), "how many tokens are drafted"),
    ],
)
def test_what_has_nothing_to_compare_is_refused(argv, said):
    with pytest.raises(UsageError, match=said):
        contenders(command(argv), None, (), None)
