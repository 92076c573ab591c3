"""What the plug-in writes of batches as SGLang 0.5.14 hands them over: chunks, caches, rejected drafts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shakedown.drafter.inside.sglang_tap import Tap
from shakedown.drafter.tapped import Stage, assemble, read_steps

HIDDEN, SLOTS, DRAFTS = 2, 3, 2


def worker(tp_rank: int = 0, topk: int = 1) -> SimpleNamespace:
    config = SimpleNamespace(hidden_size=HIDDEN)
    return SimpleNamespace(
        tp_rank=tp_rank,
        topk=topk,
        speculative_num_draft_tokens=DRAFTS + 1,
        target_worker=SimpleNamespace(model_config=config),
    )


def mode(*, idle: bool = False) -> SimpleNamespace:
    return SimpleNamespace(is_idle=lambda: idle)


def states(tokens: list[int], begin: int = 0) -> torch.Tensor:
    """Row by row all slots one after another, as the engine has them: token, place and slot are in them."""
    rows = [[token, begin + n + slot / 10] for n, token in enumerate(tokens) for slot in range(SLOTS)]
    return torch.tensor(rows).view(len(tokens), SLOTS * HIDDEN)


def prefill(tap: Tap, *pieces: tuple[str, list[int], int], of: SimpleNamespace | None = None) -> None:
    """Each piece: request, tokens, and how many come before them. What follows are rows of padding."""
    batch = SimpleNamespace(
        forward_mode=mode(),
        reqs=[SimpleNamespace(rid=name) for name, _, _ in pieces],
        extend_lens=[len(tokens) for _, tokens, _ in pieces],
        prefix_lens=[before for _, _, before in pieces],
        input_ids=torch.tensor([token for _, tokens, _ in pieces for token in tokens]),
    )
    rows = [states(tokens, before) for _, tokens, before in pieces]
    tap.prefilled(of or worker(), batch, torch.cat([*rows, torch.zeros(2, SLOTS * HIDDEN)]))


def verify(tap: Tap, *pieces: tuple[str, list[int], int], idle: bool = False) -> None:
    batch = SimpleNamespace(
        forward_mode=mode(idle=idle),
        reqs=[SimpleNamespace(rid=name) for name, _, _ in pieces],
        seq_lens=torch.tensor([before for _, _, before in pieces]),
        spec_info=SimpleNamespace(draft_token=torch.tensor([t for _, tokens, _ in pieces for t in tokens])),
    )
    tap.verified(worker(), batch, torch.cat([states(tokens, before) for _, tokens, before in pieces]))


def test_tokens_places_and_states_stand_together_through_chunks_caches_and_rejected_drafts(tmp_path: Path):
    tap = Tap(tmp_path, 1000)
    prefill(tap, ("a", [1, 2, 3], 0), ("b", [1, 2], 0))
    prefill(tap, ("b", [7, 8], 2))  # the second chunk
    verify(tap, ("a", [4, 5, 99], 3), ("b", [9, 98, 97], 4))  # of `a` one draft is right, of `b` none
    verify(tap, ("a", [6, 96, 95], 5), ("b", [10, 11, 12], 5))
    prefill(tap, ("c", [50], 3))  # its first three tokens were cached
    verify(tap, ("c", [51, 94, 93], 4))
    texts = [[1, 2, 3, 4, 5, 6, 0], [1, 2, 7, 8, 9, 10, 11, 12, 0], [1, 2, 3, 50, 51, 0]]
    found = assemble(list(read_steps(tmp_path)), texts)
    for text, one in zip(texts, found, strict=True):
        assert one is not None
        assert one.tokens.tolist() == text[:-1]
        at = torch.arange(len(text) - 1)
        assert torch.equal(one.aux[:, :, 0], torch.tensor(text[:-1]).float().expand(SLOTS, -1))
        assert torch.allclose(one.aux[:, :, 1], at + torch.arange(SLOTS)[:, None] / 10)
    a, b, c = found
    assert a is not None
    assert b is not None
    assert c is not None
    assert a.stages(prompt=3)[Stage.PREFILL].tolist() == [True] * 3 + [False] * 3
    assert b.stages(prompt=4)[Stage.CHUNKED].tolist() == [True] * 4 + [False] * 4
    assert c.stages(prompt=4)[Stage.VERIFY].tolist() == [False] * 4 + [True]


def test_it_writes_nothing_of_other_ranks_trees_and_idle_batches(tmp_path: Path):
    tap = Tap(tmp_path, 1000)
    prefill(tap, ("a", [1, 2], 0), of=worker(tp_rank=1))
    prefill(tap, ("a", [1, 2], 0), of=worker(topk=4))
    verify(tap, ("a", [3, 4, 5], 2), idle=True)
    assert list(tmp_path.iterdir()) == []


def test_it_ends_after_so_many_tokens_and_with_what_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    tap = Tap(tmp_path, 5)
    prefill(tap, ("a", [1, 2, 3], 0))
    verify(tap, ("a", [4, 5, 6], 3))
    verify(tap, ("a", [4, 5], 3))
    assert len(list(tmp_path.iterdir())) == 1
    other = Tap(tmp_path, 1000)
    other.verified(
        worker(), SimpleNamespace(forward_mode=mode(), seq_lens=torch.tensor([3])), torch.zeros(3, 6)
    )
    prefill(other, ("a", [1, 2, 3], 0))
    assert "spec_info" in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 1
