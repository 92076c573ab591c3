"""Chat templates: which tokens an answer is, and a mismatch wherever that cannot be told."""

from __future__ import annotations

from pathlib import Path

import pytest
from byte_model import CHATML, END, byte_model, encode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shakedown.drafter.template import ChatTemplate, Mismatch, load_template, split_reasoning
from shakedown.errors import UsageError

ASK = [{"role": "user", "content": "One?"}]
EMPTY_TAGS = CHATML.replace(
    "{{ m['content'] }}", "{% if m['role'] == 'assistant' %}<think></think>{% endif %}{{ m['content'] }}"
)
MARKERLESS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[U]{{ m['content'] }}[A]{% else %}"
    "{{ m['content'] }}<|im_end|>{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return load_template(str(byte_model(tmp_path_factory.mktemp("t"))))


def of(tmp_path: Path, text: str) -> ChatTemplate:
    return load_template(str(byte_model(tmp_path / "t", text)))


def answer(content: str, **more: str) -> dict[str, str]:
    return {"role": "assistant", "content": content, **more}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(min_size=1).filter(lambda text: text.strip() and "<|" not in text))
def test_any_answer_is_found_in_its_tokens(template: ChatTemplate, text: str):
    tokens = template.answered(ASK, answer(text))
    ((start, stop),) = tokens.mask
    assert bytes(tokens.ids[start : stop - 1]).decode() == text
    assert tokens.ids[stop - 1] == END
    assert stop == len(tokens.ids)


def test_tags_that_the_template_puts_before_an_answer_are_not_generated(tmp_path: Path):
    template = of(tmp_path, EMPTY_TAGS)
    assert template.show(*vars_of(template.answered(ASK, answer("Yes.")))).endswith(
        "assistant\n<think></think>⟦Yes.<|im_end|>⟧"
    )


def test_an_answer_that_was_cut_has_no_end(template: ChatTemplate):
    tokens = template.answered(ASK, answer("Yes, bu"), ended=False)
    assert template.show(tokens.ids, tokens.mask).endswith("⟦Yes, bu⟧")


def test_where_a_user_would_write_is_found_in_templates_with_and_without_end_markers(tmp_path: Path):
    first = of(tmp_path, CHATML).opening([])
    assert (first.text, first.stop_id) == ("<|im_start|>user\n", END)
    assert first.token_ids == encode(first.text)
    later = of(tmp_path, MARKERLESS).opening([*ASK, answer("Yes.")])
    assert (later.text, later.stop_text) == ("[U]One?[A]Yes.<|im_end|>[U]", "[")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CHATML.replace("m['content']", "m['content'] | lower"), "does not repeat a user's text"),
        ("{{ messages[0]['content'] }}", "nothing follows a user's text"),
        ("{{ raise_exception('no') }}", "the template fails: no"),
        ("{% for m in messages %}", "the template fails"),
    ],
)
def test_a_template_in_which_no_user_can_write_is_a_mismatch(tmp_path: Path, text: str, why: str):
    with pytest.raises(Mismatch, match=why):
        of(tmp_path, text).opening([])


@pytest.mark.parametrize(
    ("text", "message", "why"),
    [
        (CHATML.replace("<|im_end|>\n{% endfor %}", "\n{% endfor %}"), answer("Yes."), "ends generation"),
        (CHATML.replace("m['content']", "m['content'][:3]"), answer("Yes."), "repeat the answer"),
        (CHATML, answer("Yes.", reasoning_content="Hm."), "repeat the reasoning"),
        (CHATML, answer("Yes<|im_end|>No"), "do not give back its text"),
        ("{{ messages | length }}" + CHATML, answer("Yes."), "does not begin an answered conversation"),
    ],
)
def test_an_answer_that_the_template_does_not_give_back_is_a_mismatch(
    tmp_path: Path, text: str, message: dict[str, str], why: str
):
    with pytest.raises(Mismatch, match=why) as caught:
        of(tmp_path, text).answered(ASK, message)
    assert "One" in caught.value.shown or "Yes" in caught.value.shown


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("Hm.</think>Yes.", "Hm.", "Yes."),
        ("<think>Hm.</think>", "Hm.", ""),
    ],
)
def test_reasoning_is_split_from_an_answer(text: str, reasoning: str, content: str):
    assert split_reasoning(text) == answer(content, reasoning_content=reasoning)
    assert split_reasoning("Yes.") == answer("Yes.")


def test_models_without_template_tokenizer_or_end_are_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="has no chat template"):
        load_template(str(byte_model(tmp_path / "a", "")))
    with pytest.raises(UsageError, match=r"the tokenizer of .* cannot be read"):
        load_template(str(tmp_path))
    folder = byte_model(tmp_path / "b")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UsageError, match="names no token that ends an answer"):
        load_template(str(folder))
    (folder / "generation_config.json").write_text('{"eos_token_id": [257, 256]}')
    assert load_template(str(folder)).end_ids == {256, 257}


def vars_of(tokens: object) -> tuple[list[int], list[tuple[int, int]]]:
    return tokens.ids, tokens.mask  # type: ignore[attr-defined]
