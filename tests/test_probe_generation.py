"""Streamed answers of vLLM and SGLang read for tokens, times and rounds; counters read from /metrics."""

from __future__ import annotations

import json
from typing import Any

from shakedown.probe.client import Answer, Failure
from shakedown.probe.counters import SpeculationCounters, parse_counters
from shakedown.probe.generation import read_generate, read_openai, settled


def streamed(*events: Any, step_s: float = 0.1, failure: Failure | None = None) -> Answer:
    data = [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]
    pieces = tuple((step_s * (at + 1), piece) for at, piece in enumerate(data))
    return Answer(status=200, pieces=pieces, failure=failure, detail="", seconds=1.0)


def test_a_chat_of_vllm_tells_prompt_tokens_times_and_rounds():
    found = read_openai(
        streamed(
            {"prompt_token_ids": [1, 2], "choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"content": "a"}, "token_ids": [7]}]},
            {"choices": [{"delta": {"content": "bcd"}, "token_ids": [8, 9, 10]}]},
            {
                "choices": [],
                "usage": {"completion_tokens": 4},
                "metrics": {
                    "speculative_decoding": {"per_step_accepted": [2], "acceptance_histogram": [0, 0, 1, 0]}
                },
            },
        )
    )
    assert (found.prompt, found.tokens, found.rounds) == ((1, 2), (7, 8, 9, 10), (2,))
    assert found.histogram == (0, 0, 1, 0)
    assert [number for _, number in found.arrivals] == [1, 3]
    assert found.first_s is not None
    assert found.decode_s is not None
    assert round(found.decode_s, 6) == 0.1
    assert (found.decoded, found.count, found.error) == (3, 4, "")


def test_rounds_that_accepted_nothing_are_rounds():
    last = {"choices": [], "metrics": {"speculative_decoding": {"per_step_accepted": [0, 0]}}}
    found = read_openai(streamed({"choices": [{"text": "a", "token_ids": [3]}]}, last))
    assert found.rounds == (0, 0)


def test_a_server_that_tells_only_text_has_its_count_spread():
    text = [{"choices": [{"delta": {"content": "x"}}]} for _ in range(4)]
    found = read_openai(streamed(*text, {"choices": [], "usage": {"completion_tokens": 10}}))
    assert found.tokens == ()
    assert found.count == 10
    assert settled([], 5) == ()


def test_sglang_is_read_whether_it_repeats_its_tokens_or_not():
    about = {"completion_tokens": 1}
    done = {"completion_tokens": 4, "spec_verify_ct": 1, "spec_correct_drafts_histogram": [0, 0, 1]}
    repeated = streamed(
        {"output_ids": [7], "meta_info": about}, {"output_ids": [7, 8, 9, 10], "meta_info": done}
    )
    fresh = streamed({"output_ids": [7], "meta_info": about}, {"output_ids": [8, 9, 10], "meta_info": done})
    for answer in (repeated, fresh):
        found = read_generate(answer)
        assert found.tokens == (7, 8, 9, 10)
        assert found.histogram == (0, 0, 1)
        assert [number for _, number in found.arrivals] == [1, 3]


def test_what_is_no_answer_says_why():
    cut = read_openai(streamed({"choices": [{"text": "a"}]}, failure=Failure.CUT))
    assert cut.lost
    assert cut.error == "no complete answer before the deadline"
    assert read_openai(streamed({"error": {"message": "no such model"}})).error == "no such model"
    assert read_openai(streamed()).error == "it generated nothing"


def test_counters_are_summed_over_engines_and_kept_by_position():
    lines = [
        "# HELP vllm:spec_decode_num_drafts Number of spec decoding drafts.",
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0',
        'vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0',
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 12.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 8.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4.0',
        'vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",position="1"} 1.7e9',
    ]
    assert parse_counters("\n".join(lines)) == SpeculationCounters(
        rounds=15.0, accepted=12.0, per_position=(8.0, 4.0)
    )
    small = 'vllm:spec_decode_num_drafts_total{engine="0"} 1e-05\nvllm:spec_decode_num_drafts_total 2E+3 17'
    assert parse_counters(small) == SpeculationCounters(rounds=2000.00001, accepted=0.0, per_position=())
    assert parse_counters("vllm:spec_decode_num_drafts_total 1e") is None
    assert parse_counters('vllm:num_requests_running{engine="0"} 0') is None
