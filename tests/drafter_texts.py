"""Small random drafters, targets and texts for the tests of training."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shakedown.drafter.architecture import Drafter, DrafterConfig
from shakedown.drafter.packing import loss_rows
from shakedown.drafter.rotary import Rope
from shakedown.drafter.vocabulary import DraftVocabulary

VOCAB, DRAFT_VOCAB, HIDDEN, TARGET_HIDDEN = 50, 30, 16, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    tokens: Tensor
    mask: Tensor
    aux: Tensor
    last: Tensor
    last_rows: Tensor


def small_config(**changes: object) -> DrafterConfig:
    facts = {
        "hidden": HIDDEN,
        "target_hidden": TARGET_HIDDEN,
        "intermediate": 40,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "vocab": VOCAB,
        "draft_vocab": DRAFT_VOCAB,
        "rms_eps": 1e-5,
        "rope": Rope(theta=10_000.0),
        "max_positions": 128,
        "aux_inputs_of": (2, 4, 5),
        "target_layers": 8,
        "target_architecture": "LlamaForCausalLM",
    }
    return DrafterConfig(**{**facts, **changes})


def small_drafter(seed: int = 0, **changes: object) -> Drafter:
    torch.manual_seed(seed)
    config = small_config(**changes)
    drafter = Drafter(config, torch.randn(config.vocab, config.hidden))
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return drafter


def small_vocabulary(seed: int = 0, vocab: int = VOCAB, size: int = DRAFT_VOCAB) -> DraftVocabulary:
    chosen = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))[:size].sort().values
    return DraftVocabulary(d2t=chosen - torch.arange(size), vocab=vocab)


def text_of(mask: list[int], seed: int, vocab: int = VOCAB, hidden: int = TARGET_HIDDEN) -> Text:
    """A text with the given loss mask and random everything else."""
    random = torch.Generator().manual_seed(seed)
    generated = torch.tensor(mask, dtype=torch.uint8)
    rows, _ = loss_rows(generated)
    every_last = torch.randn(len(mask), hidden, generator=random)
    return Text(
        tokens=torch.randint(vocab, (len(mask),), generator=random, dtype=torch.int32),
        mask=generated,
        aux=torch.randn(len(mask), 3 * hidden, generator=random),
        last=every_last[rows],
        last_rows=rows,
    )


def every_last(text: Text) -> Tensor:
    """Last states at all rows, NaN where the text has none: nothing may read those."""
    full = torch.full((len(text.tokens), text.last.shape[1]), float("nan"))
    full[text.last_rows] = text.last
    return full
