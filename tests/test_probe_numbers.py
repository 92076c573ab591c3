"""Reading untrusted answers and judging numbers, without a server."""

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import Verdict
from shakedown.probe import Layer, LayerState
from shakedown.probe.answers import Scored, error_of, quote, read_scored, read_text, refusal
from shakedown.probe.client import Answer
from shakedown.probe.numeric import decide, is_loop, judge_consistency, judge_logits, judge_nll
from shakedown.probe.passages import CODE_WORD, COPY

NAMES = re.findall(
    r"\w+",
    "choices text delta message content reasoning usage completion_tokens prompt_tokens logprobs tokens "
    "token_logprobs error detail",
)
SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=20,
)


def answer(*pieces: bytes) -> Answer:
    timed = tuple((float(n + 1), piece) for n, piece in enumerate(pieces))
    return Answer(status=200, pieces=timed, failure=None, detail="", seconds=9.0)


def scored(values: list[float], prompt_tokens: int = 2) -> Scored:
    tokens = tuple(f"token_id:{n}" for n in range(len(values) + 1))
    return Scored(tokens=tokens, logprobs=(None, *values), prompt_tokens=prompt_tokens, text="")


@given(SHAPES)
def test_any_json_is_read_without_an_exception(value: object):
    for whole in (json.dumps(value), json.dumps({"choices": [value]}), f"data: {json.dumps(value)}\n\n"):
        given_answer = answer(whole.encode())
        assert read_text(given_answer).tokens >= 0
        read_scored(given_answer)
        assert "\n" not in refusal(given_answer) + error_of(value)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_are_read_without_an_exception(pieces: list[bytes]):
    assert read_text(answer(*pieces)).tokens == 0 or b"choices" in b"".join(pieces)
    assert isinstance(read_scored(answer(*pieces)), str)


@given(st.text())
def test_a_quote_is_one_harmless_line(text: str):
    assert quote(text, limit=50).isprintable()
    assert len(quote(text, limit=50)) <= 50


def test_a_stream_is_read_across_the_edges_of_its_pieces():
    event = b'data: {"choices": [{"delta": {"content": "\xc3\xa9"}}]}\n\n'
    spoken = read_text(answer(event[:20], event[20:] + event, b"data: [DONE]\n\n"))
    assert (spoken.text, spoken.tokens, spoken.first_token_s) == ("éé", 2, 2.0)


def test_usage_counts_tokens_that_have_no_text():
    usage = b'{"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 5}}'
    assert read_text(answer(usage)).tokens == 5


@pytest.mark.parametrize(("shift", "state"), [(0.1, "passed"), (0.6, "failed")])
def test_decode_may_differ_from_prefill_by_rounding_only(shift: float, state: str):
    decoded, rescored = [-1.0] * 70, [-1.0, *[-1.0 - shift] * 69]
    layer = judge_consistency(scored(decoded), scored([*rescored, -1.0], prompt_tokens=71))
    assert layer.state.value == state, layer


def test_single_flipped_tokens_are_odd_and_every_fourth_is_wrong():
    flipped = [[-1.0 - 2.0 * (n % every == 0) for n in range(80)] for every in (12, 4)]
    states = [judge_consistency(scored([-1.0] * 80), scored(values, 81)).state for values in flipped]
    assert states == [LayerState.ODD, LayerState.FAILED]


def test_too_few_tokens_in_common_say_nothing():
    rescored = scored([-9.0] * 80, 81)
    other = Scored(tokens=("x", *rescored.tokens[1:]), logprobs=rescored.logprobs, prompt_tokens=81, text="")
    assert judge_consistency(scored([-1.0] * 80), other).state is LayerState.NOT_AVAILABLE


def test_two_of_three_passages_decide_and_one_minus_infinity_does_not():
    def state(*means: float) -> LayerState:
        return judge_nll({str(n): scored([-mean] * 50, 51) for n, mean in enumerate(means)}).state

    assert state(3.8, 1.0, 0.5) is LayerState.PASSED
    assert state(7.0, 1.0, 0.5) is LayerState.ODD
    assert state(7.0, 6.5, 0.5) is LayerState.FAILED
    assert judge_nll({n: scored([-9999.0, *[-1.0] * 50], 52) for n in "ab"}).state is LayerState.PASSED


def test_broken_numbers_are_told_from_none():
    values = [-1.0 - n % 7 for n in range(60)]
    assert judge_logits({"a": scored(values)}).state is LayerState.PASSED
    assert judge_logits({"a": scored([*values, math.nan])}).state is LayerState.FAILED
    assert judge_logits({"a": scored([-10.8] * 60)}).state is LayerState.FAILED
    assert judge_logits({"a": scored([*values, 12.0])}).state is LayerState.NOT_AVAILABLE


def test_a_loop_is_one_piece_and_nothing_else():
    assert is_loop("!" * 16)
    assert is_loop(" the" * 6)
    assert not is_loop("The capital of France is Paris.")
    assert not is_loop("!!!!")


def test_one_slip_costs_a_copy_one_word():
    listed = "nine, silver ladder two, green pillow eleven, yellow hammer three, orange basket six."
    assert COPY.passed(listed)
    assert COPY.passed(listed.replace("eleven", "six"))
    assert not COPY.passed("nine, silver ladder two, green pillow eleven, The same list once more:")
    assert CODE_WORD.passed(" Marigold.")
    assert not CODE_WORD.passed(" missing")


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        ({}, Verdict.SERVES),
        ({"copy": "failed"}, Verdict.UNDECIDED),
        ({"copy": "failed", "nll": "passed", "decode_vs_prefill": "passed"}, Verdict.SERVES),
        ({"copy": "failed", "nll": "odd", "decode_vs_prefill": "passed"}, Verdict.UNDECIDED),
        ({"copy": "failed", "nll": "passed", "decode_vs_prefill": "not available"}, Verdict.UNDECIDED),
        ({"copy": "failed", "code_word": "failed", "nll": "passed"}, Verdict.WRONG),
        ({"two_at_once": "odd", "nll": "passed", "decode_vs_prefill": "passed"}, Verdict.UNDECIDED),
        ({"nll": "odd", "repetition": "odd", "decode_vs_prefill": "odd"}, Verdict.SERVES),
        ({"decode_vs_prefill": "failed", "copy": "passed"}, Verdict.WRONG),
    ],
)
def test_what_the_layers_decide_together(states: dict[str, str], verdict: Verdict):
    layers = [Layer(name=name, state=LayerState(state), text="") for name, state in states.items()]
    assert decide(layers)[0] is verdict
