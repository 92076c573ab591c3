"""The search itself: reproduce, safe mode, split, prove, refine, peel.

It never starts anything: every experiment goes through the oracle it is handed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shakedown.core import (
    Ended,
    Factor,
    Judgement,
    Oracle,
    Phase,
    Purpose,
    Step,
    Verdict,
    missed_marks,
)
from shakedown.errors import BudgetSpent
from shakedown.isolate.arena import Arena
from shakedown.isolate.base import NO_LADDER, Ladder, RungFinding
from shakedown.isolate.certify import Evidence, demands_of, spoken
from shakedown.isolate.closure import Dependencies, Names
from shakedown.isolate.descent import Descent, says_itself
from shakedown.isolate.fitting import fits_in, freed, parts_of
from shakedown.isolate.inquiry import Inquiry
from shakedown.isolate.judge import Showing
from shakedown.isolate.notebook import Inconclusive, Notebook, SearchLimits, Start
from shakedown.isolate.nulls import find_floor, opening, reproduce
from shakedown.isolate.prior import Clues, weigh
from shakedown.isolate.remedy import Tokens, mildest_value, value_note
from shakedown.isolate.removal import Removal, remove
from shakedown.isolate.tell import shown

if TYPE_CHECKING:
    from shakedown.isolate.beliefs import Belief
    from shakedown.isolate.pursuit import Answer


UNSEEN = Judgement(verdict=Verdict.UNDECIDED, phase=Phase.IMPORT)  # before the first launch has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause, the arena it was found in, and how sure of it the hypotheses are (None: by splitting)."""

    members: Names
    arena: Arena
    evidence: Evidence
    probability: float | None


class Search:
    """The state of one search. `run` goes through it once and leaves it for the conclusion to read."""

    def __init__(
        self,
        factors: Sequence[Factor],
        oracle: Oracle,
        *,
        seed: int,
        clues: Clues,
        limits: SearchLimits,
        report: Callable[[Step], None],
        ladder: Ladder,
        start: Start,
    ) -> None:
        self.factors = {factor.name: factor for factor in sorted(factors, key=lambda factor: factor.name)}
        assert len(self.factors) == len(factors), "two factors have one name"
        self.needs = Dependencies(list(self.factors.values()))
        self.book = Notebook(oracle, report, limits, start)
        self.inquiry = Inquiry(self.book)
        self.seed, self.clues, self.limits, self.ladder = seed, clues, limits, ladder
        self.weights: dict[str, float] = {}
        self.failing: Judgement | None = None
        self.arena: Arena | None = None
        self.belief: Belief | None = None
        self.findings: list[Finding] = []
        self.base: RungFinding | None = None
        self.removal: Removal | None = None  # the last command that should have served
        self.serves: Names | None = None  # kept by the least changed command that is settled to serve
        self.substitutes: tuple[tuple[str, Tokens], ...] = ()
        self.value_note = ""
        self.note = ""

    def run(self) -> Ended:
        try:
            return self._run()
        except BudgetSpent as spent:
            if self.failing is None:
                raise
            self.note = spent.message
            return Ended.BUDGET
        except Inconclusive as nothing:
            last = nothing.outcome
            self.note = f"trial {last.trial_id} twice showed nothing: {shown(last.judgement)}"
            self.failing = self.failing or last.judgement
            return Ended.UNDECIDED

    def _run(self) -> Ended:
        everything: Names = frozenset(self.factors)
        guesses = self._begin(everything) if self.limits.workers > 1 else []
        first = reproduce(everything, self.book, self.limits, self.clues)
        self.failing = first.failing
        if first.ended:
            self.note = first.note
            return first.ended
        if self.factors:
            self.weights = weigh(list(self.factors.values()), first.failing, self.clues)
            self.book.rank(self.weights)
        self.arena = Arena(
            universe=everything, floor=frozenset(), target=first.failing.signature, needs=self.needs
        )
        null = find_floor(self.arena, list(self.factors.values()), self._look_alone)
        for guess in guesses:
            self.inquiry.look(null.arena, *guess)
        self.arena = null.arena
        return self._go_down() if null.base_fails else self._search(null.arena)

    def _begin(self, everything: Names) -> list[tuple[Names, Purpose, str]]:
        """Starts the launch as given and safe mode at once, and beside them the guesses handed back."""
        factors = list(self.factors.values())
        looks, guesses = opening(everything, factors, self.needs), []
        if self.limits.workers > len(looks) > 1:
            from shakedown.isolate.batch import first_guesses  # numpy: not before it is needed

            floor = looks[1][0]
            arena = Arena(universe=everything, floor=floor, target=UNSEEN.signature, needs=self.needs)
            weights = weigh(factors, UNSEEN, self.clues)
            chosen = first_guesses(arena, weights, self.limits.workers - len(looks), self.seed)
            guesses = [(kept, Purpose.SPLIT, reason) for kept, reason in chosen]
        self.book.begin([*looks, *guesses])
        return guesses

    def _look_alone(self, arena: Arena, kept: Names, purpose: Purpose, reason: str) -> Showing:
        """A look; one that failed with others beside it is taken again by itself, for they may be why."""
        showing = self.inquiry.look(arena, kept, purpose, reason)
        if showing is Showing.SERVES or self.book.steps[-1].outcome.alone:
            return showing
        return self.inquiry.look(arena, kept, purpose, "the same with nothing beside it", again=True)

    def _go_down(self) -> Ended:
        """The flags are innocent: a run with debug logging where it may tell more, then the rungs."""
        self.base = NO_LADDER
        descent = Descent(self.book, self.factors, self.ladder)
        assert self.failing is not None, "a descent before the first launch"
        if len(self.book.steps) < 2 or not says_itself(self.failing):
            descent.take_evidence()
        self.base = descent.climb(self.failing.signature)
        return Ended.PROVEN if self.base.proven else Ended.NOT_PROVEN

    def _search(self, arena: Arena) -> Ended:
        """Find a cause, remove its cheapest member, and go on with what still fails without it."""
        first = arena
        while len(self.findings) < self.limits.max_causes:
            self.arena = arena
            answer = self._pursue(arena)
            if answer is None:
                return Ended.NOT_PROVEN
            if not answer.sets and (arena.floor or (self.findings and arena.target != first.target)):
                self.note = "it fails with what had to stay, whatever the other factors are"
                return Ended.NOT_PROVEN
            if not answer.sets:
                self.findings = []  # what fails in safe mode, too, was no factor's fault
                return self._go_down()
            arena, answer = self._with_fits(arena, answer)
            self._found(arena, answer)
            self.removal = remove(arena, answer.sets, self.factors, self.inquiry)
            if self.removal.serves:
                self.serves = self.removal.kept
                self._refine(arena, self.removal.removed)
                return Ended.PROVEN
            if self.removal.left is None:
                self.note = self.removal.note
                return Ended.NOT_PROVEN
            arena = replace(arena, universe=self.removal.kept, target=self.removal.left)
        self.note = f"{len(self.findings)} causes found, and without them it still does not serve"
        return Ended.NOT_PROVEN

    def _pursue(self, arena: Arena) -> Answer | None:
        from shakedown.isolate.pursuit import Pursuit  # numpy: not before it is needed

        pursuit = Pursuit(
            arena,
            self.inquiry,
            self.factors,
            self.weights,
            seed=self.seed,
            purpose=Purpose.PEEL if self.findings else Purpose.SPLIT,
            limits=self.limits,
            intermittent=self.clues.intermittent,
        )
        self.belief = pursuit.belief
        answer = pursuit.run()
        self.note = pursuit.note or self.note
        return answer

    def _with_fits(self, arena: Arena, answer: Answer) -> tuple[Arena, Answer]:
        """A mark is searched for with all that makes the model fit, as without it nothing is as fast. Some
        of that may be part of the cause: then the cause alone meets the mark without it."""
        members = answer.sets[0]
        fits = fits_in(arena, members, self.factors)
        if len(answer.sets) > 1 or not missed_marks(arena.target.fingerprint) or not fits:
            return arena, answer
        believed, self.inquiry.belief = self.inquiry.belief, None  # it knows nothing below the floor
        open_floor = freed(arena, frozenset(fits))

        def shows(kept: Names) -> Showing:
            reason = f"{spoken(members)} without {spoken(frozenset(fits) - kept)}, which stayed so far"
            return self.inquiry.settle(open_floor, kept, Purpose.ONE_LESS, reason)

        parts = parts_of(arena, members, fits, shows)
        if not parts:
            self.inquiry.belief = believed
            return arena, answer
        arena = freed(arena, parts)
        whole = self.needs.core(members | parts)
        for demand in demands_of(arena, whole, self.inquiry.evidence(arena)):
            self.inquiry.settle(arena, demand.kept, demand.purpose, demand.reason)
        return arena, replace(answer, sets=(whole,))

    def _found(self, arena: Arena, answer: Answer) -> None:
        """Takes the causes down; an earlier one that holds one of them was not minimal, and goes."""
        evidence = self.inquiry.evidence(arena)
        self.findings = [
            known for known in self.findings if not any(members < known.members for members in answer.sets)
        ]
        self.findings += [
            Finding(members=members, arena=arena, evidence=evidence, probability=answer.probability)
            for members in answer.sets
        ]

    def _refine(self, arena: Arena, removed: Names) -> None:
        """A value that serves is dearer to the user than a removal: try those offered."""
        offered = self.clues.values.get(min(removed), ()) if len(removed) == 1 else ()
        if not offered:
            return
        name, kept = min(removed), arena.universe

        def settle(tokens: Tokens) -> Showing:
            reason = f"{name} as {' '.join(tokens)}"
            return self.inquiry.settle(arena, kept, Purpose.VALUE, reason, ((name, tokens),))

        try:
            serves, fails = mildest_value(offered, self.limits.max_values, settle)
        except (BudgetSpent, Inconclusive):  # the cause is proven and the removal serves: that stands
            return
        self.value_note = value_note(serves, fails, self.factors[name].was)
        if serves is not None:
            self.serves, self.substitutes = kept, ((name, serves),)
