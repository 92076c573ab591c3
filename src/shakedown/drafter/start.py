"""What a training begins with: a fresh drafter shaped after its target, or somebody's, with its vocabulary.

It never trains and never looks at a state.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from shakedown.drafter.architecture import Drafter, DrafterConfig
from shakedown.drafter.read import load_drafter
from shakedown.drafter.rotary import KNOWN, Rope
from shakedown.drafter.target import Target
from shakedown.drafter.vocabulary import DraftVocabulary, carry_head, choose_vocabulary
from shakedown.errors import UsageError

USUAL_DRAFT_VOCAB = 32_000
HEAD_DIM = 128  # of a drafter for a target with latent attention, whose own head width is none
KV_HEADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """`origin`: what tells these weights from others, "" of random ones."""

    drafter: Drafter
    vocabulary: DraftVocabulary
    origin: str = ""


def fresh_start(
    target: Target,
    aux_inputs_of: tuple[int, int, int],
    counts: Tensor,
    size: int | None,
    seed: int,
    scales: Tensor,
    intermediate: int | None = None,
) -> Start:
    """Random but for the head and the norm before it, which begin as the target's own: they fit each other.

    `counts` [vocab]: how often the target wrote each token. `scales` [3 x hidden]: the sizes of the captured
    states, by which features begin near one. `intermediate` None: as wide an MLP as a target's layer has.
    """
    vocabulary = choose_vocabulary(counts, size or min(USUAL_DRAFT_VOCAB, target.vocab_size))
    torch.manual_seed(seed)
    config = shaped_after(target, aux_inputs_of, vocabulary.size)
    drafter = Drafter(replace(config, intermediate=intermediate or config.intermediate), target.embedding())
    with torch.no_grad():
        drafter.fc.weight.div_(scales)
        drafter.norm.weight.copy_(target.final_norm())
        drafter.lm_head.weight.copy_(target.head()[vocabulary.target_ids])
    return Start(drafter=drafter, vocabulary=vocabulary)


def shaped_after(target: Target, aux_inputs_of: tuple[int, int, int], draft_vocab: int) -> DrafterConfig:
    """The target's own layer shape; for latent attention (MLA) plain heads of the usual width."""
    latent = target.text_config.get("kv_lora_rank") is not None
    heads = power_of_two(target.hidden_size // HEAD_DIM) if latent else target.heads
    scaling = target.rope_scaling if not latent else None
    rope = Rope(theta=target.rope_theta, scaling=scaling)
    return DrafterConfig(
        hidden=target.hidden_size,
        target_hidden=target.hidden_size,
        intermediate=target.intermediate_size,
        heads=heads,
        kv_heads=min(heads, KV_HEADS) if latent else target.kv_heads,
        head_dim=HEAD_DIM if latent else target.head_dim,
        vocab=target.vocab_size,
        draft_vocab=draft_vocab,
        rms_eps=target.rms_eps,
        rope=rope if rope.kind in ("default", *KNOWN) else replace(rope, scaling=None),
        max_positions=target.max_positions,
        aux_inputs_of=aux_inputs_of,
        target_layers=target.layers,
        target_architecture=target.architecture,
    )


def power_of_two(number: int) -> int:
    """The next one from `number` on: head counts that any tensor parallelism divides."""
    return 1 << max(0, number - 1).bit_length()


def warm_start(
    folder: Path, target: Target, aux_inputs_of: tuple[int, int, int], counts: Tensor, size: int | None
) -> Start:
    """An EAGLE-3 directory's weights. Another `size` than its own chooses the vocabulary anew: tokens that it
    had keep their rows of the head, others begin with the target's. Raises UsageError where it cannot fit."""
    config, drafter, d2t = load_drafter(
        folder, target_layers=target.layers, target_architecture=target.architecture
    )
    refuse_unfit(config, target, aux_inputs_of, folder)
    drafter.attach_embedding(target.embedding())
    vocabulary = DraftVocabulary(d2t=d2t, vocab=config.vocab)
    origin = digest(drafter)
    if size in (None, vocabulary.size):
        return Start(drafter=drafter, vocabulary=vocabulary, origin=origin)
    chosen = choose_vocabulary(counts, size or vocabulary.size)
    head = carry_head(drafter.lm_head.weight.detach(), vocabulary, chosen, target.head())
    resized = Drafter(replace(config, draft_vocab=chosen.size), target.embedding())
    resized.load_state_dict({**drafter.state_dict(), "lm_head.weight": head})
    return Start(drafter=resized, vocabulary=chosen, origin=origin)


def digest(drafter: Drafter) -> str:
    """Of the weights, whatever file they were in."""
    found = hashlib.sha256()
    for name, weight in sorted(drafter.state_dict().items()):
        found.update(name.encode())
        found.update(weight.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def refuse_unfit(
    config: DrafterConfig, target: Target, aux_inputs_of: tuple[int, int, int], folder: Path
) -> None:
    compared = {
        "hidden size of the target": (config.target_hidden, target.hidden_size),
        "hidden size of its embedding": (config.hidden, target.hidden_size),
        "vocabulary": (config.vocab, target.vocab_size),
        "layers whose inputs it reads": (config.aux_inputs_of, aux_inputs_of),
    }
    for what, (here, there) in compared.items():
        if here != there:
            raise UsageError(f"{folder} is no drafter for {target.path}: its {what} is {here}, not {there}")
