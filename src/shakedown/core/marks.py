"""Marks that a user states for a launch, and what was measured of them.

It never measures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

MISSED = "below a stated mark: "  # begins the fingerprint of a launch that serves and misses marks


class Mark(StrEnum):
    """What can be stated of a launch. Each has one direction in which it is better."""

    TOKENS_PER_S = "tokens_per_s"  # of one streamed request, after its first token
    ACCEPT_LENGTH = "accept_length"  # tokens a round of speculation yields, the bonus token included
    TTFT_MS = "ttft_ms"  # from sending a short request to an idle server to its first token
    READY_S = "ready_s"  # from the start of the launch to its first answer

    @property
    def more_is_better(self) -> bool:
        return self in (Mark.TOKENS_PER_S, Mark.ACCEPT_LENGTH)

    @property
    def sign(self) -> str:
        return ">=" if self.more_is_better else "<="


_STATED = re.compile(r"\s*([a-z_]+)\s*([<>]=?)\s*(\d+(?:\.\d+)?)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One stated mark: at least `bound` where more is better, else at most."""

    mark: Mark
    bound: float

    @classmethod
    def read(cls, text: str) -> Self:
        """`tokens_per_s >= 400`; raises ValueError with what to write instead."""
        found = _STATED.fullmatch(text)
        if found is None or found[1] not in list(Mark):
            forms = ", ".join(f"{mark} {mark.sign} N" for mark in Mark)
            raise ValueError(f"{text!r} states no mark; write one of {forms}")
        mark, bound = Mark(found[1]), float(found[3])
        if found[2][0] != mark.sign[0]:
            raise ValueError(f"{text!r} would be met by any failure; write {mark} {mark.sign} {found[3]}")
        if bound == 0:
            raise ValueError(f"{text!r}: a mark of zero says nothing")
        return cls(mark=mark, bound=bound)

    def __str__(self) -> str:
        return f"{self.mark} {self.mark.sign} {self.bound:g}"

    def met_within(self, low: float, high: float) -> bool | None:
        """Whether every value from `low` to `high` meets it, none does, or (None) some do."""
        worst, best = (low, high) if self.mark.more_is_better else (-high, -low)
        bound = self.bound if self.mark.more_is_better else -self.bound
        return True if worst >= bound else False if best < bound else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a launch showed of one mark: the value, an interval around it, and from how many samples.

    `value` None: it could not be measured, and `note` says why.
    """

    expectation: Expectation
    value: float | None = None
    low: float = 0.0
    high: float = math.inf
    samples: int = 0
    note: str = ""

    @property
    def met(self) -> bool | None:
        return self.expectation.met_within(self.low, self.high) if self.value is not None else None

    def __str__(self) -> str:
        name = self.expectation.mark
        if self.value is None:
            return f"{name} could not be measured: {self.note}"
        samples = f", {self.samples} requests" if self.samples > 1 else ""
        return f"{name} {self.value:.4g} ({self.low:.4g} to {self.high:.4g}{samples})"


def missed_fingerprint(missed: Iterable[Measured]) -> str:
    return MISSED + " ".join(sorted(it.expectation.mark for it in missed))


def missed_marks(fingerprint: str) -> frozenset[str]:
    """The marks that a failure missed; none where it is another failure."""
    named = fingerprint.removeprefix(MISSED) if fingerprint.startswith(MISSED) else ""
    return frozenset(named.split())
