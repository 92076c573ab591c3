"""What a server's answers should have been accepted for: the same texts through the reference drafter.

It asks no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from shakedown.acceptance.expect import Floats, expect
from shakedown.acceptance.lookup import Lookup, place_lookups, walk_lookup
from shakedown.acceptance.replay import Comparison, Pair, compare, pair_rounds
from shakedown.acceptance.rounds import Tally, place_rounds, whole_rounds
from shakedown.acceptance.statistics import Interval, bootstrap_ratio
from shakedown.acceptance.verdict import Shown
from shakedown.drafter.architecture import Drafter, DrafterConfig
from shakedown.drafter.capture import Request, read_requests
from shakedown.drafter.capture_transformers import TransformersCapture
from shakedown.drafter.memory import choose_device
from shakedown.drafter.read import load_drafter
from shakedown.drafter.shards import Document, teacher_rows
from shakedown.drafter.target import Target, read_target
from shakedown.drafter.template import load_template
from shakedown.drafter.vocabulary import DraftVocabulary
from shakedown.drafter.walk import Judge, Rule, accept_matrices
from shakedown.errors import ShakedownError, UsageError
from shakedown.jobs.accept_answers import Answered, Block, block_of
from shakedown.jobs.accept_launches import Contender
from shakedown.jobs.accept_measure import Measurement
from shakedown.jobs.accept_request import first_sample
from shakedown.jobs.draft_evaluate import dtype_on, refuse_other_target

TRAINED_ON = 64  # documents of it are walked
NEXT_TO_GREEDY = 1e-4  # a temperature at which the likeliest token has all of the probability


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceDrafter:
    """A drafter as it was trained, with its target: what the engine's own is held against."""

    target: Target
    config: DrafterConfig
    drafter: Drafter
    vocabulary: DraftVocabulary
    device: str

    @classmethod
    def load(cls, folder: Path, checkpoint: Path) -> ReferenceDrafter:
        """Raises UsageError or DataProblem for what is no pair that we understand."""
        target = read_target(checkpoint)
        config, drafter, d2t = load_drafter(
            folder, target_layers=target.layers, target_architecture=target.architecture
        )
        refuse_other_target(config, target, folder)
        if config.aux_inputs_of != target.aux_inputs_of:
            raise UsageError(
                f"{folder} reads the inputs of layers {list(config.aux_inputs_of)}; the reference computes"
                f" those of {list(target.aux_inputs_of)} only"
            )
        if not len(drafter.embedding):
            drafter.attach_embedding(target.embedding().float())
        device = choose_device()
        return cls(
            target=target,
            config=config,
            drafter=drafter.to(device),
            vocabulary=DraftVocabulary(d2t=d2t, vocab=config.vocab),
            device=device,
        )

    def matrices(
        self, documents: Sequence[Document], drafts: int, judge: Judge | None = None
    ) -> list[list[Floats]]:
        """Of each document its stretches' acceptance, as `accept_matrices`."""
        dtype = dtype_on(self.device)
        return list(
            accept_matrices(self.drafter, self.vocabulary, documents, drafts=drafts, judge=judge, dtype=dtype)
        )

    def head(self) -> torch.Tensor:
        return self.target.head().to(self.device)

    def states(self, requests: Sequence[Request]) -> list[Document]:
        """The target's own, from transformers, in the order of the requests."""
        with TransformersCapture(self.target, device=self.device, dtype=dtype_on(self.device)) as capture:
            found = {document.sample: document for document in capture.capture(requests)}
        return [found[request.sample] for request in requests]


def told_tokens(measurement: Measurement) -> list[Answered]:
    """The answers whose tokens and prompt the server told."""
    return [each for each in measurement.answers if each.generated.tokens and each.prompt]


def requests_of(answers: Sequence[Answered]) -> list[Request]:
    found = []
    for number, each in enumerate(answers):
        tokens = torch.tensor([*each.prompt, *each.generated.tokens], dtype=torch.int32)
        mask = torch.zeros(len(tokens), dtype=torch.uint8)
        mask[len(each.prompt) :] = 1
        found.append(
            Request(
                sample=number, place=f"answer {number + 1}", tokens=tokens, mask=mask, rows=teacher_rows(mask)
            )
        )
    return found


def expect_lookup(lookup: Lookup, answers: Sequence[Answered], shown: Shown) -> Shown:
    """Prompt lookup needs no states: what is proposed follows from the text alone."""
    pairs, walks = [], []
    for each in answers:
        prompt, tokens = each.prompt, each.generated.tokens
        walked = walk_lookup(lookup, prompt, tokens)
        walks.append(Tally.of_rounds([it.accepted for it in walked], lookup.drafts))
        placed = place_lookups(lookup, prompt, tokens, each.generated.rounds or ())
        if placed is not None and each.generated.rounds:
            placed = whole_rounds(placed, len(tokens), lookup.drafts)
            starts = {it.start: it.accepted for it in walked}
            engine = [it for it in placed if it.start in starts]
            pairs.append(
                Pair(
                    engine=Tally.of_rounds([it.accepted for it in placed], lookup.drafts),
                    reference=walks[-1],
                    alike=sum(starts[it.start] == it.accepted for it in engine),
                )
            )
        elif each.tally is not None:
            pairs.append(Pair(engine=each.tally, reference=walks[-1]))
    pairs += block_pairs(answers, walks)
    found = compare(pairs, expected_interval(walks), shown.margin)
    comparison = replace(found, block=block_of(answers))
    rounds = sum(each.rounds for each in answers)
    might = sum(walk.rounds for walk in walks)  # where nothing is proposed it cannot draft
    return replace(shown, reference=comparison, stateless=True, rounds=rounds, steps=might)


def expected_interval(tallies: Sequence[Tally]) -> Interval:
    kept = [tally for tally in tallies if tally.rounds]
    if not kept:
        return Interval(value=1.0, low=None, high=None)
    return bootstrap_ratio([tally.tokens for tally in kept], [tally.rounds for tally in kept])


def expect_drafter(
    reference: ReferenceDrafter,
    documents: Sequence[Document],
    answers: Sequence[Answered],
    drafts: int,
    margin: float,
) -> Comparison:
    """The answers walked with the reference drafter on these states, beside the engine's own rounds."""
    matrices = reference.matrices(documents, drafts)
    pairs = [pair_of(each, stretches) for each, stretches in zip(answers, matrices, strict=True)]
    blocks = block_pairs(answers, [walked(of[0]) if of and len(of[0]) else None for of in matrices])
    try:
        walks = expect(matrices)
    except ValueError:  # no answer is long enough for one round
        return compare([], Interval(value=1.0, low=None, high=None), margin)
    own = [pair for pair in pairs if pair is not None]
    found = compare([*own, *blocks], walks.tokens_per_round, margin)
    ended = [up_to_end(of, each.past) for each, of in zip(answers, matrices, strict=True)]
    return replace(
        found,
        conditional=walks.conditional,
        to_the_end=expected_or_none(ended),
        block=block_of(answers),
    )


def on_other_states(
    reference: ReferenceDrafter,
    answers: Sequence[Answered],
    seen: Sequence[Document],
    drafts: int,
    margin: float,
) -> Comparison:
    """The reference drafter on the states of `seen`, against it on its own, by walks of the same answers."""
    own = reference.matrices(reference.states(requests_of(answers)), drafts)
    there = reference.matrices(seen, drafts)
    pairs = []
    for mine, theirs in zip(own, there, strict=True):
        if mine and theirs and (count := min(len(mine[0]), len(theirs[0]))):
            pairs.append(Pair(engine=walked(theirs[0][:count]), reference=walked(mine[0][:count])))
    return compare(pairs, expected_interval([pair.reference for pair in pairs]), margin)


def up_to_end(stretches: Sequence[Floats], past: int) -> list[Floats]:
    """The starts from which a whole round lies before the end mark, `past` tokens of the answer after it."""
    return [accept[: max(0, len(accept) - past)] for accept in stretches]


def expected_or_none(documents: Sequence[Sequence[Floats]]) -> Interval | None:
    try:
        return expect(documents).tokens_per_round
    except ValueError:  # no answer is long enough for one round
        return None


def pair_of(answered: Answered, stretches: Sequence[Floats]) -> Pair | None:
    if not stretches or not len(stretches[0]):
        return None
    placed = place_rounds(answered.generated.rounds or (), len(answered.generated.tokens))
    if placed is not None:
        return pair_rounds(placed, stretches[0])
    if answered.tally is None:
        return None
    return Pair(engine=answered.tally, reference=walked(stretches[0]))


def block_pairs(answers: Sequence[Answered], walks: Sequence[Tally | None]) -> list[Pair]:
    """A block's sums beside the walks over all its answers; nothing where a walk of one is missing."""
    blocks: dict[Block, list[Tally]] = {}
    for each, walk in zip(answers, walks, strict=True):
        if each.block is not None and walk is not None:
            blocks.setdefault(each.block, []).append(walk)
    return [
        Pair(engine=block.tally, reference=Tally.total(found))
        for block, found in blocks.items()
        if len(found) == block.answers
    ]


def walked(accept: Floats) -> Tally:
    """A greedy walk's rounds: each begins where the one before it ended."""
    passed = np.cumprod(accept, axis=1).sum(axis=1).round().astype(int)
    accepted, start = [], 0
    while start < len(passed):
        accepted.append(int(passed[start]))
        start += accepted[-1] + 1
    return Tally.of_rounds(accepted, accept.shape[1])


def expect_elsewhere(
    reference: ReferenceDrafter, samples: Path, drafts: int, tokens: int
) -> tuple[Interval, str]:
    """(tokens a round on what the drafter was trained for, whether its chat template differs).

    Of each of its answers the first `tokens`, as many as are asked for here: long answers repeat themselves,
    which is easier to draft. Greedy as the answers here: where that text was sampled, a draft is held against
    the token that the target would have chosen, not against what chance wrote.
    """
    requests = list(islice(read_requests(samples), TRAINED_ON))
    judge = None
    if first_sample(samples).sampling.get("temperature"):
        judge = Judge(rule=Rule.PROBABILITY, head=reference.head(), temperature=NEXT_TO_GREEDY)
    whole = reference.matrices(reference.states(requests), drafts, judge)
    first = max(1, tokens - drafts - 1)  # places from which a whole round lies within them
    found = expect([[accept[:first] for accept in stretches] for stretches in whole])
    return found.tokens_per_round, template_words(samples, reference.target)


def template_words(samples: Path, target: Target) -> str:
    sample = first_sample(samples)
    try:
        here = load_template(str(target.path)).sha256
    except ShakedownError:  # a target without a template
        return ""
    return "" if sample.template == here else "the drafter was trained on another chat template"


def lookup_for(contender: Contender) -> Lookup | None:
    if contender.lookup is None:
        return None
    shortest, longest = contender.lookup
    return Lookup(shortest=shortest, longest=longest, drafts=contender.drafts)
