"""Walking by whole-text steps counts what a drafter with a cache would, round by round and draft by draft."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from drafter_texts import TARGET_HIDDEN, VOCAB, small_drafter, small_vocabulary, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from shakedown.acceptance.expect import expect, walk
from shakedown.drafter.walk import Judge, Rule, accept_matrices, room_for

DRAFTS = 3
MASKS = {
    "one answer": [0] * 9 + [1] * 30,
    "two turns": [0] * 5 + [1] * 17 + [0] * 6 + [1] * 21 + [0] * 2,
    "a turn too short for a round": [0] * 6 + [1] * 4 + [0] * 4 + [1] * 19,
    "all generated": [1] * 24,
    "nothing generated": [0] * 8,
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def drafted_token(logits, vocabulary) -> int:
    return int(vocabulary.target_ids[logits[-1].argmax()])


def literal_rounds(drafter, vocabulary, text, drafts):
    """As an engine does it: draft from a cache of true rows, verify, forget the drafts, catch up truly."""
    tokens, features = text.tokens.long(), drafter.fuse(text.aux)
    generated = [*text.mask.bool().tolist(), False]
    rounds = []
    for begin in range(1, len(tokens)):
        if not generated[begin] or (generated[begin - 1] and begin > 1):
            continue
        end = generated.index(False, begin)
        cache = drafter.new_cache()
        start = begin
        while start + drafts + 1 < end:
            known = cache.length
            feature, logits = drafter.decode_step(features[known:start], tokens[known + 1 : start + 1], cache)
            proposed = [drafted_token(logits, vocabulary)]
            while len(proposed) < drafts:
                feature, logits = drafter.decode_step(feature[-1:], torch.tensor(proposed[-1:]), cache)
                proposed.append(drafted_token(logits, vocabulary))
            count = 0
            while count < drafts and proposed[count] == int(tokens[start + 1 + count]):
                count += 1
            cache.truncate(start)
            rounds.append(count)
            start += count + 1
    return rounds


def speak_like(drafter, vocabulary, text, share, seed):
    """Makes a text whose tokens are, with this chance, what the drafter drafts: rounds of every length."""
    chance = np.random.default_rng(seed)
    tokens, features = text.tokens.long().clone(), drafter.fuse(text.aux)
    cache = drafter.new_cache()
    for row in range(len(tokens) - 2):
        _, logits = drafter.decode_step(features[row : row + 1], tokens[row + 1 : row + 2], cache)
        if chance.random() < share:
            tokens[row + 2] = drafted_token(logits, vocabulary)
    return replace(text, tokens=tokens.int())


@settings(max_examples=25)
@given(st.sampled_from(list(MASKS)), st.floats(0, 1), st.integers(1, 5), st.integers(0, 10_000))
@torch.no_grad()
def test_whole_text_steps_are_the_literal_rounds(kind, share, drafts, seed):
    drafter, vocabulary = small_drafter(seed), small_vocabulary(seed)
    text = speak_like(drafter, vocabulary, text_of(MASKS[kind], seed), share, seed)
    (stretches,) = accept_matrices(drafter, vocabulary, [text], drafts=drafts)
    rounds = literal_rounds(drafter, vocabulary, text, drafts)
    walks = [walk(accept) for accept in stretches]
    assert sum(each.rounds for each in walks) == len(rounds)
    assert sum(each.tokens for each in walks) == sum(rounds) + len(rounds)
    accepted = sum((each.accepted for each in walks), np.zeros(drafts))
    assert accepted.tolist() == [sum(count > j for count in rounds) for j in range(drafts)]


def test_documents_packed_together_are_walked_as_if_alone():
    drafter, vocabulary = small_drafter(), small_vocabulary()
    with torch.no_grad():
        texts = [
            speak_like(drafter, vocabulary, text_of(mask, i), 0.6, i) for i, mask in enumerate(MASKS.values())
        ]
    together = list(accept_matrices(drafter, vocabulary, texts, drafts=DRAFTS))
    apart = [next(accept_matrices(drafter, vocabulary, [text], drafts=DRAFTS)) for text in texts]
    small = list(accept_matrices(drafter, vocabulary, texts, drafts=DRAFTS, pack_rows=20))
    for one, two, three in zip(together, apart, small, strict=True):
        assert [a.tolist() for a in one] == [a.tolist() for a in two] == [a.tolist() for a in three]
    assert [len(stretches) for stretches in together] == [1, 2, 2, 1, 0]


def test_documents_that_come_some_at_a_time_are_walked_in_few_shapes():
    draw, shapes = random.Random(0), set()
    for _ in range(40):
        rows = [draw.randint(50, 512) for _ in range(64)]
        tokens = [draw.randint(30, 300) + generated for generated in rows]
        shapes.add(room_for(tokens, rows, 4096))
    assert len(shapes) <= 2
    prompts = room_for([9000, 9000], [20, 6000], 4096)
    assert (prompts.tokens, prompts.rows) == (32768, 8192)  # the longer answer is not cut


def test_a_drafter_that_is_always_right_is_accepted_whole():
    drafter, vocabulary = small_drafter(), small_vocabulary()
    with torch.no_grad():
        texts = [speak_like(drafter, vocabulary, text_of([0] * 5 + [1] * 40, i), 1.0, i) for i in range(3)]
    found = expect(list(accept_matrices(drafter, vocabulary, texts, drafts=1)))
    assert found.tokens_per_round.value == 2.0


def head():
    return torch.randn(VOCAB, TARGET_HIDDEN, generator=torch.Generator().manual_seed(7))


def test_a_target_without_doubt_makes_probability_a_match():
    drafter, vocabulary = small_drafter(), small_vocabulary()
    text = text_of(MASKS["one answer"], 3)
    said = (text.last @ head().T).argmax(
        -1
    )  # the greedy text: the token after each row is the target's choice
    tokens = text.tokens.clone()
    tokens[text.last_rows + 1] = said.int()
    text = replace(text, tokens=tokens)
    (matches,) = accept_matrices(drafter, vocabulary, [text], drafts=DRAFTS)
    cold = Judge(rule=Rule.PROBABILITY, head=head(), temperature=1e-4)
    (chances,) = accept_matrices(drafter, vocabulary, [text], drafts=DRAFTS, judge=cold)
    assert chances[0] == pytest.approx(matches[0], abs=1e-6)


@torch.no_grad()
def test_probabilities_are_those_of_the_literal_distributions():
    drafter, vocabulary = small_drafter(), small_vocabulary()
    text = text_of(MASKS["one answer"], 4)
    temperature = 0.7
    found = {
        rule: next(
            accept_matrices(
                drafter,
                vocabulary,
                [text],
                drafts=1,
                judge=Judge(rule=rule, head=head(), temperature=temperature),
            )
        )[0][:, 0]
        for rule in (Rule.PROBABILITY, Rule.OVERLAP)
    }
    tokens, features, cache = text.tokens.long(), drafter.fuse(text.aux), drafter.new_cache()
    _, logits = drafter.decode_step(features[:-1], tokens[1:], cache)
    first = int(text.last_rows[0])
    for start in range(len(found[Rule.PROBABILITY])):
        row = first + start
        lesson = text.last[start + 1]  # the state one row on says what follows
        target = (head() @ lesson / temperature).softmax(-1)
        own = torch.zeros(VOCAB)
        own[vocabulary.target_ids] = (logits[row] / temperature).softmax(-1)
        assert found[Rule.PROBABILITY][start] == pytest.approx(float(target[own.argmax()]), abs=1e-5)
        assert found[Rule.OVERLAP][start] == pytest.approx(float(torch.minimum(target, own).sum()), abs=1e-5)


def test_an_overlap_is_never_less_than_it_could_be():
    drafter, vocabulary = small_drafter(), small_vocabulary()
    text = text_of(MASKS["two turns"], 5)
    judge = Judge(rule=Rule.OVERLAP, head=head(), temperature=1.3)
    for accept in next(accept_matrices(drafter, vocabulary, [text], drafts=DRAFTS, judge=judge)):
        assert ((accept >= 0) & (accept <= 1 + 1e-6)).all()
