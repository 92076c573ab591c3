"""What `drafter_training.py` compares: one optimiser step of each trainer on the same documents and weights.

Every contestant gets its batch on the device already and is handed the same starting weights.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from shakedown.drafter.architecture import Drafter, DrafterConfig
from shakedown.drafter.crew import Crew
from shakedown.drafter.packing import Pack, PackShape, loss_rows, pack_documents
from shakedown.drafter.recipe import Recipe
from shakedown.drafter.reference import unroll_plainly
from shakedown.drafter.rotary import Rope
from shakedown.drafter.trainer import Trainer, told
from shakedown.drafter.vocabulary import DraftVocabulary

STEPS_PLANNED = 1000  # optimiser steps of the learning rate's schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    tokens: Tensor
    mask: Tensor
    aux: Tensor
    every_last: Tensor  # at all rows; a rival reads all of them

    @property
    def last_rows(self) -> Tensor:
        return loss_rows(self.mask.cpu())[0]

    @property
    def last(self) -> Tensor:
        return self.every_last[self.last_rows.to(self.every_last.device)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A target's shape and the drafter that public heads for it have."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    draft_vocab: int = 32_000
    layers: int = 32

    def config(self) -> DrafterConfig:
        return DrafterConfig(
            hidden=self.hidden,
            target_hidden=self.hidden,
            intermediate=self.intermediate,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=128 if self.hidden >= 1024 else 16,
            vocab=self.vocab,
            draft_vocab=self.draft_vocab,
            rms_eps=1e-5,
            rope=Rope(theta=500_000.0),
            max_positions=8192,
            aux_inputs_of=(2, self.layers // 2, self.layers - 3),
            target_layers=self.layers,
            target_architecture="LlamaForCausalLM",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What all contestants begin with. `batches` of documents; the loss mask is chosen by `masked`."""

    size: Size
    drafter: Drafter
    vocabulary: DraftVocabulary
    head: Tensor
    batches: list[list[Document]]


def make_world(size: Size, lengths: list[int], batches: int, seed: int, device: torch.device) -> World:
    """Random weights and states of real size, made on the device: a CPU would take a minute for them."""
    torch.manual_seed(seed)
    chosen = torch.randperm(size.vocab)[: size.draft_vocab].sort().values
    vocabulary = DraftVocabulary(d2t=chosen - torch.arange(size.draft_vocab), vocab=size.vocab)
    inside = vocabulary.target_ids.to(device)
    with device:
        head = torch.randn(size.vocab, size.hidden, dtype=torch.bfloat16) * size.hidden**-0.5
        head[inside] *= 1.5  # the target's choice lies in the draft vocabulary, as in real text
        drafter = Drafter(size.config(), torch.randn(size.vocab, size.hidden, dtype=torch.bfloat16))
        drafter.lm_head.weight.data.copy_(head[inside])
        made = [[make_document(size, length) for length in lengths] for _ in range(batches)]
    return World(size=size, drafter=drafter, vocabulary=vocabulary, head=head, batches=made)


def make_document(size: Size, length: int) -> Document:
    last = torch.randn(length, size.hidden)
    last /= last.square().mean(-1, keepdim=True).sqrt()  # a state after the final norm
    return Document(
        tokens=torch.randint(size.vocab, (length,), dtype=torch.int32),
        mask=torch.ones(length, dtype=torch.uint8),
        aux=torch.randn(length, 3 * size.hidden, dtype=torch.bfloat16),
        every_last=last.bfloat16(),
    )


def masked(batch: list[Document], density: float) -> list[Document]:
    """A prompt, then an answer of this share to the end; the first token of all is never generated."""
    found = []
    for document in batch:
        length = len(document.tokens)
        prompt = max(1, round(length * (1 - density)))
        mask = (torch.arange(length) >= prompt).to(torch.uint8)
        found.append(replace(document, mask=mask.to(document.mask.device)))
    return found


def loss_tokens(batch: list[Document]) -> int:
    """Generated tokens that have a row before them: what a second is counted in, for everybody."""
    return sum(len(document.last_rows) for document in batch)


def on_cpu(document: Document) -> Document:
    return Document(**{f.name: getattr(document, f.name).cpu() for f in fields(document)})


class Ours:
    """`Trainer.learn` and `Optimiser.step`, as `shakedown draft train` calls them."""

    version = "this checkout"

    def __init__(
        self, world: World, device: torch.device, *, recipe: Recipe, scales: Tensor | None = None
    ) -> None:
        self.name = "shakedown, head frozen" if recipe.freeze_head else "shakedown"
        crew = Crew(rank=0, size=1, device=device)
        self.trainer = Trainer(world.drafter, world.vocabulary, world.head, recipe, crew, scales)
        self.device, self._numbers = device, 0

    def load(self, batches: list[list[Document]]) -> None:
        self.packs = [self.pack([on_cpu(document) for document in batch]) for batch in batches]
        self.rows = [int((pack.depth > 0).sum()) for pack in self.packs]

    def pack(self, batch: list[Document]) -> Pack:
        """On the device. No two documents get the same number: what the target says of one is remembered."""
        tokens = sum(len(document.tokens) for document in batch)
        shape = PackShape(tokens=-(-tokens // 128) * 128, rows=-(-loss_tokens(batch) // 128) * 128)
        packed = pack_documents(list(enumerate(batch, self._numbers)), shape)
        self._numbers += len(batch)
        return packed.to(self.device, self.trainer.dtype)

    def step(self, number: int) -> None:
        turn = number % len(self.packs)
        told(self.trainer.learn([self.packs[turn]], self.rows[turn]))
        self.trainer.optimiser.step(number, STEPS_PLANNED)

    def first_epoch(self, number: int) -> None:
        """A step on documents that were not seen before: the target's whole vocabulary is judged too."""
        self.trainer._verdicts.clear()
        self.step(number)


class Speculators:
    """The package's own `Trainer.train_epoch` over its own collated batches, with flags all engines serve.

    As shipped its head is frozen; `train_head` lets it learn, as other trainers do. Its fused loss is
    compiled for minutes, and under torch 2.11 in vain; `eager` takes the package's other,
    which is not compiled.
    """

    def __init__(
        self, world: World, device: torch.device, *, recipe: Recipe, train_head: bool, eager: bool = False
    ) -> None:
        from speculators.losses import resolve_loss_config
        from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
        from speculators.train import trainer as theirs

        self.version = metadata.version("speculators")
        implementation = "eager" if eager or device.type == "cpu" else "fused"
        self.name = f"speculators {self.version}" + (", head trained" if train_head else "")
        self.name += ", eager loss" if implementation == "eager" else ""
        self.size, self.device = world.size, device
        self.model = Eagle3DraftModel(
            Eagle3SpeculatorConfig(
                transformer_layer_config=self._layer(world.size),
                draft_vocab_size=world.size.draft_vocab,
                eagle_aux_hidden_state_layer_ids=list(world.size.config().aux_inputs_of),
            )
        )
        self._load(self.model, world)
        self.model.lm_head.weight.requires_grad_(train_head)
        for name in ("embed_tokens", "verifier_lm_head", "verifier_norm"):
            getattr(self.model, name).weight.requires_grad_(False)
        losses = resolve_loss_config("kl_div", implementation)
        calls = {"ttt_steps": recipe.steps, "ttt_step_loss_decay": recipe.decay, "loss_config": losses}
        self.folder = tempfile.TemporaryDirectory()
        settings = theirs.TrainerConfig(
            lr=recipe.learning_rate,
            num_epochs=1,
            save_path=self.folder.name,
            scheduler_type="cosine",
            scheduler_total_steps=STEPS_PLANNED,
            scheduler_warmup_steps=round(recipe.warm_up * STEPS_PLANNED),
            train_call_kwargs=calls,
            weight_decay=recipe.weight_decay,
            log_freq=10**9,
        )
        self.loader = _Loader()
        theirs.tqdm = lambda batches, **words: batches  # a bar that redraws itself ten times a second
        if device.type == "cpu":  # they take the device from the accelerator
            theirs.get_local_rank = lambda: device
        self.trainer = theirs.Trainer(self.model, settings, self.loader)
        self.trainer.device_type = device.type
        self.trainer.global_step = 1  # step 0 is logged, and waits for the device at every mark

    def _layer(self, size: Size) -> Any:
        from transformers import LlamaConfig

        config = size.config()
        layer = LlamaConfig(
            vocab_size=size.vocab,
            hidden_size=size.hidden,
            intermediate_size=size.intermediate,
            num_hidden_layers=1,
            num_attention_heads=size.heads,
            num_key_value_heads=size.kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
        )
        layer._attn_implementation = "simple_flex_attention" if self.device.type == "cuda" else "eager"
        return layer

    def load(self, batches: list[list[Document]]) -> None:
        self.loader.batches = [self._collated(batch, self.size, self.device) for batch in batches]

    def step(self, number: int) -> None:
        """One turn of their loop, with the optimiser's step."""
        self.loader.turn = number
        self.trainer.train_epoch(0)

    @staticmethod
    def _load(model: Any, world: World) -> None:
        ours = {name.replace("midlayer.", "layers.0."): w for name, w in world.drafter.state_dict().items()}
        d2t, t2d = world.vocabulary.d2t, world.vocabulary.t2d
        ours |= {
            "embed_tokens.weight": world.drafter.embedding,
            "verifier_lm_head.weight": world.head[world.vocabulary.target_ids],
            "verifier_norm.weight": torch.ones(world.size.hidden),
        }
        missing, unexpected = model.load_state_dict({**ours, "d2t": d2t, "t2d": t2d}, strict=False)
        if missing or unexpected:
            raise SystemExit(f"speculators: missing {missing}, unexpected {unexpected}")

    @staticmethod
    def _collated(batch: list[Document], size: Size, device: torch.device) -> dict[str, Any]:
        from speculators.models.eagle3.data import shift_batch
        from speculators.train.data import CollateFn

        samples = [
            {
                "hidden_states": document.aux,
                "input_ids": document.tokens.long(),
                "verifier_last_hidden_states": document.every_last,
                "loss_mask": document.mask.bool(),
                "lengths": torch.tensor([len(document.tokens)]),
                "position_ids": torch.arange(len(document.tokens)),
            }
            for document in map(on_cpu, batch)
        ]
        tokens = sum(len(document.tokens) for document in batch)
        room = -(-tokens // 128) * 128
        collate = CollateFn(room, size.hidden, preprocess=shift_batch)
        return {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in collate(samples).items()
        }


class _Loader:
    """Yields one batch a time, whichever turn it is."""

    batch_sampler = None

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.turn = 0

    def __len__(self) -> int:
        return STEPS_PLANNED

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield dict(self.batches[self.turn % len(self.batches)])


class Dense:
    """The plain unrolled loop: document by document, dense masks, all rows, all logits, autocast, AdamW."""

    version = "this checkout"

    def __init__(self, world: World, device: torch.device, *, recipe: Recipe) -> None:
        self.name, self.steps, self.device = "dense loop", recipe.steps, device
        self.drafter = world.drafter.float().to(device)
        self.drafter.embedding = self.drafter.embedding.to(device)
        self.head = world.head[world.vocabulary.target_ids].to(device)
        fused = device.type == "cuda"
        self.adam = torch.optim.AdamW(
            self.drafter.parameters(), lr=recipe.learning_rate, weight_decay=0.0, fused=fused
        )

    def load(self, batches: list[list[Document]]) -> None:
        self.batches = [
            [
                tuple(t.to(self.device) for t in (d.tokens.long(), d.mask.bool(), d.aux, d.every_last))
                for d in batch
            ]
            for batch in batches
        ]

    def step(self, number: int) -> None:
        batch = self.batches[number % len(self.batches)]
        rows = sum(int(mask.sum()) for _, mask, _, _ in batch)
        for tokens, mask, aux, last in batch:
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                logits = unroll_plainly(self.drafter, tokens, aux, self.steps)
                wanted = (last.to(self.head.dtype) @ self.head.T).float().softmax(-1)
            total = logits.new_zeros((), dtype=torch.float32)
            for k in range(self.steps):
                length = len(tokens) - 2 - k
                plain = -(wanted[1 + k : 1 + k + length] * logits[k, :length].float().log_softmax(-1)).sum(-1)
                total = total + (plain * mask[2 + k : 2 + k + length]).sum() / rows
            total.backward()
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 0.5)
        self.adam.step()
        self.adam.zero_grad()


def spread(total: int, low: int, high: int, seed: int) -> list[int]:
    """Lengths from `low` to `high`, multiples of 128, that sum to `total`."""
    draw, lengths = random.Random(seed), []
    while sum(lengths) < total:
        left = total - sum(lengths)
        length = draw.randrange(low, high + 1, 128)
        lengths.append(left if left < low + high and left <= high else min(length, left - low))
    return lengths
