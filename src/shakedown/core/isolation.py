"""Factors, experiments and what a search may conclude from them.

It never chooses or runs an experiment.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from shakedown.core.verdicts import Judgement


class FactorKind(StrEnum):
    FLAG = "flag"
    GROUP = "group"
    ENV = "env"
    DEFAULT = "default"
    BACKEND = "backend"
    FIT = "fit"
    CACHE = "cache"  # what was compiled earlier
    CONFIG = "config"  # a value in the model's config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One thing that can be kept as it `was` or changed to what it is `now` in safe mode.

    Changing it drops `drop_argv` (positions in `Launch.argv`) and `drop_env`, appends `add_argv` and
    `add_env`, and overrides keys of the model's config by `add_config` (values are JSON). Factors of one
    launch touch disjoint positions, so any subset composes.
    `needs` names factors without which this one means nothing: changing those changes this too.
    `dear` orders remedies: the higher, the less a user likes to lose it. `safe`: as the user has it, it
    is on the safe side already, so safe mode keeps it (an off-switch the user gave).
    """

    name: str
    kind: FactorKind
    was: str
    now: str
    drop_argv: tuple[int, ...] = ()
    drop_env: tuple[str, ...] = ()
    add_argv: tuple[str, ...] = ()
    add_env: tuple[tuple[str, str], ...] = ()
    add_config: tuple[tuple[str, str], ...] = ()
    needs: frozenset[str] = frozenset()
    dear: int = 0
    safe: bool = False


class Purpose(StrEnum):
    """Why a trial is run."""

    RUN = "run"
    REPRODUCE = "reproduce"
    SAFE_MODE = "safe_mode"
    PLAIN_NULL = "plain_null"
    SPLIT = "split"
    ALONE = "alone"
    ONE_LESS = "one_less"
    WORKAROUND = "workaround"
    VALUE = "value"
    PEEL = "peel"
    EVIDENCE = "evidence"
    RUNG = "rung"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A launch to try: the factors kept as the user had them; all others are in safe mode.

    `substitutes` overrides single factors by another value: (factor name, argv tokens to add).
    `repeat` tells repetitions of one configuration apart. `rung`: something simpler is run instead.
    `stand_in`: the engine runs it with made-up weights and fewer layers, for less.
    """

    kept: frozenset[str]
    purpose: Purpose
    reason: str
    substitutes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    repeat: int = 0
    debug: bool = False
    rung: str = ""
    stand_in: bool = False

    @property
    def of_the_launch(self) -> bool:
        """Whether it bears on the launch: debugging may change its timing, a rung is another program."""
        return not self.debug and not self.rung


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Something simpler than the launch that the launch cannot do without. `title` says what passes.

    `same`: its failure counts only where it fails as the launch does, for it may fail for reasons of its own.
    """

    name: str
    title: str
    same: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an experiment showed. `alone`: no other launch of its search ran beside it."""

    trial_id: str
    judgement: Judgement
    seconds: float
    alone: bool = True


class Oracle(Protocol):
    """Runs one experiment, or recalls it; raises `BudgetSpent` when no further launch is allowed."""

    def __call__(self, experiment: Experiment) -> Outcome: ...


class CauseKind(StrEnum):
    FACTORS = "factors"
    BASE = "base"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of a certificate: true, false or not known, and the trials that say so."""

    value: bool | None
    trial_ids: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workaround:
    """The user's own command, changed least: which factors change, and what it then is.

    `changes` says each change in words a user reads ("--nnodes 2: removed").
    """

    kept: frozenset[str]
    changes: tuple[str, ...]
    substitutes: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A proven or suspected cause. `certificate` maps alone_fails, one_less_passes, workaround_serves
    (for a base cause: safe_mode_fails, rung_fails, next_simpler_passes, workaround_serves) to checks."""

    kind: CauseKind
    factors: tuple[str, ...]
    rung: str | None
    certificate: tuple[tuple[str, Check], ...]
    workaround: Workaround | None
    value_note: str = ""  # "8 works, 16 does not"

    @property
    def proven(self) -> bool:
        needed = [check.value for name, check in self.certificate if name != "workaround_serves"]
        if self.kind is CauseKind.FACTORS:
            needed = [check.value for _, check in self.certificate]
        return bool(needed) and all(value is True for value in needed)


class HypothesisState(StrEnum):
    OPEN = "open"
    SUPPORTED = "supported"
    REFUTED = "refuted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A statement, what it predicts, the trials that bear on it, and how it stands."""

    statement: str
    predicts: str
    state: HypothesisState
    trial_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One trial of a search as it was chosen and what it showed; `concluded` is one plain sentence.

    `ranking` is how suspected the factors were after it, likeliest first: (factor, probability).
    """

    experiment: Experiment
    outcome: Outcome
    concluded: str
    ranking: tuple[tuple[str, float], ...] = ()


class Ended(StrEnum):
    """How a search ended."""

    PROVEN = "proven"
    NOT_PROVEN = "not_proven"
    SERVES = "serves"  # nothing to isolate
    NOT_REPRODUCED = "not_reproduced"
    UNDECIDED = "undecided"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """Everything a search found. `failing` is the first look at the user's own launch."""

    ended: Ended
    failing: Judgement
    causes: tuple[Cause, ...]
    suspects: tuple[tuple[str, float], ...]  # not proven: (factor, probability), likeliest first
    cleared: tuple[str, ...]
    not_cleared: tuple[str, ...]
    other_failures: tuple[tuple[str, str], ...]  # (trial id, what it showed instead)
    probability: float | None
    hypotheses: tuple[Hypothesis, ...]
    steps: tuple[Step, ...]
    note: str = ""  # "0 of 3 failed, so it fails in fewer than 3/3 …"
