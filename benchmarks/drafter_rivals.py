"""What `drafter_training.py` compares: one optimiser step of each trainer on the same documents and weights.

Every contestant gets its batch on the device already and is handed the same starting weights.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
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
    """Random weights of real size: nothing here is learnt from, only computed with."""

    size: Size
    drafter: Drafter
    vocabulary: DraftVocabulary
    head: Tensor
    batches: list[list[Document]]

    @property
    def loss_tokens(self) -> int:
        """Generated tokens of a batch that have a row before them: what a second is counted in."""
        return sum(len(document.last_rows) for document in self.batches[0])


def make_world(
    size: Size, lengths: list[int], density: float, batches: int, seed: int, device: torch.device
) -> World:
    """Made on the device: a CPU would take a minute for the random numbers."""
    torch.manual_seed(seed)
    chosen = torch.randperm(size.vocab)[: size.draft_vocab].sort().values
    vocabulary = DraftVocabulary(d2t=chosen - torch.arange(size.draft_vocab), vocab=size.vocab)
    inside = vocabulary.target_ids.to(device)
    with device:
        head = torch.randn(size.vocab, size.hidden, dtype=torch.bfloat16) * size.hidden**-0.5
        head[inside] *= 1.5  # the target's choice lies in the draft vocabulary, as in real text
        drafter = Drafter(size.config(), torch.randn(size.vocab, size.hidden, dtype=torch.bfloat16))
        drafter.lm_head.weight.data.copy_(head[inside])
        made = [[make_document(size, length, density) for length in lengths] for _ in range(batches)]
    return World(size=size, drafter=drafter, vocabulary=vocabulary, head=head, batches=made)


def make_document(size: Size, length: int, density: float) -> Document:
    """A prompt, then an answer to the end."""
    prompt = max(1, round(length * (1 - density)))
    mask = (torch.arange(length) >= prompt).to(torch.uint8)
    last = torch.randn(length, size.hidden)
    last /= last.square().mean(-1, keepdim=True).sqrt()  # a state after the final norm
    return Document(
        tokens=torch.randint(size.vocab, (length,), dtype=torch.int32),
        mask=mask,
        aux=torch.randn(length, 3 * size.hidden, dtype=torch.bfloat16),
        every_last=last.bfloat16(),
    )


def on_cpu(document: Document) -> Document:
    return Document(**{f.name: getattr(document, f.name).cpu() for f in fields(document)})


class Ours:
    """`Trainer.learn` and `Optimiser.step`, as `shakedown draft train` calls them."""

    version = "this checkout"

    def __init__(self, world: World, device: torch.device, *, steps: int, freeze_head: bool) -> None:
        self.name = "shakedown, head frozen" if freeze_head else "shakedown"
        recipe = Recipe(steps=steps, decay=1.0, freeze_head=freeze_head)
        crew = Crew(rank=0, size=1, device=device)
        self.trainer = Trainer(world.drafter, world.vocabulary, world.head, recipe, crew)
        batches = [[on_cpu(document) for document in batch] for batch in world.batches]
        self.packs = [
            self._pack(batch, number).to(device, self.trainer.dtype) for number, batch in enumerate(batches)
        ]
        self.rows = sum(int((loss_rows(d.mask)[1] > 0).sum()) for d in batches[0])

    @staticmethod
    def _pack(batch: list[Document], number: int) -> Pack:
        tokens, rows = (sum(len(part) for part in parts) for parts in _parts(batch))
        shape = PackShape(tokens=-(-tokens // 128) * 128, rows=-(-rows // 128) * 128)
        return pack_documents(list(enumerate(batch, number * len(batch))), shape)

    def step(self, number: int) -> float:
        sums = self.trainer.learn([self.packs[number % len(self.packs)]], self.rows, str)
        self.trainer.optimiser.step(number, 1000)
        return float(told(sums)["loss"])


def _parts(batch: list[Document]) -> tuple[list[Tensor], list[Tensor]]:
    return [d.tokens for d in batch], [d.last_rows for d in batch]


class Speculators:
    """The package's own `Trainer.train_epoch` over its own collated batches, with flags all engines serve.

    As shipped its head is frozen; `train_head` lets it learn, as the other trainers do.
    """

    def __init__(self, world: World, device: torch.device, *, steps: int, train_head: bool) -> None:
        from speculators.losses import resolve_loss_config
        from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
        from speculators.train import trainer as theirs
        from transformers import LlamaConfig

        self.version = metadata.version("speculators")
        self.name = f"speculators {self.version}" + (", head trained" if train_head else "")
        size, config = world.size, world.size.config()
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
        layer._attn_implementation = "simple_flex_attention" if device.type == "cuda" else "eager"
        model = Eagle3DraftModel(
            Eagle3SpeculatorConfig(
                transformer_layer_config=layer,
                draft_vocab_size=size.draft_vocab,
                eagle_aux_hidden_state_layer_ids=list(config.aux_inputs_of),
            )
        )
        self._load(model, world)
        model.lm_head.weight.requires_grad_(train_head)
        for name in ("embed_tokens", "verifier_lm_head", "verifier_norm"):
            getattr(model, name).weight.requires_grad_(False)
        losses = resolve_loss_config("kl_div", "fused" if device.type == "cuda" else "eager")
        self.folder = tempfile.TemporaryDirectory()
        settings = theirs.TrainerConfig(
            lr=2e-4,
            num_epochs=1,
            save_path=self.folder.name,
            scheduler_type="cosine",
            scheduler_total_steps=1000,
            train_call_kwargs={"ttt_steps": steps, "ttt_step_loss_decay": 1.0, "loss_config": losses},
            weight_decay=0.0,
            log_freq=10**9,
        )
        self.batches = [self._collated(batch, size, device) for batch in world.batches]
        self.loader = _Endless(self.batches)
        theirs.tqdm = lambda batches, **words: batches  # a bar that redraws itself ten times a second
        if device.type == "cpu":  # a dry run: they take the device from the accelerator
            theirs.get_local_rank = lambda: device
        self.trainer = theirs.Trainer(model, settings, self.loader)
        self.trainer.device_type = device.type
        self.trainer.global_step = 1  # step 0 is logged, and waits for the device at every mark

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

    def step(self, number: int) -> float:
        """One turn of their loop: it hands back after the optimiser's step."""
        self.loader.left = 1
        self.trainer.train_epoch(0)
        return float("nan")


class _Endless:
    """A loader that yields `left` batches a time."""

    batch_sampler = None

    def __init__(self, batches: list[dict[str, Any]]) -> None:
        self.batches, self.left, self._next = batches, 1, 0

    def __len__(self) -> int:
        return 1000

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(self.left):
            self._next += 1
            yield dict(self.batches[self._next % len(self.batches)])


class Dense:
    """The plain unrolled loop: document by document, dense masks, all rows, all logits, autocast, AdamW."""

    version = "this checkout"

    def __init__(self, world: World, device: torch.device, *, steps: int) -> None:
        self.name, self.steps, self.device = "dense loop", steps, device
        self.drafter = world.drafter.float().to(device)
        self.drafter.embedding = self.drafter.embedding.to(device)
        self.head = world.head[world.vocabulary.target_ids].to(device)
        self.batches = [
            [
                tuple(t.to(device) for t in (d.tokens.long(), d.mask.bool(), d.aux, d.every_last))
                for d in batch
            ]
            for batch in world.batches
        ]
        fused = device.type == "cuda"
        self.adam = torch.optim.AdamW(self.drafter.parameters(), lr=2e-4, weight_decay=0.0, fused=fused)

    def step(self, number: int) -> float:
        batch = self.batches[number % len(self.batches)]
        rows = sum(int(mask.sum()) for _, mask, _, _ in batch)
        loss = 0.0
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
            loss += float(total.detach())
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 0.5)
        self.adam.step()
        self.adam.zero_grad()
        return loss


def spread(total: int, low: int, high: int, seed: int) -> list[int]:
    """Lengths from `low` to `high`, multiples of 128, that sum to `total`."""
    draw, lengths = random.Random(seed), []
    while sum(lengths) < total:
        left = total - sum(lengths)
        length = draw.randrange(low, high + 1, 128)
        lengths.append(left if left < low + high and left <= high else min(length, left - low))
    return lengths
