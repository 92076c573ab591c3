"""The launches that `accept` compares: only speculation differs between them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shakedown.core import Flag, FlagTable, Launch, Values
from shakedown.engines import parse
from shakedown.engines.needs import vllm_speculation
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


@pytest.mark.parametrize(
    "own",
    [
        (ROUND_METRICS, "summary"),
        (f"{ROUND_METRICS}=summary",),
        ("--per_request_spec_decode_metrics", "summary"),
    ],
)
def test_what_the_command_itself_asks_of_rounds_is_kept_and_not_asked_of_the_plain_server(own):
    plain, (drafted,) = contenders(command((*VLLM, *own)), table(ROUND_METRICS), (), None)
    assert plain.launch.argv == ("vllm", "serve", "m", "--port", "8000", "--dtype", "bfloat16")
    assert drafted.launch.argv == (*VLLM, *own)
    _, (other,) = contenders(command((*VLLM, *own)), table(ROUND_METRICS), (Path("/a"),), None)
    assert other.launch.argv.count(ROUND_METRICS) == 1
    assert other.launch.argv[other.launch.argv.index(ROUND_METRICS) + 1] == "summary"


SHORT = ("--spec-method", "eagle3", "--spec-model", "d", "--spec-tokens", "4")
DOTTED = (
    *("--speculative-config.method", "eagle3", "--speculative_config.model=d"),
    *("-sc.num-speculative-tokens", "4", "--speculative-config.draft_sample_method", "x"),
)


@pytest.mark.parametrize(
    ("flags", "own"),
    [
        (SHORT, {}),
        (DOTTED, {"draft_sample_method": "x"}),
        (("-sc", CONFIG), {"draft_sample_method": "x"}),
        ((f"-sc={CONFIG}",), {"draft_sample_method": "x"}),
        (("--speculative-config", '{"draft_sample_method": "x"}', *SHORT), {"draft_sample_method": "x"}),
        (
            ("--speculative-config", '{"method": "mtp"}', *DOTTED),
            {"draft_sample_method": "x"},
        ),  # replaced whole
    ],
)
def test_speculation_is_understood_however_vllm_takes_it(flags, own):
    """Without a table too: flags are told by their looks then."""
    for known in (None, table("--speculative-config", "--spec-method", "--spec-model", "--spec-tokens")):
        launched = Launch(argv=(*VLLM[:5], *flags), env={}, cwd=Path("/"))
        plain, (drafted,) = contenders(parse(launched, known), known, (), None)
        assert plain.launch.argv == VLLM[:5]
        assert drafted.launch.argv == launched.argv
        assert (drafted.name, drafted.drafts) == ("d", 4)
        assert drafted.speculation is not None
        assert drafted.speculation.eagle3
        _, (other,) = contenders(parse(launched, known), known, (Path("/b"),), None)
        assert other.launch.argv[:-1] == (*VLLM[:5], "--speculative-config")
        config = json.loads(other.launch.argv[-1])
        assert config == {**own, "method": "eagle3", "model": "/b", "num_speculative_tokens": 4}


def test_prompt_lookup_in_dotted_flags_has_its_match_and_a_key_below_a_key():
    dotted = ("method", "ngram"), ("num_speculative_tokens", "3"), ("prompt_lookup_max", "4"), ("a.b", "[1]")
    flags = [word for key, value in dotted for word in (f"--speculative-config.{key}", value)]
    found = command((*VLLM[:5], *flags))
    _, (drafted,) = contenders(found, None, (), None)
    assert (drafted.name, drafted.drafts, drafted.lookup) == ("ngram", 3, (4, 4))
    assert vllm_speculation(found)["a"] == {"b": [1]}


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
