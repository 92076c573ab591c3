"""Whether two failures are the same one, and what an outcome says about the failure searched for.

It never judges a launch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from shakedown.core import Judgement, Match, Phase, Signature, Verdict, missed_marks

# Eager and graph mode pass different phases between weights and warm-up, so one fault can show in either.
FIRST_FORWARD = frozenset(
    {Phase.POST_LOAD, Phase.COMPILE, Phase.KV_CACHE, Phase.GRAPH_CAPTURE, Phase.WARM_UP}
)
OF_ONE_MODE = frozenset({Phase.COMPILE, Phase.GRAPH_CAPTURE})
ALIKE = 0.6  # share of words two wordings of one exception have in common

EPSILON = 0.01  # chance that a launch without the cause shows the same failure
SURE = 0.9  # flake rate above which one look at a configuration counts as sure
ERROR = 0.05  # Wald's limits: at most this share of single decisions is wrong


class Showing(StrEnum):
    """What an outcome says about one failure. `OTHER` counts neither as that failure nor as a pass."""

    FAILS = "fails"
    SERVES = "serves"
    OTHER = "other"
    UNKNOWN = "unknown"


def compare(a: Signature, b: Signature) -> Match:
    """Same, compatible (counts, but is said) or different (filed apart)."""
    if a == b:
        return Match.SAME
    if a.verdict is not b.verdict or a.wait is not b.wait:
        return Match.DIFFERENT
    if a.verdict is Verdict.CRASHED:
        return _compare_crashes(a, b)
    mine, theirs = missed_marks(a.fingerprint), missed_marks(b.fingerprint)
    if mine or theirs:
        return Match.COMPATIBLE if mine & theirs else Match.DIFFERENT
    return Match.COMPATIBLE if _share_phase(a.phase, b.phase) else Match.DIFFERENT


def classify(judgement: Judgement, target: Signature) -> Showing:
    if judgement.environment:
        return Showing.UNKNOWN
    if judgement.passed is not None:
        beyond = safely_past(target)
        past = beyond is not None and judgement.passed.order >= beyond.order
        return Showing.SERVES if past else Showing.UNKNOWN
    if judgement.verdict is Verdict.UNDECIDED:
        return Showing.UNKNOWN
    if judgement.serves:
        return Showing.SERVES
    different = compare(judgement.signature, target) is Match.DIFFERENT
    return Showing.OTHER if different else Showing.FAILS


def safely_past(target: Signature) -> Phase | None:
    """The phase that no launch reaches which still could show this failure, or a compatible one.

    None where only a served request tells.
    """
    if target.verdict not in {Verdict.CRASHED, Verdict.HUNG}:
        return None
    last = Phase.WARM_UP if target.phase in FIRST_FORWARD else target.phase
    return next((phase for phase in Phase if last.order < phase.order < Phase.READY.order), None)


def decide(fails: int, serves: int, rates: Sequence[tuple[float, float]]) -> Showing:
    """Wald's test of one configuration: does it carry the failure? `UNKNOWN` asks for another look.

    `rates` are (how often the failure shows where it can, probability of that rate), summing to 1:
    the likelihood of the looks is averaged over them, so an unknown rate asks for more looks.
    """
    carries = sum(weight * rate**fails * (1 - rate) ** serves for rate, weight in rates)
    free = EPSILON**fails * (1 - EPSILON) ** serves
    limit = (1 - ERROR) / ERROR
    if carries >= limit * free:
        return Showing.FAILS
    if carries * limit <= free:
        return Showing.SERVES
    return Showing.UNKNOWN


def _share_phase(a: Phase, b: Phase) -> bool:
    if a is b:
        return True
    return {a, b} <= FIRST_FORWARD and bool({a, b} & OF_ONE_MODE)


def _compare_crashes(a: Signature, b: Signature) -> Match:
    """An exception is the same one wherever it strikes; without a fingerprint only the phase is left."""
    if a.fingerprint == b.fingerprint and a.fingerprint:
        return Match.COMPATIBLE
    if not _share_phase(a.phase, b.phase):
        return Match.DIFFERENT
    if not a.fingerprint or not b.fingerprint:
        return Match.COMPATIBLE
    return Match.COMPATIBLE if _alike(a.fingerprint, b.fingerprint) else Match.DIFFERENT


def _alike(a: str, b: str) -> bool:
    if a.partition(":")[0] != b.partition(":")[0]:
        return False
    words_a, words_b = set(re.findall(r"\w+", a.lower())), set(re.findall(r"\w+", b.lower()))
    return len(words_a & words_b) >= ALIKE * len(words_a | words_b)
