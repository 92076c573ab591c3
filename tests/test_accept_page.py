"""The screen and the page of `accept`: everything measured is on them, and no foreign text is markup."""

from __future__ import annotations

from typing import Any

from shakedown.report.acceptance import accept_lines
from shakedown.report.acceptance_page import accept_page
from shakedown.report.plots import Dot, curves, dots


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1}


def entry(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "drafter": "<b>head</b>",
        "verdict": "accepts less than it should",
        "blame": "capture",
        "why": ["states of verification: layers are shifted by +1"],
        "more_rounds": None,
        "drafts": 2,
        "method": "eagle3",
        "source": "every round of each request",
        "tokens_per_round": interval(1.4),
        "rounds": 320,
        "requests": 16,
        "past_the_end": 0.0,
        "expected": interval(2.4),
        "comparison": {"rounds_alike": 0.4, "rounds": 300},
        "engine_states": None,
        "elsewhere": None,
        "per_position": [
            {"position": at, "conditional": interval(0.5), "unconditional": interval(0.4)} for at in (1, 2)
        ],
        "expected_per_position": [interval(0.7), interval(0.6)],
        "break_even": 1.6,
        "round_cost": interval(1.6),
        "speed_up": interval(0.9),
        "best_drafts": {"drafts": 0, "speed_up": 1.0},
        "text": {"compared": 16, "same": 15, "tied": 1, "altered": 0, "unknown": 0, "plain_with_itself": 0},
        "states": [{"stage": "verification", "fault": "layer_shift", "what": "shifted", "tokens": 300}],
        "scan": {
            "verification": {"expected": [2, 4], "errors": [[1.0, 0.5, 0.2, 0.01], [1.0, 0.6, 0.4, 0.02]]}
        },
        "why_no_expectation": None,
        "by_kind": [{"kind": "code", "tokens_per_round": 1.5, "requests": 2}],
        "by_place": [{"from": 0, "to": 9, "tokens_per_round": 1.4, "rounds": 40}],
        "at": [
            {
                "concurrency": 1,
                "tokens_per_round": interval(1.4),
                "speed_up": interval(0.9),
                "round_cost": interval(1.6),
                "tokens_per_s": 90.0,
                "plain_tokens_per_s": 100.0,
                "first_token_s": 0.02,
                "plain_first_token_s": 0.018,
                "token_s": 0.011,
                "plain_token_s": 0.01,
                "failed": 0,
                "drift": -0.01,
            }
        ],
        "next": ["shakedown isolate --expect 'accept_length >= 1.9' -- vllm serve M"],
    }
    return {**found, **changes}


def document(**changes: Any) -> dict[str, Any]:
    one = entry(**changes)
    return {
        "verdict": one["verdict"],
        "blame": one["blame"],
        "why": one["why"],
        "engine": "vllm",
        "version": "0.32.0",
        "margin": 0.1,
        "drafters": [one],
    }


def test_one_screen_holds_the_verdict_first_and_the_next_step_last():
    lines = accept_lines(document())
    assert (
        lines[0] == "<b>head</b> accepts less than it should: the engine is to blame: the states it captures"
    )
    assert all(len(line) <= 110 for line in lines)
    assert len(lines) <= 40
    text = " ".join(" ".join(lines).split())
    for part in (
        "1.40 (1.30 to 1.50)",
        "2.40 (2.30",
        "layers are shifted",
        "15 of 16 answers",
        "drifted by -1%",
    ):
        assert part in text
    assert lines[-1].startswith("               ") or "next" in lines[-1]


def test_what_was_not_measured_is_said_and_not_drawn():
    text = "\n".join(
        accept_lines(document(tokens_per_round=None, round_cost=None, expected=None, text=None, states=[]))
    )
    assert "no round; source" in text
    plain = document(scan={}, states=[], by_place=[], by_kind=[], per_position=[], expected_per_position=None)
    page = accept_page(plain)
    assert "The engine&#x27;s states" not in page
    assert "by kind of prompt" not in page


def test_the_page_draws_every_plot_and_no_markup_of_a_name():
    page = accept_page(document())
    assert page.count("<figure") == 5
    assert page.count("<circle") == 2 + 1 + 1 + 1
    assert page.count("<polyline") == 2
    assert "<b>head</b>" not in page
    assert "&lt;b&gt;head" in page
    assert "accept_length &gt;= 1.9" in page


def test_a_refused_drafter_has_a_page_without_numbers():
    bare = {
        "drafter": "d",
        "verdict": "does not fit the engine",
        "blame": "drafter",
        "why": ["d2t"],
        "more_rounds": None,
    }
    page = accept_page({"verdict": bare["verdict"], "blame": "drafter", "why": ["d2t"], "drafters": [bare]})
    assert "does not fit the engine" in page


def test_nothing_to_draw_draws_nothing():
    assert dots([], "x") is None
    assert dots([Dot(name="a", value=float("nan"))], "x") is None
    assert curves([("a", [0.0, float("inf")])], "x") is None
    assert dots([Dot(name="a", value=0.0)], "x") is not None
