"""The drafter's vocabulary: its size, its head, and whether d2t holds offsets as both engines take it.

It judges d2t by what a reading would mean, never by whether the numbers rise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shakedown.engines.lint.facts import (
    DrafterFacts,
    Finding,
    TargetConfig,
    misdrafting,
    not_loading,
    note,
    warning,
)
from shakedown.engines.lint.profiles import EngineProfile
from shakedown.engines.lint.settings import Settings

# By how much rows of one head must point along each other, over rows that have nothing to do with each other,
# for a reading to count: a trained head keeps the direction of the target's rows that it began as. Unrelated
# rows are no zero: 0.43 on average in SmolLM2-135M.
CLEARLY = 0.1


def judge_vocabulary(
    drafter: DrafterFacts, settings: Settings, target: TargetConfig | None, profile: EngineProfile
) -> Iterator[Finding]:
    target_vocab = (target.number("vocab_size") if target else None) or settings.vocab
    yield from _judge_sizes(drafter, settings, target_vocab, profile)
    yield from _judge_head(drafter, settings, profile)
    if drafter.d2t is not None:
        yield from _judge_map(drafter, drafter.d2t, settings, target_vocab, profile)


def _judge_sizes(
    drafter: DrafterFacts, settings: Settings, target_vocab: int, profile: EngineProfile
) -> Iterator[Finding]:
    if profile.is_sglang and not settings.draft_vocab_given:
        yield not_loading(
            "draft-vocab-absent",
            "reads config.draft_vocab_size, which raises AttributeError where the config lacks it",
            "no draft_vocab_size in config.json",
            'set "draft_vocab_size" to the rows of lm_head.weight, or to null to use the target\'s head',
        )
    smaller = settings.draft_vocab is not None and settings.draft_vocab != target_vocab
    if smaller and drafter.d2t is None:
        yield misdrafting(
            "d2t-missing",
            "takes draft token i for the target's token i",
            f"draft_vocab_size {settings.draft_vocab}, target vocabulary {target_vocab}, no d2t",
            "export d2t with the drafter",
        )
    if drafter.d2t is not None and not smaller and not profile.is_sglang:
        yield not_loading(
            "d2t-unplaced",
            "has no place for d2t where both vocabularies have one size",
            f"draft_vocab_size {settings.draft_vocab}, target vocabulary {target_vocab}",
            "remove d2t: equal vocabularies need no map",
        )
    if drafter.d2t is not None and settings.draft_vocab not in (None, len(drafter.d2t)):
        yield not_loading(
            "d2t-length",
            "d2t has another length than the draft vocabulary",
            f"{len(drafter.d2t)} against draft_vocab_size {settings.draft_vocab}",
            "export the map that belongs to lm_head.weight",
        )


def _judge_head(drafter: DrafterFacts, settings: Settings, profile: EngineProfile) -> Iterator[Finding]:
    if settings.raw.get("tie_word_embeddings") and profile.is_sglang:
        yield misdrafting(
            "tied-head",
            "drafts with the target's embedding as its head and ignores lm_head.weight",
            "tie_word_embeddings true, copied from the target's config",
            'set "tie_word_embeddings": false',
        )
    if drafter.embedding_equal is False and profile.is_sglang and settings.hidden == settings.target_hidden:
        yield misdrafting(
            "embedding-replaced",
            "puts the target's embedding in the place of the drafter's own, which differs from it",
            "rows of embed_tokens.weight compared with the target's",
            "train with the target's embedding frozen",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """d2t taken one way: the target tokens that the draft tokens would be."""

    tokens: tuple[int, ...]

    def is_possible(self, vocab: int) -> bool:
        inside = all(0 <= token < vocab for token in self.tokens)
        return inside and len(set(self.tokens)) == len(self.tokens)

    def fits(self, t2d: Sequence[bool]) -> bool:
        return set(self.tokens) == {token for token, drafted in enumerate(t2d) if drafted}


def _judge_map(
    drafter: DrafterFacts, d2t: Sequence[int], settings: Settings, target_vocab: int, profile: EngineProfile
) -> Iterator[Finding]:
    offset = _Reading(tokens=tuple(i + value for i, value in enumerate(d2t)))
    absolute = _Reading(tokens=tuple(d2t))
    possible = offset.is_possible(target_vocab), absolute.is_possible(target_vocab)
    sample = f"d2t begins {list(d2t[:5])}"
    absolute_mend = "subtract each index: d2t[i] = target token - i"
    if possible == (False, False):
        yield misdrafting(
            "d2t-broken",
            "d2t leads out of the vocabulary or two tokens to one, taken as offsets and as token ids",
            f"{sample}; target vocabulary {target_vocab}",
            "export the map again",
        )
        return
    if possible == (False, True):
        why = f"as offsets two draft tokens would be one, or lie beyond the target's {target_vocab}"
        yield misdrafting("d2t-absolute", _ABSOLUTE, f"{sample}; {why}", absolute_mend)
        return
    if drafter.t2d is not None:
        yield from _judge_by_t2d(offset, absolute, drafter.t2d, sample, absolute_mend)
    if drafter.t2d is None and drafter.head is None and possible == (True, True):
        yield warning(
            "d2t-undecided",
            "d2t could hold offsets, as both engines take it, or token ids",
            f"{sample}; there is no t2d, and the target's head was not given",
            "give --target with the target's weights",
        )
    elif drafter.head is not None and not _is_decided(drafter):
        yield _fits_neither(drafter, sample)
    yield from _judge_by_head(drafter, possible[1], sample, absolute_mend)


_ABSOLUTE = "d2t holds target tokens; both engines take it for offsets and draft other tokens"


def _judge_by_t2d(
    offset: _Reading, absolute: _Reading, t2d: Sequence[bool], sample: str, mend: str
) -> Iterator[Finding]:
    if offset.fits(t2d):
        return
    if absolute.fits(t2d):
        yield misdrafting("d2t-absolute", _ABSOLUTE, f"{sample}; t2d marks exactly these tokens", mend)
        return
    marked = sum(map(bool, t2d))
    yield misdrafting(
        "d2t-t2d",
        "d2t and t2d name different tokens: one of them belongs to another head",
        f"{sample}; {len(set(offset.tokens))} tokens by d2t, {marked} marked in t2d",
        "export both maps from the training that made lm_head.weight",
    )


def _is_decided(drafter: DrafterFacts) -> bool:
    match = drafter.head
    return match is not None and max(match.as_offset, match.as_absolute) > match.unrelated + CLEARLY


def _fits_neither(drafter: DrafterFacts, sample: str) -> Finding:
    """Both maps may agree and yet be those of another head: of another training, or of other counts."""
    match = drafter.head
    assert match is not None
    return warning(
        "d2t-undecided",
        "the head fits neither reading of d2t: the map may be that of another head",
        f"{sample}; mean cosine of {match.rows} rows of lm_head.weight with the target's: as offsets "
        f"{match.as_offset:.2f}, as token ids {match.as_absolute:.2f}, with other rows {match.unrelated:.2f}",
        "compare with the map of the training that made lm_head.weight",
    )


def _judge_by_head(
    drafter: DrafterFacts, absolute_is_possible: bool, sample: str, mend: str
) -> Iterator[Finding]:
    match = drafter.head
    if match is None or not _is_decided(drafter):
        return
    evidence = (
        f"{sample}; mean cosine of {match.rows} rows of lm_head.weight with the target's: as offsets "
        f"{match.as_offset:.2f}, as token ids {match.as_absolute:.2f}, with other rows {match.unrelated:.2f}"
    )
    if match.as_offset > match.unrelated + CLEARLY:
        yield note("d2t-offset", "d2t holds offsets", evidence)
    elif absolute_is_possible:
        yield misdrafting("d2t-absolute", _ABSOLUTE, evidence, mend)
