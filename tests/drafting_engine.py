"""An engine that drafts, in a few lines: rounds over given texts, with the states and the faults it is told.

It stands for vLLM in tests that need a verdict in seconds: what it reports and what its plug-in would write
have the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from drafter_targets import VOCABULARY, save_llama

from shakedown.acceptance.expect import Floats
from shakedown.drafter.architecture import Drafter, DrafterConfig
from shakedown.drafter.capture import Request
from shakedown.drafter.fast import learn
from shakedown.drafter.ladders import build_ladders
from shakedown.drafter.packing import PackShape, pack_documents
from shakedown.drafter.rotary import Rope
from shakedown.drafter.rungs import Ladder
from shakedown.drafter.shards import Document
from shakedown.drafter.tapped import Tapped
from shakedown.drafter.target import read_target
from shakedown.drafter.teacher import TargetHead
from shakedown.drafter.vocabulary import DraftVocabulary
from shakedown.drafter.walk import accept_matrices
from shakedown.jobs.accept_answers import Answered
from shakedown.jobs.accept_expect import ReferenceDrafter, requests_of
from shakedown.jobs.accept_questions import Question
from shakedown.probe.generation import Generated

PROMPT, GENERATED, DRAFTS, TEXTS, STEPS = 4, 26, 3, 12, 110
DRAFTED = 72  # tokens that the drafter can propose; no text holds another
Hands = Callable[[Ladder], torch.Tensor]  # all states of a text to what the engine hands over, [slots, T, H]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A drafter that knows the texts by heart, the texts, and the target's states on them."""

    reference: ReferenceDrafter
    texts: tuple[tuple[int, ...], ...]
    ladders: tuple[Ladder, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        return self.reference.config.aux_inputs_of

    def on(self, texts: Sequence[Sequence[int]]) -> Lesson:
        """The same drafter before other texts."""
        found = ladders_of(self.reference, texts)
        return replace(self, texts=tuple(map(tuple, texts)), ladders=found)


def ladders_of(reference: ReferenceDrafter, texts: Sequence[Sequence[int]]) -> tuple[Ladder, ...]:
    requests = requests_of(questions(texts))
    inputs = reference.config.aux_inputs_of
    return tuple(build_ladders(reference.target, requests, device="cpu", branches=inputs))


def right_states(ladder: Ladder, inputs: Sequence[int] = (2, 4, 5)) -> torch.Tensor:
    return ladder.rungs[list(inputs)]


def questions(texts: Sequence[Sequence[int]]) -> list[Answered]:
    return [
        Answered(
            question=Question(kind="", text=str(number)),
            generated=Generated(prompt=tuple(text[:PROMPT]), tokens=tuple(text[PROMPT:])),
        )
        for number, text in enumerate(texts)
    ]


def untaught(folder: Path, save: Callable[[Path], None] = save_llama) -> Lesson:
    """Texts that nobody could guess: only states, which have seen all of a text, tell what follows."""
    torch.set_num_threads(1)
    save(folder)
    target = read_target(folder)
    chance = torch.Generator().manual_seed(3)
    known = torch.randperm(VOCABULARY, generator=chance)[:DRAFTED].sort().values
    drawn = known[torch.randint(DRAFTED, (TEXTS, PROMPT + GENERATED), generator=chance)]
    texts = tuple(tuple(text.tolist()) for text in drawn)
    config = DrafterConfig(
        hidden=target.hidden_size,
        target_hidden=target.hidden_size,
        intermediate=96,
        heads=4,
        kv_heads=2,
        head_dim=8,
        vocab=VOCABULARY,
        draft_vocab=DRAFTED,
        rms_eps=target.rms_eps,
        rope=Rope(theta=target.rope_theta),
        max_positions=target.max_positions,
        aux_inputs_of=target.aux_inputs_of,
        target_layers=target.layers,
        target_architecture=target.architecture,
    )
    torch.manual_seed(1)
    drafter = Drafter(config, target.embedding().float())
    vocabulary = DraftVocabulary(d2t=known - torch.arange(DRAFTED), vocab=VOCABULARY)
    reference = ReferenceDrafter(
        target=target, config=config, drafter=drafter, vocabulary=vocabulary, device="cpu"
    )
    return Lesson(reference=reference, texts=texts, ladders=ladders_of(reference, texts))


def learn_by_heart(folder: Path) -> Lesson:
    lesson = untaught(folder)
    drafter, vocabulary = lesson.reference.drafter, lesson.reference.vocabulary
    documents = lesson.reference.states(requests_of(questions(lesson.texts)))
    # The teacher says what the text says: its last state is the head's row of the token that follows.
    head = torch.nn.functional.one_hot(torch.arange(VOCABULARY), VOCABULARY).float() * 12
    taught = [
        replace(d, last=torch.nn.functional.one_hot(d.tokens.long()[d.last_rows + 1], VOCABULARY).float())
        for d in documents
    ]
    rows = sum(len(d.last_rows) for d in taught)
    shape = PackShape(tokens=sum(len(d.tokens) for d in taught), rows=rows)
    pack = pack_documents(list(enumerate(taught)), shape).to(torch.device("cpu"), torch.float32)
    teacher = TargetHead(head, vocabulary).teach(pack.last)
    optimiser = torch.optim.AdamW(drafter.parameters(), lr=8e-3)
    for _ in range(STEPS):
        optimiser.zero_grad()
        found = learn(drafter, pack, teacher, steps=DRAFTS, decay=1.0, rows=rows)
        found.total.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimiser.step()
    return lesson


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`hands_over` makes the states wrong, `drafter` and `vocabulary` are what it has loaded."""

    lesson: Lesson
    hands_over: Hands = right_states
    drafter: Drafter | None = None
    vocabulary: DraftVocabulary | None = None

    def serve(self) -> tuple[list[Answered], list[Tapped]]:
        """Every text once: its answer with its rounds, and the states that the drafter was handed."""
        reference = self.lesson.reference
        asked = questions(self.lesson.texts)
        documents = [
            self.captured(request, ladder)
            for request, ladder in zip(requests_of(asked), self.lesson.ladders, strict=True)
        ]
        matrices = accept_matrices(
            self.drafter or reference.drafter,
            self.vocabulary or reference.vocabulary,
            documents,
            drafts=DRAFTS,
        )
        answers, tapped = [], []
        for each, document, (accept,) in zip(asked, documents, matrices, strict=True):
            rounds = drafted(accept, GENERATED)
            generated = replace(each.generated, rounds=tuple(rounds))
            answers.append(replace(each, generated=generated))
            tapped.append(tapped_of(document, rounds))
        return answers, tapped

    def captured(self, request: Request, ladder: Ladder) -> Document:
        return Document(
            tokens=request.tokens,
            mask=request.mask,
            aux=self.hands_over(ladder).transpose(0, 1).flatten(1),
            last=torch.zeros(len(request.rows), ladder.rungs.shape[-1]),
            last_rows=request.rows,
            sample=request.sample,
        )


def drafted(accept: Floats, generated: int) -> list[int]:
    """Drafts accepted in each round; beyond the last full start none."""
    passed = np.cumprod(accept, axis=1).sum(axis=1).round().astype(int).tolist()
    rounds, start = [], 0
    while start < generated - 1:
        rounds.append(passed[start] if start < len(passed) else 0)
        start += rounds[-1] + 1
    return rounds


def tapped_of(document: Document, rounds: Sequence[int]) -> Tapped:
    """As the plug-in writes it: the prompt in one step, then DRAFTS + 1 tokens a step."""
    count = len(document.tokens) - 1
    width, first = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
    width[:PROMPT] = PROMPT
    at = PROMPT
    for accepted in rounds:
        width[at : at + accepted + 1], first[at : at + accepted + 1] = DRAFTS + 1, at
        at += accepted + 1
    slots = document.aux.view(len(document.tokens), 3, -1).transpose(0, 1)
    return Tapped(tokens=document.tokens[:count], aux=slots[:, :count], width=width, first=first)
