"""The fast path, the plain one and a literal drafter with a cache say the same; no row sees a later one."""

from dataclasses import replace

import pytest
import torch
from drafter_texts import (
    TARGET_HIDDEN,
    VOCAB,
    every_last,
    small_drafter,
    small_vocabulary,
    text_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from shakedown.drafter.fast import learn
from shakedown.drafter.packing import PackShape, loss_rows, pack_documents, pack_pieces, pieces_of
from shakedown.drafter.reference import learn_plainly, unroll_plainly
from shakedown.drafter.teacher import TargetHead

STEPS, DECAY = 4, 0.8
TEXTS = {
    "one answer": [0] * 9 + [1] * 14,
    "two turns": [0] * 5 + [1] * 7 + [0] * 6 + [1] * 11 + [0] * 2,
    "an answer of two tokens": [0] * 6 + [1] * 2 + [0] * 4 + [1] * 9,
    "all generated": [1] * 12,
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def head() -> torch.Tensor:
    return torch.randn(VOCAB, TARGET_HIDDEN, generator=torch.Generator().manual_seed(7))


def packed(texts, *, spare_tokens=5, spare_rows=3):
    rows = sum(len(text.last_rows) for text in texts)
    shape = PackShape(tokens=sum(len(text.tokens) for text in texts) + spare_tokens, rows=rows + spare_rows)
    return pack_documents(list(enumerate(texts)), shape)


def fast_lesson(drafter, vocabulary, pack, temperature=1.0):
    teacher = TargetHead(head(), vocabulary, temperature).teach(pack.last)
    return learn(drafter, pack, teacher, steps=STEPS, decay=DECAY, rows=1)


def plain_lessons(drafter, vocabulary, texts, temperature=1.0):
    return [
        learn_plainly(
            drafter,
            vocabulary,
            head(),
            text.tokens.long(),
            text.mask,
            text.aux,
            every_last(text),
            steps=STEPS,
            decay=DECAY,
            teacher_temperature=temperature,
        )
        for text in texts
    ]


def differentiated(drafter, learn_total):
    """What `learn_total` hands back, and the gradients of its total."""
    drafter.zero_grad()
    lesson, total = learn_total()
    total.backward()
    return lesson, {name: parameter.grad.clone() for name, parameter in drafter.named_parameters()}


def fast_and_gradients(drafter, vocabulary, pack, temperature=1.0):
    def learn_total():
        lesson = fast_lesson(drafter, vocabulary, pack, temperature)
        return lesson, lesson.total

    return differentiated(drafter, learn_total)


def plain_and_gradients(drafter, vocabulary, texts, temperature=1.0):
    def learn_total():
        lessons = plain_lessons(drafter, vocabulary, texts, temperature)
        return lessons, sum(lesson.total for lesson in lessons)

    return differentiated(drafter, learn_total)


@pytest.mark.parametrize(
    ("heads", "temperature"),
    [((4, 2), 1.0), ((4, 4), 1.0), ((4, 2), 0.5), ((4, 2), 1.7)],
    ids=["shared keys", "own keys", "a colder teacher", "a warmer teacher"],
)
def test_the_fast_path_finds_the_losses_and_gradients_of_the_plain_one(heads, temperature):
    drafter = small_drafter(heads=heads[0], kv_heads=heads[1])
    vocabulary = small_vocabulary()
    texts = [text_of(mask, seed) for seed, mask in enumerate(TEXTS.values())]
    pack = packed(texts)
    fast, fast_gradients = fast_and_gradients(drafter, vocabulary, pack, temperature)
    plain, plain_gradients = plain_and_gradients(drafter, vocabulary, texts, temperature)

    assert fast.total.item() == pytest.approx(sum(lesson.total.item() for lesson in plain), rel=1e-5)
    torch.testing.assert_close(fast.losses, sum(p.losses.sum(1) for p in plain), rtol=1e-5, atol=1e-5)
    for name, wanted in plain_gradients.items():
        torch.testing.assert_close(fast_gradients[name], wanted, rtol=1e-5, atol=1e-5, msg=name)
    for span, lesson in zip(pack.spans, plain, strict=True):
        rows = slice(span.first_row, span.first_row + span.rows)
        at = pack.rows[rows] - span.first_token
        assert torch.equal(fast.trained[:, rows], lesson.trained[:, at])
        assert torch.equal(fast.hits[:, rows], lesson.hits[:, at])
    assert not fast.trained[:, sum(span.rows for span in pack.spans) :].any()


def test_the_loss_is_the_same_in_chunks(monkeypatch):
    drafter, vocabulary = small_drafter(), small_vocabulary()
    pack = packed([text_of(mask, seed) for seed, mask in enumerate(TEXTS.values())])
    whole, whole_gradients = fast_and_gradients(drafter, vocabulary, pack)
    monkeypatch.setattr("shakedown.drafter.loss.CHUNK_BYTES", 5 * 30 * 4)
    monkeypatch.setattr("shakedown.drafter.teacher.CHUNK_TOKENS", 3)
    parts, part_gradients = fast_and_gradients(drafter, vocabulary, pack)
    torch.testing.assert_close(parts.losses, whole.losses, rtol=1e-5, atol=1e-5)
    for name, wanted in whole_gradients.items():
        torch.testing.assert_close(part_gradients[name], wanted, rtol=1e-5, atol=1e-6, msg=name)


def test_a_document_in_pieces_teaches_what_it_teaches_whole():
    drafter, vocabulary = small_drafter(), small_vocabulary()
    texts = [text_of(mask, seed) for seed, mask in enumerate(TEXTS.values())]
    whole, whole_gradients = plain_and_gradients(drafter, vocabulary, texts)
    room = STEPS + 3

    def learn_total():
        lessons = [
            fast_lesson(drafter, vocabulary, pack_pieces([(piece, text)], PackShape(tokens=40, rows=room)))
            for number, text in enumerate(texts)
            for piece in pieces_of(number, len(text.last_rows), room, STEPS)
        ]
        return lessons, sum(lesson.total for lesson in lessons)

    parts, part_gradients = differentiated(drafter, learn_total)
    assert len(parts) > len(texts) + 4
    for name in ("losses", "trained", "hits"):
        by_step = [sum(getattr(part, name).view(STEPS, -1).sum(1) for part in parts)]
        by_step += [sum(getattr(lesson, name).sum(1) for lesson in whole)]
        torch.testing.assert_close(*by_step, rtol=1e-5, atol=1e-5, msg=name)
    for name, wanted in whole_gradients.items():
        torch.testing.assert_close(part_gradients[name], wanted, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("remembered", [False, True], ids=["first epoch", "later epochs"])
def test_a_colder_teacher_judges_as_the_target_itself(remembered):
    vocabulary = small_vocabulary()
    pack = packed([text_of(mask, seed) for seed, mask in enumerate(TEXTS.values())])
    own = TargetHead(head(), vocabulary).teach(pack.last)
    cold = TargetHead(head(), vocabulary, 0.5).teach(pack.last, own.verdict if remembered else None)
    assert torch.equal(cold.verdict.choice, own.verdict.choice)
    assert torch.equal(cold.verdict.covered, own.verdict.covered)
    wanted = (own.logits / 0.5).softmax(-1)
    torch.testing.assert_close((cold.logits - cold.log_sum_exp[:, None]).exp(), wanted)


class Computed(TorchDispatchMode):
    """Names of torch's operations whose result has this shape, but for views of what was there."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.names = shape, []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        found = function(*arguments, **(keywords or {}))
        if isinstance(found, torch.Tensor) and found.shape == self.shape and not function.is_view:
            self.names.append(function.overloadpacket.__name__)
        return found


def test_a_look_without_gradients_makes_none_of_the_head():
    drafter, vocabulary = small_drafter(), small_vocabulary()
    pack = packed([text_of(TEXTS["one answer"], 0)])
    shape = drafter.lm_head.weight.shape
    with Computed(shape) as learning:
        fast_lesson(drafter, vocabulary, pack)
    with torch.no_grad(), Computed(shape) as looking:
        fast_lesson(drafter, vocabulary, pack)
    assert learning.names == ["zeros_like", "addmm_"]  # a buffer, and the only chunk's product
    assert looking.names == []


def test_the_plain_path_is_a_drafter_with_a_cache_token_by_token():
    drafter = small_drafter()
    text = text_of([1] * 14, seed=3)
    tokens = text.tokens.long()
    logits = unroll_plainly(drafter, tokens, text.aux, STEPS)
    with torch.no_grad():
        fused = drafter.fuse(text.aux)
        for row in range(len(tokens) - STEPS - 1):
            cache = drafter.new_cache()
            drafter.decode_step(fused[:row], tokens[1 : row + 1], cache)  # what the engine keeps of true rows
            feature = fused[row : row + 1]
            for step in range(STEPS):
                following = tokens[row + 1 + step : row + 2 + step]
                feature, drafted = drafter.decode_step(feature, following, cache)
                torch.testing.assert_close(drafted[0], logits[step, row], rtol=1e-5, atol=1e-5)
            cache.truncate(row + 1)
            assert cache.length == row + 1


def test_an_engines_rounds_reuse_the_cache_of_true_rows():
    drafter = small_drafter()
    text = text_of([1] * 12, seed=4)
    tokens, fused = text.tokens.long(), drafter.fuse(text.aux)
    with torch.no_grad():
        whole = drafter.new_cache()
        drafter.decode_step(fused[:10], tokens[1:11], whole)
        rounds = drafter.new_cache()
        for begin, end in ((0, 4), (4, 5), (5, 10)):  # a prefill, then rounds of one and five accepted tokens
            feature, _ = drafter.decode_step(fused[begin:end], tokens[begin + 1 : end + 1], rounds)
            drafter.decode_step(feature[-1:], tokens[:1], rounds)  # a draft, thrown away
            rounds.truncate(end)
    torch.testing.assert_close(rounds.keys[:10], whole.keys[:10])
    torch.testing.assert_close(rounds.values[:10], whole.values[:10])


def rows_that_change(pack, changed, place):
    """Loss rows before `place` whose step losses differ between two packs: none may."""
    drafter, vocabulary = small_drafter(), small_vocabulary()
    both = [unrolled_features(drafter, vocabulary, one) for one in (pack, changed)]
    differs = (both[0] - both[1]).abs().amax(dim=(0, 2)) > 1e-6
    return (differs & (pack.rows < place) & (pack.depth > 0)).nonzero().flatten().tolist()


def unrolled_features(drafter, vocabulary, pack):
    from shakedown.drafter.fast import Weights, unroll

    weights = Weights.of(drafter, torch.float32)
    return unroll(drafter.config, weights, drafter.embedding, pack, STEPS).detach()


def with_other_states(pack, place):
    aux = pack.aux.clone()
    aux[place:] += 1.0
    return replace(pack, aux=aux)


def test_no_row_sees_a_later_state_or_another_document():
    pack = packed([text_of(mask, seed) for seed, mask in enumerate(TEXTS.values())])
    for place in (12, 20, int(pack.spans[1].first_token), 40):
        assert rows_that_change(pack, with_other_states(pack, place), place) == []
    first_document = pack.aux.clone()
    first_document[: pack.spans[0].tokens] += 1.0
    drafter, vocabulary = small_drafter(), small_vocabulary()
    before = unrolled_features(drafter, vocabulary, pack)
    after = unrolled_features(drafter, vocabulary, replace(pack, aux=first_document))
    others = slice(pack.spans[1].first_row, pack.spans[-1].first_row + pack.spans[-1].rows)
    torch.testing.assert_close(before[:, others], after[:, others], rtol=0, atol=0)


def test_a_planted_leak_is_caught():
    """The mask is data: a row that sees one key too many must be found by the test above."""
    pack = packed([text_of(mask, seed) for seed, mask in enumerate(TEXTS.values())])
    leaky = replace(pack, last_key=pack.last_key + 1)
    caught = [
        place for place in range(8, 40) if rows_that_change(leaky, with_other_states(leaky, place), place)
    ]
    assert caught
    drafter, vocabulary = small_drafter(), small_vocabulary()
    honest, leaking = (fast_lesson(drafter, vocabulary, one).losses for one in (pack, leaky))
    assert not torch.allclose(honest, leaking, rtol=1e-5, atol=1e-5)


def test_prompt_rows_reach_a_loss_only_as_keys():
    """Their last states are not even there, and their tokens' gradients arrive through k and v alone."""
    texts = [text_of([0] * 9 + [1] * 8, seed=1)]
    pack = packed(texts)
    assert pack.last.isfinite().all()
    assert len(pack.rows) == 8 + 3
    assert pack.rows[:8].tolist() == list(range(8, 16))


def test_the_first_draft_after_the_prompt_is_trained_and_none_past_the_end():
    #        prompt      answer, its end marker, the next turn
    mask = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1])
    rows, depth = loss_rows(mask)
    assert rows.tolist() == [2, 3, 4, 5, 8, 9]
    assert depth.tolist() == [3, 2, 1, 0, 1, 0]  # row 2 drafts tokens 4, 5 and 6, the end marker


@given(st.lists(st.booleans(), min_size=2, max_size=40))
@settings(max_examples=60)
def test_depth_is_what_the_definition_says(mask):
    generated = torch.tensor(mask, dtype=torch.uint8)
    rows, depth = loss_rows(generated)
    found = dict(zip(rows.tolist(), depth.tolist(), strict=True))
    assert list(found) == [row for row in range(len(mask) - 1) if mask[row + 1]]
    for row, steps in found.items():
        trained = [all(mask[row + 1 : row + 3 + k]) for k in range(len(mask) - row - 2)]
        assert steps == [*trained, False].index(False)


def test_a_choice_outside_the_draft_vocabulary_is_a_miss_and_teaches_nothing():
    drafter, vocabulary = small_drafter(), small_vocabulary()
    pack = packed([text_of(TEXTS["one answer"], seed=0)])
    lesson = fast_lesson(drafter, vocabulary, pack)
    teacher = TargetHead(head(), vocabulary).teach(pack.last)
    choices = (pack.last @ head().T).argmax(-1)
    can = vocabulary.t2d[choices]
    assert 0 < can.sum() < len(can)
    assert torch.equal(teacher.verdict.choice >= 0, can)
    assert torch.equal(vocabulary.target_ids[teacher.verdict.choice[can]], choices[can])
    inside = (pack.last @ head().T).softmax(-1)[:, vocabulary.target_ids].sum(-1)
    torch.testing.assert_close(teacher.verdict.covered, inside)
    untaught = lesson.trained[0] & ~can.roll(-1)
    assert untaught.any()
    assert not lesson.hits[0][untaught].any()
