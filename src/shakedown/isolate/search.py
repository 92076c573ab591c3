"""The search itself: reproduce, safe mode, split, prove, refine, peel.

It never starts anything: every experiment goes through the oracle it is handed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shakedown.core import (
    Check,
    Ended,
    Factor,
    Judgement,
    Oracle,
    Outcome,
    Purpose,
    Rung,
    Step,
    Verdict,
    Workaround,
)
from shakedown.errors import BudgetSpent
from shakedown.isolate.arena import Arena, Rates, Reading, read
from shakedown.isolate.base import NO_LADDER, Ladder, RungFinding, climb
from shakedown.isolate.certify import Evidence, remedies, spoken
from shakedown.isolate.closure import Dependencies, Names
from shakedown.isolate.factors import describe_changes
from shakedown.isolate.inquiry import SURE, Inquiry
from shakedown.isolate.judge import Showing
from shakedown.isolate.leads import control, find_leads, least_failing, wanted
from shakedown.isolate.notebook import Inconclusive, Notebook, SearchLimits
from shakedown.isolate.nulls import find_floor, reproduce
from shakedown.isolate.prior import Clues, weigh
from shakedown.isolate.remedy import Tokens, mildest_value, value_note
from shakedown.isolate.split import split
from shakedown.isolate.tell import shown

if TYPE_CHECKING:
    from shakedown.isolate.beliefs import Belief

SURE_CRASH, SURE_OTHER = 0.95, 0.5  # prior that a failure shows every time: a fingerprinted crash, any other
ENOUGH, ENOUGH_FLAKY = 0.95, 0.97  # posterior at which a cause with a full certificate is claimed
LEAST_CLAIMED = 0.8  # where nothing more can be learnt
LITTLE = 0.001  # bits: with a full certificate, an experiment that tells less is not worth a launch
MISFIT = 0.8  # probability that no hypothesis explains what was seen: then plain splitting takes over
STEADY = ((0.99, 0.9), (0.7, 0.1))  # rates that let one look decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause, the arena it was found in, and how sure of it the hypotheses are (None: by splitting)."""

    members: Names
    arena: Arena
    rates: Rates
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
    ) -> None:
        self.factors = {factor.name: factor for factor in sorted(factors, key=lambda factor: factor.name)}
        assert len(self.factors) == len(factors), "two factors have one name"
        self.needs = Dependencies(list(self.factors.values()))
        self.book = Notebook(oracle, report, limits)
        self.inquiry = Inquiry(self.book)
        self.seed, self.clues, self.limits, self.ladder = seed, clues, limits, ladder
        self.weights: dict[str, float] = {}
        self.failing: Judgement | None = None
        self.arena: Arena | None = None
        self.belief: Belief | None = None
        self.findings: list[Finding] = []
        self.base: RungFinding | None = None
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
        null = find_floor(self.arena, list(self.factors.values()), self.inquiry.look)
        self.arena = null.arena
        return self._go_down() if null.base_fails else self._search(null.arena)

    def _go_down(self) -> Ended:
        """The flags are innocent: one evidence run with debug logging, then the rungs."""
        assert self.failing is not None
        self.base = NO_LADDER
        self.book.look(
            frozenset(),
            Purpose.EVIDENCE,
            "safe mode once more with debug logging, for evidence",
            lambda outcome: f"with debug logging: {shown(outcome.judgement)}",
            debug=True,
        )
        top = next(
            it.outcome for it in self.book.steps if not it.experiment.kept and it.experiment.of_the_launch
        )
        self.base = climb(self.ladder, self._stand_on, top)
        if not self.base.proven:
            return Ended.NOT_PROVEN
        self.base = self._cure(self.base)
        return Ended.PROVEN

    def _stand_on(self, rung: Rung, again: bool) -> Outcome:
        return self.book.look(
            frozenset(),
            Purpose.RUNG,
            f"{'once more' if again else 'does this hold'}: {rung.title}",
            lambda outcome: (
                f"{rung.name}: {'passes' if outcome.judgement.serves else shown(outcome.judgement)}"
            ),
            again=again,
            rung=rung.name,
        )

    def _cure(self, base: RungFinding) -> RungFinding:
        """The user's own command with another choice of what its engine offers: it may not need the rung."""
        for name, tokens in self.ladder.cures:
            change = ((name, tokens),)
            outcome = self.book.look(
                frozenset(self.factors),
                Purpose.WORKAROUND,
                f"your own command with {' '.join(tokens)}",
                lambda outcome: f"your own command then: {shown(outcome.judgement)}",
                substitutes=change,
            )
            if outcome.judgement.serves:
                changes = describe_changes(self.factors.values(), frozenset(self.factors), change)
                return replace(
                    base,
                    workaround_serves=Check(value=True, trial_ids=(outcome.trial_id,)),
                    workaround=Workaround(kept=frozenset(self.factors), changes=changes, substitutes=change),
                )
        tried = tuple(
            it.outcome.trial_id for it in self.book.steps if it.experiment.purpose is Purpose.WORKAROUND
        )
        return replace(base, workaround_serves=Check(value=False, trial_ids=tried)) if tried else base

    def _search(self, arena: Arena) -> Ended:
        """Find a cause, remove its cheapest member, and go on with what still fails without it."""
        while len(self.findings) < self.limits.max_causes:
            self.arena = arena
            guess = self._resolve(arena)
            if guess is None:
                return Ended.NOT_PROVEN
            sets, probability = guess
            if not sets and (arena.floor or arena.universe != frozenset(self.factors)):
                self.note = "it fails with what had to stay, whatever the other factors are"
                return Ended.NOT_PROVEN
            if not sets:
                return self._go_down()
            for members in sets:
                self.findings.append(
                    Finding(members=members, arena=arena, rates=self.inquiry.rates, probability=probability)
                )
            removed, showing = self._remove(arena, sets)
            if showing is Showing.SERVES:
                self.serves = arena.removed(removed)
                self._refine(arena, removed)
                return Ended.PROVEN
            arena = self._without(arena, removed, showing)
        self.note = f"{len(self.findings)} causes found, and without them it still does not serve"
        return Ended.NOT_PROVEN

    def _without(self, arena: Arena, removed: Names, showing: Showing) -> Arena:
        """What is left to search: the same failure, or the other one that now shows."""
        universe, target = arena.removed(removed), arena.target
        if showing is Showing.OTHER:
            last = [step for step in self.book.steps if step.experiment.kept == universe][-1]
            target = last.outcome.judgement.signature
        return replace(arena, universe=universe, target=target)

    def _resolve(self, arena: Arena) -> tuple[tuple[Names, ...], float | None] | None:
        """Experiments until a hypothesis has its certificate: its causes (none: the base) and its
        probability. None where nothing is left to learn from."""
        from shakedown.isolate.beliefs import Belief  # numpy: not before it is needed
        from shakedown.isolate.plan import propose

        belief = self.belief = Belief(arena, self.weights, self._sure(arena))
        purpose = Purpose.PEEL if self.findings else Purpose.SPLIT
        while True:
            readings = read(self.book.steps, arena)
            belief.update(readings)
            self.book.rank(dict(zip(belief.names, map(float, belief.blame()), strict=True)))
            self.inquiry.rates = belief.rates
            evidence = Evidence(readings, belief.rates)
            if max(belief.unexplained, belief.misfit) > MISFIT:
                if belief.misfit > MISFIT:  # what speaks for a misfit is that it fails every time
                    self.inquiry.rates = STEADY
                members = self._split(arena, readings)
                return ((members,), None) if members else None
            again = control(belief.rate, evidence)
            if again is not None:
                reason = "does it fail every time? the same once more"
                self.inquiry.look(arena, again, purpose, reason, again=True)
                continue
            leads = find_leads(belief, evidence, self.factors)
            if not leads or self._too_rare(belief, readings):
                return None
            top = leads[0].guess
            full = leads[0].full
            answer = (top.sets, top.probability) if full and top.probability >= LEAST_CLAIMED else None
            if full and top.probability >= (ENOUGH if belief.rate > SURE else ENOUGH_FLAKY):
                return answer
            missing = wanted(leads, evidence)
            costs = self.book.costs()
            proposal = propose(belief, readings, missing, evidence.settled, costs, self.seed, purpose)
            if proposal is None or (full and proposal.bits < LITTLE):
                return answer
            why = f"{proposal.reason}; worth {proposal.bits:.2f} bits"
            self.inquiry.look(arena, proposal.kept, proposal.purpose, why, again=True)

    def _split(self, arena: Arena, readings: Sequence[Reading]) -> Names:
        """Plain splitting from the least set known to fail."""
        purpose = Purpose.PEEL if self.findings else Purpose.SPLIT
        return split(
            arena,
            least_failing(readings),
            self.weights,
            lambda kept, reason: self.inquiry.settle(arena, kept, purpose, reason),
        )

    def _remove(self, arena: Arena, sets: Sequence[Names]) -> tuple[Names, Showing]:
        """The cheapest removal after which the command serves, or the first and what it shows instead."""
        evidence = Evidence(read(self.book.steps, arena), self.inquiry.rates)
        first: tuple[Names, Showing] | None = None
        for removed in remedies(arena, sets, self.factors, evidence):
            reason = f"your own command less {spoken(removed)} should serve"
            showing = self.inquiry.settle(arena, arena.removed(removed), Purpose.WORKAROUND, reason)
            if showing is not Showing.OTHER:
                return removed, showing
            first = first or (removed, showing)
        assert first is not None, "a cause without members"
        return first

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

    def _too_rare(self, belief: Belief, readings: Sequence[Reading]) -> bool:
        """Below a fifth, launches are the wrong means: many requests within one show it sooner."""
        if len(readings) < 10 or belief.rate >= 0.75 * self.limits.lowest_rate:
            return False
        self.note = f"it fails in about {belief.rate:.0%} of launches: amplify it within one launch first"
        return True

    def _sure(self, arena: Arena) -> float:
        crash = arena.target.verdict is Verdict.CRASHED and bool(arena.target.fingerprint)
        return SURE_CRASH if crash else SURE_OTHER
