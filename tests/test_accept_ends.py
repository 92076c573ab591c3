"""Answers are asked for past the model's own end, and end there all the same for what is counted."""

from __future__ import annotations

import pytest

from shakedown.jobs.accept_answers import Answered, answered
from shakedown.jobs.accept_ends import end_ids, until_end
from shakedown.jobs.accept_questions import Question
from shakedown.jobs.accept_request import AcceptRequest
from shakedown.probe.generation import Generated

END = 9
ENDS = frozenset({END})


def asked(generated: Generated) -> Answered:
    return answered(Question(kind="", text=""), generated, None, drafts=2, ends=ENDS)


def told(tokens: list[int], arrivals: list[int], rounds: list[int] | None) -> Generated:
    return Generated(
        tokens=tuple(tokens),
        arrivals=tuple((0.1 * (at + 1), number) for at, number in enumerate(arrivals)),
        rounds=tuple(rounds) if rounds is not None else None,
    )


# 1 | 2 3 4 | 5 | 6 END 7 | 7 7 7: the end falls into the third round
SPECULATED = ([1, 2, 3, 4, 5, 6, END, 7, 7, 7, 7], [2, 0, 2, 2])


def test_the_round_into_which_the_end_falls_is_the_last_one_and_dropped():
    found = asked(told(SPECULATED[0], [1, 3, 1, 3, 3], SPECULATED[1]))
    assert found.generated.tokens == (1, 2, 3, 4, 5, 6, END)
    assert found.generated.rounds == (2, 0, 2)
    assert found.tally is not None
    assert (found.tally.rounds, found.tally.tokens) == (2, 4)  # all drafts and bonus lie before the end
    assert (found.past, found.came) == (0, 11)
    assert (found.effort.tokens, found.effort.steps, found.effort.rounds) == (7, 3, 3)
    assert found.effort.seconds == pytest.approx(0.3)


def test_the_pace_counts_the_rounds_of_a_piece_that_came_together():
    found = asked(told(SPECULATED[0], [1, 4, 6], SPECULATED[1]))
    assert (found.effort.tokens, found.effort.steps) == (10, 4)
    assert found.generated.rounds == (2, 0, 2)


def test_steps_without_a_draft_are_no_rounds():
    found = asked(told([1, 2, 3, 4, 5, 6, 7, 8], [1] * 8, [1, 0]))
    assert (found.effort.steps, found.effort.rounds) == (6, 2)
    idle = asked(told([1, 2, 3, 4], [1] * 4, []))
    assert (idle.effort.steps, idle.effort.rounds) == (3, 0)


def test_an_answer_that_does_not_end_is_whole_and_one_that_begins_with_the_end_has_no_round():
    whole = told(SPECULATED[0], [1, 3, 1, 3, 3], SPECULATED[1])
    assert until_end(whole, frozenset({77}), drafted=True) is whole
    found = asked(told([END, 1, 2, 3], [1, 3], [2]))
    assert (found.generated.tokens, found.generated.rounds) == ((END,), ())
    assert found.tally is not None
    assert found.tally.rounds == 0


def test_rounds_that_cannot_be_placed_keep_the_text_past_the_end_and_say_how_much():
    """Steps without a draft lie between them, or only sums are told."""
    tokens = [1, 2, END, 4, 5, 6]
    for rounds in ([1], None):
        found = asked(told(tokens, [1] * 6, rounds))
        assert found.generated.tokens == tuple(tokens)
        assert found.past == 3


def test_a_plain_server_answers_up_to_the_end_too():
    plain = until_end(told([1, 2, END, 4, 5], [1] * 5, None), ENDS, drafted=False)
    assert plain.tokens == (1, 2, END)
    assert plain.decoded == 2


def test_the_end_marks_are_the_targets_and_unknown_without_one(tmp_path):
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [6, 7]}')
    assert end_ids(AcceptRequest(target=str(tmp_path)), None) == {5, 6, 7}
    assert end_ids(AcceptRequest(target=str(tmp_path / "nowhere")), None) == frozenset()
