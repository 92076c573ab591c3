"""Every noun survives the way to JSON and back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shakedown.core import (
    Conclusion,
    Ending,
    Experiment,
    Factor,
    Judgement,
    Phase,
    Run,
    SearchRecord,
    TrialRecord,
    Verdict,
)
from shakedown.ledger.codec import Undecodable, from_text, to_text
from shakedown.ledger.events import Closing, Stopping, experiment_key
from shakedown.ledger.writers import Writer

# Lone surrogates stand for undecodable bytes of an argument; NaN is left out for it equals nothing.
texts = st.text(st.characters(exclude_categories=()), max_size=8)
st.register_type_strategy(str, texts)
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(Path, st.builds(Path, st.text("ab/ .é\udc80", max_size=8)))

NOUNS = (
    Judgement,
    Experiment,
    Factor,
    Conclusion,
    Ending,
    TrialRecord,
    SearchRecord,
    Closing,
    Stopping,
    Writer,
    Run,
)


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.__name__)
def test_every_noun_comes_back_as_it_was(noun):
    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(st.from_type(noun))
    def holds(value):
        text = to_text(value)
        assert text.isascii()
        assert from_text(noun, text) == value

    holds()


def test_a_field_added_since_takes_its_default_and_an_unknown_one_is_passed_over():
    old = '{"verdict": "hung", "phase": "dist_init", "of_a_newer_version": [1]}'
    assert from_text(Judgement, old) == Judgement(verdict=Verdict.HUNG, phase=Phase.DIST_INIT)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{", "not JSON"),
        ("[]", "Judgement: list where dict"),
        ('{"verdict": "hung"}', "phase is missing"),
        ('{"verdict": "weary", "phase": "import"}', "Judgement.verdict: 'weary'"),
        ('{"verdict": "hung", "phase": "import", "cause": 3}', "Judgement.cause: int where str"),
        ('{"verdict": "hung", "phase": "import", "exited": 1}', "Judgement.exited: int where bool"),
        ('{"verdict": "hung", "phase": "import", "evidence": [{}]}', "Judgement.evidence[0]: kind"),
    ],
)
def test_text_that_is_no_noun_is_refused_with_the_place(text, place):
    with pytest.raises(Undecodable) as refused:
        from_text(Judgement, text)
    assert place in str(refused.value)


def test_mappings_tuples_of_fixed_length_and_whole_floats_keep_their_types():
    @dataclass(frozen=True)
    class Noun:
        seconds: Mapping[Phase, float]
        pair: tuple[str, int]

    value = Noun(seconds={Phase.IMPORT: 3.0}, pair=("a", 1))
    assert json.loads(to_text(value)) == {"seconds": {"import": 3.0}, "pair": ["a", 1]}


def test_a_noun_without_a_json_form_is_an_error_of_ours():
    with pytest.raises(TypeError):
        to_text({"file": object()})


def test_experiments_that_launch_the_same_have_one_key_whatever_they_are_run_for():
    def experiment(**fields):
        common = {"kept": frozenset("ab"), "purpose": "split", "reason": ""}
        return Experiment(**(common | fields))

    same = experiment(kept=frozenset("ba"), purpose="alone", reason="other words")
    assert experiment_key(experiment()) == experiment_key(same)
    one = experiment(substitutes=(("a", ("1",)), ("b", ("2",))))
    assert experiment_key(one) == experiment_key(experiment(substitutes=(("b", ("2",)), ("a", ("1",)))))
    others = [{"kept": frozenset("a")}, {"repeat": 1}, {"debug": True}, {"substitutes": (("a", ()),)}]
    assert len({experiment_key(experiment(**fields)) for fields in ({}, *others)}) == 5
