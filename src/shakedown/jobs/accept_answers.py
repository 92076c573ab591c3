"""An answer with the rounds that it took, as far as the server tells them: its own, or a whole block's.

It asks nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from shakedown.acceptance.pace import Effort
from shakedown.acceptance.rounds import Tally, place_rounds, rounds_of_pieces, whole_rounds
from shakedown.jobs.accept_ends import ended, rounds_within, until_end
from shakedown.jobs.accept_questions import Question
from shakedown.probe.counters import SpeculationCounters
from shakedown.probe.generation import Generated


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Requests that ran at once, of whose rounds the server tells sums alone: `tally` is of all `answers`."""

    number: int
    answers: int
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question with its answer. `tally`: its rounds, the last one dropped where the source allows it; None
    where they are told of a whole `block`. `generated` ends with the model's own end mark, but for `past`
    tokens whose rounds cannot be told from the others. `came`: tokens of all that was generated."""

    question: Question
    generated: Generated
    tally: Tally | None = None
    block: Block | None = None
    past: int = 0
    came: int = 0
    steps: int = 0  # of the target after the first token; 0: one for each token
    rounds: int = 0  # of these steps

    @property
    def prompt(self) -> tuple[int, ...]:
        """In ids: what the server told, else what it was asked with; () where neither is known."""
        return self.generated.prompt or self.question.prompt or ()

    @property
    def effort(self) -> Effort:
        decoded = self.generated.decoded
        return Effort(
            seconds=self.generated.decode_s or 0.0,
            tokens=decoded,
            steps=self.steps or decoded,
            rounds=self.rounds,
        )


def answered(
    question: Question,
    generated: Generated,
    counters: Tally | None,
    *,
    drafts: int,
    ends: Collection[int],
) -> Answered:
    """`counters`: what the server's sums grew by with this request, if it alone was asked."""
    if generated.rounds is None and generated.histogram is not None:
        pieces = [number for _, number in generated.arrivals]
        generated = replace(generated, rounds=rounds_of_pieces(pieces, generated.histogram))
    kept = until_end(generated, ends, drafted=drafts > 0)
    every = counters
    if generated.rounds is not None:
        every = Tally.of_rounds(rounds_within(generated, kept.count) or (), drafts)
    elif generated.histogram is not None:
        every = Tally.of_histogram(generated.histogram, drafts)
    return Answered(
        question=question,
        generated=kept,
        tally=whole(kept, drafts) if kept.rounds is not None else every,
        steps=steps_of(kept.decoded, every) if every is not None else 0,
        rounds=every.rounds if every is not None else 0,
        past=len(kept.tokens) - ended(kept.tokens, ends),
        came=generated.count,
    )


def whole(generated: Generated, drafts: int) -> Tally:
    """The rounds that the end of the text cannot have cut."""
    assert generated.rounds is not None
    placed = place_rounds(generated.rounds, len(generated.tokens))
    if placed is None:
        return Tally.of_rounds(generated.rounds[:-1], drafts)
    kept = whole_rounds(placed, len(generated.tokens), drafts)
    return Tally.of_rounds([each.accepted for each in kept], drafts)


def steps_of(decoded: int, every: Tally) -> int:
    """A step for which nothing was drafted is no round, and emits a token, too."""
    return max(every.rounds, decoded - sum(every.accepted))


def counted(before: object, after: object, drafts: int) -> Tally | None:
    if not isinstance(before, SpeculationCounters) or not isinstance(after, SpeculationCounters):
        return None
    return tally_of(after, drafts).less(tally_of(before, drafts))


def tally_of(counters: SpeculationCounters, drafts: int) -> Tally:
    deep = [*counters.per_position, *[0.0] * drafts][:drafts]
    return Tally(rounds=round(counters.rounds), accepted=tuple(round(each) for each in deep))


def shared_out(found: Sequence[Answered], block: Block) -> list[Answered]:
    """The block's rounds are one observation; for the pace each answer has its share of them."""
    tokens = max(1, sum(each.generated.decoded for each in found))
    steps = steps_of(tokens, block.tally)
    shares = [each.generated.decoded / tokens for each in found]
    return [
        replace(each, block=block, steps=round(steps * share), rounds=round(block.tally.rounds * share))
        for each, share in zip(found, shares, strict=True)
    ]


def tallies_of(answers: Sequence[Answered]) -> list[Tally]:
    """Each a cluster: a request's own, or that of requests of which only sums are told."""
    blocks = dict.fromkeys(each.block for each in answers if each.block is not None)
    own = [each.tally for each in answers if each.tally is not None]
    return [*own, *(block.tally for block in blocks)]


def block_of(answers: Sequence[Answered]) -> int:
    """How many answers are one request of a comparison."""
    return max((each.block.answers for each in answers if each.block is not None), default=1)


def past_end(answers: Sequence[Answered]) -> float:
    return sum(each.past for each in answers) / max(1, sum(len(each.generated.tokens) for each in answers))
