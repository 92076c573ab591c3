"""States of very unlike channels are trained as if they were alike, and no engine sees a difference."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from drafter_texts import TARGET_HIDDEN, VOCAB, small_drafter, small_vocabulary, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from shakedown.drafter.architecture import AUX_STATES
from shakedown.drafter.crew import Crew
from shakedown.drafter.packing import Pack, PackShape, pack_documents
from shakedown.drafter.recipe import Recipe
from shakedown.drafter.scaling import channel_scales
from shakedown.drafter.trainer import Trainer, told

WIDTH = AUX_STATES * TARGET_HIDDEN
UNLIKE = 2.0 ** torch.arange(-6, -6 + WIDTH).clamp(max=9)
ALONE = Crew(rank=0, size=1, device=torch.device("cpu"))


def pack_of(sizes: torch.Tensor) -> Pack:
    texts = [text_of([0] * 5 + [1] * 12, seed) for seed in range(3)]
    texts = [replace(text, aux=text.aux * sizes) for text in texts]
    rows = sum(len(text.last_rows) for text in texts)
    shape = PackShape(tokens=sum(len(text.tokens) for text in texts), rows=rows)
    return pack_documents(list(enumerate(texts)), shape)


def trainer_of(fc: torch.Tensor, scales: torch.Tensor | None) -> Trainer:
    drafter, vocabulary = small_drafter(), small_vocabulary()
    drafter.fc.weight.data.copy_(fc)
    head = torch.randn(VOCAB, TARGET_HIDDEN, generator=torch.Generator().manual_seed(7))
    return Trainer(drafter, vocabulary, head, Recipe(steps=3, learning_rate=1e-2), ALONE, scales)


def trained(trainer: Trainer, pack: Pack) -> list[float]:
    losses = []
    for step in range(4):
        losses.append(told(trainer.learn([pack], 1))["loss"])
        trainer.optimiser.step(step, 4)
    return losses


def test_unlike_states_with_their_scales_are_trained_as_like_ones_to_the_bit():
    fc = small_drafter().fc.weight.detach().clone()
    like, unlike = trainer_of(fc, None), trainer_of(fc / UNLIKE, UNLIKE)
    assert trained(like, pack_of(torch.ones(WIDTH))) == trained(unlike, pack_of(UNLIKE))
    found = unlike.weights()
    for name, weight in like.weights().items():
        assert torch.equal(weight, found[name] * UNLIKE if name == "fc.weight" else found[name]), name


def test_without_scales_they_are_not():
    fc = small_drafter().fc.weight.detach().clone()
    like, unlike = trainer_of(fc, None), trainer_of(fc / UNLIKE, None)
    assert trained(like, pack_of(torch.ones(WIDTH)))[0] == pytest.approx(trained(unlike, pack_of(UNLIKE))[0])
    assert trained(like, pack_of(torch.ones(WIDTH))) != trained(unlike, pack_of(UNLIKE))


def test_what_is_saved_is_what_an_engine_multiplies_with_the_states():
    trainer = trainer_of(small_drafter().fc.weight.detach() / UNLIKE, UNLIKE)
    pack = pack_of(UNLIKE)
    trained(trainer, pack)
    engine = small_drafter()
    engine.load_state_dict(trainer.weights())
    within = copy.deepcopy(trainer.drafter)
    torch.testing.assert_close(engine.fuse(pack.aux), within.fuse(pack.aux / UNLIKE))


@given(st.integers(0, 2**31), st.floats(0.1, 1e3))
@settings(max_examples=25)
def test_scales_are_near_each_channels_size_and_blind_to_sinks(seed, size):
    random = torch.Generator().manual_seed(seed)
    sizes = size * torch.exp2(torch.rand(WIDTH, generator=random) * 8)
    states = torch.randn(400, WIDTH, generator=random) * sizes
    states[::50] *= 1e4  # attention's sinks
    scales = channel_scales([states[:100], states[100:]], AUX_STATES)
    assert torch.equal(scales, torch.exp2(scales.log2().round()))
    assert (scales / sizes).log2().abs().max() < 0.8


def test_a_channel_without_a_value_is_none_that_matters():
    states = torch.randn(64, WIDTH)
    states[:, 3] = 0
    scales = channel_scales([states], AUX_STATES)
    assert torch.isfinite(1 / scales).all()
    assert scales[3] <= scales.min() * 2
