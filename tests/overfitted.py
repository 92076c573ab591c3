"""A drafter that knows a few answers of SmolLM2 by heart: trained in seconds, accepted where served rightly.

Its acceptance says nothing about drafters; it says whether an engine reads a directory as it was meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from shakedown.drafter.architecture import Drafter, DrafterConfig
from shakedown.drafter.export import export_drafter
from shakedown.drafter.fast import learn
from shakedown.drafter.packing import PackShape, loss_rows, pack_documents
from shakedown.drafter.rotary import Rope
from shakedown.drafter.shards import Document
from shakedown.drafter.target import Target, read_target
from shakedown.drafter.teacher import TargetHead
from shakedown.drafter.vocabulary import choose_vocabulary, count_generated
from shakedown.jobs.draft_lint import shipped_surveys

QUESTIONS = ("Tell me a story about a small boat.", "How do I boil an egg?")
EIGHT_QUESTIONS = (
    *QUESTIONS,
    "Why is the sky blue?",
    "Name three rivers in Europe.",
    "Write a short poem about rain.",
    "What is a prime number?",
    "How do I tie a knot?",
    "Who was Marie Curie?",
)
ANSWER_TOKENS, DRAFT_VOCABULARY, DRAFTS, STEPS = 40, 1024, 3, 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """The answers, each with its prompt's length, and how many of the drafts were right at the end."""

    answers: tuple[tuple[list[int], int], ...]
    hits: tuple[float, ...]


class Reference:
    """The target in transformers, fp32."""

    def __init__(self, model: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.target: Target = read_target(model)

    def prompt(self, question: str) -> list[int]:
        messages = [{"role": "user", "content": question}]
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.no_grad()
    def answer(self, prompt: list[int], tokens: int = ANSWER_TOKENS) -> list[int]:
        """Greedy, past the end marker where there is one: an engine is asked for as many tokens."""
        ids = torch.tensor([prompt])
        settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=2, **settings)
        return out[0].tolist()

    @torch.no_grad()
    def document(self, tokens: list[int], start: int) -> Document:
        """States of prompt and answer: inputs of the captured layers, the last after the final norm."""
        mask = torch.zeros(len(tokens), dtype=torch.uint8)
        mask[start:] = 1
        rows, _ = loss_rows(mask)
        states = self.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return Document(
            tokens=torch.tensor(tokens, dtype=torch.int32),
            mask=mask,
            aux=torch.cat([states[k][0] for k in self.target.aux_inputs_of], dim=-1),
            last=states[-1][0][rows],
            last_rows=rows,
        )


def learn_by_heart(
    reference: Reference,
    out: Path,
    *,
    questions: Sequence[str] = QUESTIONS,
    tokens: int = ANSWER_TOKENS,
    steps: int = STEPS,
) -> Learnt:
    """Trains on the reference's own answers and exports to `out`."""
    torch.manual_seed(0)
    prompts = [reference.prompt(question) for question in questions]
    answers = tuple((reference.answer(prompt, tokens), len(prompt)) for prompt in prompts)
    documents = [reference.document(tokens, start) for tokens, start in answers]
    target = reference.target
    counts = count_generated([(d.tokens, d.mask) for d in documents], target.vocab_size)
    vocabulary = choose_vocabulary(counts, DRAFT_VOCABULARY)
    drafter = Drafter(config_for(target), target.embedding().float())
    head = target.head().float()
    with torch.no_grad():
        drafter.lm_head.weight.copy_(head[vocabulary.target_ids])
        drafter.midlayer.hidden_norm.weight.fill_(
            3.0
        )  # far from the 1 that an engine starts a lost norm with
    rows = sum(len(d.last_rows) for d in documents)
    shape = PackShape(tokens=sum(len(d.tokens) for d in documents), rows=rows)
    pack = pack_documents(list(enumerate(documents)), shape)
    teacher = TargetHead(head, vocabulary).teach(pack.last)
    optimiser = torch.optim.AdamW(drafter.parameters(), lr=1e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        lesson = learn(drafter, pack, teacher, steps=DRAFTS, decay=1.0, rows=rows)
        lesson.total.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimiser.step()
    export_drafter(out, drafter.config, drafter.state_dict(), vocabulary.d2t, engines=shipped_surveys())
    return Learnt(answers=answers, hits=tuple((lesson.hits.sum(1) / lesson.trained.sum(1)).tolist()))


def config_for(target: Target) -> DrafterConfig:
    return DrafterConfig(
        hidden=target.hidden_size,
        target_hidden=target.hidden_size,
        intermediate=512,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        vocab=target.vocab_size,
        draft_vocab=DRAFT_VOCABULARY,
        rms_eps=target.rms_eps,
        rope=Rope(theta=target.rope_theta),
        max_positions=target.max_positions,
        aux_inputs_of=target.aux_inputs_of,
        target_layers=target.layers,
        target_architecture=target.architecture,
    )
