"""What is trained when: packs, vocabularies, learning rates and walks, each held to its plain definition."""

import json
from itertools import pairwise

import pytest
import torch
from drafter_texts import text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from shakedown.drafter.curves import Acceptances, CurveFile, walk
from shakedown.drafter.feed import Sizes, packs_of, plan
from shakedown.drafter.packing import PackShape, Piece, fit_shape, pieces_of, plan_packs
from shakedown.drafter.recipe import Recipe
from shakedown.drafter.vocabulary import (
    DraftVocabulary,
    carry_head,
    choose_vocabulary,
    count_generated,
    share_covered,
)
from shakedown.errors import DataProblem, UsageError

lengths = st.lists(st.tuples(st.integers(2, 60), st.integers(0, 40)), min_size=1, max_size=60)


@given(lengths, st.integers(0, 5), st.integers(1, 4))
@settings(max_examples=80)
def test_every_document_with_loss_rows_is_in_one_pack_that_holds_it(documents, seed, open_packs):
    tokens, rows = [n for n, _ in documents], [min(r, n - 1) for n, r in documents]
    shape = PackShape(tokens=128, rows=64)
    packs = plan_packs(tokens, rows, shape, seed, open_packs)
    assert sorted(n for pack in packs for n in pack) == [n for n in range(len(rows)) if rows[n]]
    for pack in packs:
        assert sum(tokens[n] for n in pack) <= shape.tokens
        assert sum(rows[n] for n in pack) <= shape.rows
    assert packs == plan_packs(tokens, rows, shape, seed, open_packs)


def test_packs_are_well_filled():
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(100, 900, (600,), generator=draw).tolist()
    rows = [n // 2 for n in tokens]
    packs = plan_packs(tokens, rows, PackShape(tokens=8448, rows=4096), seed=0)
    assert sum(rows) / (4096 * len(packs)) > 0.95


def test_a_plan_is_the_same_for_any_number_of_processes_and_changes_by_epoch():
    sizes = Sizes.of([torch.tensor([0] * 3 + [1] * (5 + n % 7)) for n in range(50)])
    recipe = Recipe(epochs=2, pack_rows=128, batch_packs=2)
    found = plan(sizes, range(50), recipe)
    assert found == plan(sizes, range(50), recipe)
    first, second = (
        [piece.document for batch in found.batches[begin:end] for pack in batch for piece in pack]
        for begin, end in ((0, found.steps_per_epoch[0]), (found.steps_per_epoch[0], None))
    )
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert found.rows_taught(0) == sum(sizes.taught(p.document) for pack in found.batches[0] for p in pack)


@given(st.integers(0, 400), st.integers(12, 90), st.integers(1, 11))
@settings(max_examples=80)
def test_pieces_train_every_row_once_and_hold_what_its_steps_read(rows, room, steps):
    pieces = pieces_of(7, rows, room, steps)
    trained = [row for piece in pieces for row in range(piece.first, piece.first + piece.trained)]
    assert trained == list(range(rows))
    for piece in pieces:
        assert piece.document == 7
        assert piece.rows <= room
        last_read = min(piece.first + piece.trained + steps, rows)
        assert piece.first + piece.rows == last_read


@pytest.mark.parametrize("processes", [1, 8])
def test_what_a_batch_is_told_to_teach_is_what_its_packs_train(processes):
    """An answer that is longer than one process's share of a batch, among others."""
    masks = [[0] * 50 + [1] * 1500, [0] * 3 + [1] * 200 + [0] * 9 + [1] * 700]
    masks += [[0] * 50 + [1] * (60 + n) for n in range(20)]
    texts = [text_of(mask, seed, hidden=2) for seed, mask in enumerate(masks)]
    sizes = Sizes.of([text.mask for text in texts])
    recipe = Recipe(epochs=1, pack_rows=2048 // processes, batch_packs=processes)
    found = plan(sizes, range(len(masks)), recipe)
    for step, batch in enumerate(found.batches):
        packs = packs_of(texts, batch, found.shape, torch.device("cpu"), str)
        assert sum(int((pack.depth > 0).sum()) for pack in packs) == found.rows_taught(step)
    told = sum(map(found.rows_taught, range(len(found.batches))))
    assert told == sum(map(sizes.taught, range(len(masks)))) == sum(map(sum, masks)) - len(masks) - 1


def test_a_pack_has_room_for_a_long_text_that_is_held_out():
    sizes = Sizes.of([torch.tensor([0] * 3 + [1] * length) for length in (40, 50, 900)])
    assert plan(sizes, range(2), Recipe(pack_rows=128)).shape.tokens >= 903


def test_texts_that_are_nearly_all_prompt_get_fewer_rows_a_pack_and_more_packs_a_batch():
    usual = fit_shape([300] * 50, [150] * 50, 16_384, 300)
    assert (usual.rows, usual.tokens) == (16_384, 33_536)
    prompts = fit_shape([8200] * 50, [100] * 50, 16_384, 8200)
    assert prompts.tokens == 8 * 16_384
    assert prompts.rows == 1664  # as many as come with so many tokens
    long = fit_shape([8200] * 50, [100] * 50, 128, 8200)
    assert (long.tokens, long.rows) == (8320, 128)  # never less than the longest text

    sizes = Sizes.of([torch.tensor([0] * 820 + [1] * 11)] * 400)
    recipe = Recipe(epochs=1, pack_rows=1024, batch_packs=2)
    found = plan(sizes, range(400), recipe)
    assert found.shape.rows == 128
    rows = [sum(piece.rows for pack in batch for piece in pack) for batch in found.batches]
    assert [len(batch) % recipe.batch_packs for batch in found.batches[:-1]] == [0] * (len(rows) - 1)
    assert all(0.7 < each / (recipe.pack_rows * recipe.batch_packs) <= 1 for each in rows[:-1])


def test_packs_come_in_order_and_a_broken_text_raises_in_its_turn():
    class Texts:
        def __getitem__(self, number):
            raise DataProblem(f"document {number} is broken")

    packs = [(Piece.whole(number, 5),) for number in (3, 4)]
    feed = packs_of(Texts(), packs, PackShape(tokens=128, rows=128), torch.device("cpu"), str)
    with pytest.raises(DataProblem, match="document 3"):
        next(feed)


def test_maps_go_round():
    counts = torch.tensor([5, 0, 9, 1, 0, 9, 2])
    vocabulary = choose_vocabulary(counts, 4)
    assert vocabulary.target_ids.tolist() == [0, 2, 5, 6]
    assert vocabulary.d2t.tolist() == [0, 1, 3, 3]
    assert vocabulary.t2d.nonzero().flatten().tolist() == [0, 2, 5, 6]
    assert share_covered(counts, vocabulary) == pytest.approx(25 / 26)
    assert choose_vocabulary(counts, 7).d2t.tolist() == [0] * 7
    assert choose_vocabulary(torch.zeros(5, dtype=torch.int64), 2).target_ids.tolist() == [0, 1]


@given(st.lists(st.integers(0, 20), min_size=2, max_size=40), st.data())
@settings(max_examples=60)
def test_the_most_frequent_tokens_are_chosen(counts, data):
    size = data.draw(st.integers(1, len(counts)))
    vocabulary = choose_vocabulary(torch.tensor(counts), size)
    chosen = vocabulary.target_ids.tolist()
    assert chosen == sorted(set(chosen))
    left_out = [counts[n] for n in range(len(counts)) if n not in chosen]
    assert min(counts[n] for n in chosen) >= max(left_out, default=0)
    assert torch.equal(torch.arange(size) + vocabulary.d2t, vocabulary.target_ids)
    assert vocabulary.t2d.sum() == size


@pytest.mark.parametrize("d2t", [[0, 5, 9], [3, 1, 0], [-1, 0, 0], [0, 0, 60]])
def test_maps_that_are_none_are_refused(d2t):
    with pytest.raises(DataProblem, match="not onto ascending ids"):
        DraftVocabulary(d2t=torch.tensor(d2t), vocab=10)


def test_a_head_that_does_not_fit_the_vocabulary_is_refused():
    from shakedown.drafter.teacher import TargetHead

    with pytest.raises(DataProblem, match="head has 9 tokens, the draft vocabulary maps into 10"):
        TargetHead(torch.zeros(9, 4), DraftVocabulary(d2t=torch.zeros(3, dtype=torch.int64), vocab=10))


def test_only_generated_tokens_are_counted():
    texts = [(torch.tensor([1, 2, 2, 3]), torch.tensor([0, 1, 1, 0]))]
    assert count_generated(texts, 5).tolist() == [0, 0, 2, 0, 0]


def test_a_carried_head_keeps_the_rows_of_tokens_it_knows():
    old = DraftVocabulary(d2t=torch.tensor([1, 2]), vocab=6)  # tokens 1 and 3
    new = DraftVocabulary(d2t=torch.tensor([0, 2, 2]), vocab=6)  # tokens 0, 3 and 4
    target = torch.arange(6.0)[:, None]
    assert carry_head(torch.tensor([[10.0], [30.0]]), old, new, target).flatten().tolist() == [0.0, 30.0, 4.0]


def test_the_learning_rate_rises_then_falls_to_its_share():
    recipe = Recipe(learning_rate=1.0, warm_up=0.1, final_share=0.05)
    rates = [recipe.rate(step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert all(a >= b for a, b in pairwise(rates[9:]))
    assert 0.05 < rates[-1] < 0.06
    with pytest.raises(UsageError, match="steps is 0"):
        Recipe(steps=0)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_teacher_without_a_temperature_is_refused(temperature):
    with pytest.raises(UsageError, match=f"teacher temperature is {temperature}: it must be more than 0"):
        Recipe(teacher_temperature=temperature)


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=30), st.integers(1, 4))
@settings(max_examples=80)
def test_a_walk_makes_the_rounds_an_engine_would(rows, drafts):
    """One run of generated tokens: n - 1 - i are left at row i; rows[i][k]: is its draft k right?"""
    number = len(rows)
    depth = [number - 1 - row for row in range(number)]
    leading = [min(hits.index(False) if False in hits else 4, depth[n]) for n, hits in enumerate(rows)]
    tokens = rounds = at = 0
    while depth[at] > drafts:  # the bonus token is one more
        accepted = 0
        while accepted < drafts and rows[at][accepted]:
            accepted += 1
        tokens, rounds, at = tokens + accepted + 1, rounds + 1, at + accepted + 1
        if at >= number:
            break
    assert walk(leading, depth, drafts) == (tokens, rounds)


def test_acceptance_counts_rows_that_have_so_many_drafts():
    found = Acceptances(3)
    hits = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    found.add(torch.tensor([4, 2, 1, 0]), hits, [(0, 4)])
    result = found.result()
    assert result.by_step == pytest.approx((2 / 3, 1 / 2, 0.0))
    assert (result.rows, result.drafts, result.tokens_per_round) == (3, 3, 3.0)


def test_a_curve_file_forgets_what_a_resumed_run_does_again(tmp_path):
    for step in (1, 2, 3):
        CurveFile(tmp_path, resumed_at=step - 1).write("step", step, {"loss": step})
    with open(tmp_path / "curves.jsonl", "a") as file:
        file.write('{"event": "step", "st')  # the kill came here
    resumed = CurveFile(tmp_path, resumed_at=2)
    resumed.write("step", 3, {"loss": 33})
    lines = [json.loads(line) for line in resumed.path.read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 1), (2, 2), (3, 33)]
