"""The pursuit of one cause in one arena: experiments until a hypothesis has its certificate.

It neither reproduces a failure nor removes a cause. Imports numpy, so import it late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shakedown.core import Factor, Phase, Purpose, Signature, Verdict
from shakedown.isolate.arena import Arena
from shakedown.isolate.batch import plan_batch
from shakedown.isolate.beliefs import Belief, doubted, expected
from shakedown.isolate.certify import Evidence
from shakedown.isolate.closure import Names
from shakedown.isolate.inquiry import Inquiry
from shakedown.isolate.leads import Lead, Wanted, control, find_leads, flaked, least_failing, wanted
from shakedown.isolate.notebook import SearchLimits
from shakedown.isolate.plan import propose
from shakedown.isolate.split import split

# Prior that a failure shows every time. Of 53 recorded failures to start two were intermittent, so 0.95;
# a hang is the likelier race, and a running server has more of them: their stories of fixes taken back
# are of hangs that showed in one or two starts of three.
SURE_CRASH, SURE_STARTING, SURE_SERVING = 0.95, 0.8, 0.6
SURE_INTERMITTENT = 0.1  # where somebody has seen it come and go
# A cause is claimed only if one is convinced, too, who doubts that so much and finds every other rate as
# likely: what looks like an interaction of two is often one of them, which once did not fail. Of 100
# crashes that show 4 times of 10 78 are told rightly, without it 70.
DOUBTED = 0.85
ENOUGH = 0.95  # posterior at which a cause with a full certificate is claimed
LITTLE = 0.001  # bits: an experiment that tells less is not worth a launch
MISFIT = 0.8  # probability that no hypothesis explains what was seen: then plain splitting takes over
STEADY = ((0.99, 0.9), (0.7, 0.1))  # rates that let one look decide
FEW = 10  # looks before a failure can be called too rare to search


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Causes, each enough alone (none: the base), and how sure the hypotheses are (None: by splitting)."""

    sets: tuple[Names, ...]
    probability: float | None


class Pursuit:
    """`belief` and `note` are left for the conclusion to read."""

    def __init__(
        self,
        arena: Arena,
        inquiry: Inquiry,
        factors: Mapping[str, Factor],
        weights: Mapping[str, float],
        *,
        seed: int,
        purpose: Purpose,
        limits: SearchLimits,
        intermittent: bool = False,
    ) -> None:
        self.arena, self.inquiry, self.factors, self.weights = arena, inquiry, factors, weights
        self.seed, self.purpose, self.limits = seed, purpose, limits
        sure = SURE_INTERMITTENT if intermittent else _sure(arena.target)
        self.belief = inquiry.belief = Belief(arena, weights, expected(sure))
        self.sceptic = Belief(arena, weights, doubted(min(sure, DOUBTED)))
        self.note = ""

    def run(self) -> Answer | None:
        """None where nothing is left to learn from."""
        book, belief = self.inquiry.book, self.belief
        while True:
            evidence = self.inquiry.evidence(self.arena)
            book.rank(dict(zip(belief.names, map(float, belief.blame()), strict=True)))
            misfit = 0.0 if flaked(evidence) else belief.misfit  # a misfit is one that fails every time
            odd = max(belief.unexplained, misfit) > MISFIT
            again = control(belief.rate, evidence, odd=odd)
            if again is not None:
                reason = "does it fail every time? the same once more"
                self.inquiry.look(self.arena, again, self.purpose, reason, again=True)
                continue
            if odd:
                return self._split(evidence)
            leads = find_leads(belief, evidence, self.factors)
            if not leads or self._too_rare(evidence):
                return None
            first = leads[0]
            chooser, proofs = belief, wanted(leads, evidence)
            if first.full and first.guess.probability >= ENOUGH:
                probability = self._convinces(first, evidence)
                if probability >= ENOUGH:
                    return Answer(sets=first.guess.sets, probability=probability)
                chooser, proofs = self.sceptic, []
            elif self._look_at_several(evidence, proofs):
                continue
            proposal = propose(
                chooser,
                evidence.readings,
                proofs,
                evidence.hopeless,
                book.costs(),
                self.seed,
                self.purpose,
            )
            if proposal is None or (first.full and proposal.bits < LITTLE):
                return None
            why = f"{proposal.reason}; worth {proposal.bits:.2f} bits"
            self.inquiry.look(self.arena, proposal.kept, proposal.purpose, why, again=True)

    def _look_at_several(self, evidence: Evidence, lacking: Sequence[Wanted]) -> bool:
        """Whether several launches at once are worth more than the next one by itself, and were made."""
        if self.limits.workers == 1:
            return False
        batch = plan_batch(self.belief, evidence, lacking, self.limits.workers, self.seed)
        looks = [(kept, self.purpose, reason) for kept, reason in batch]
        if looks:
            self.inquiry.book.begin(looks)
        for look in looks:
            self.inquiry.look(self.arena, *look, again=True)
        return bool(looks)

    def _convinces(self, lead: Lead, evidence: Evidence) -> float:
        """The probability of a guess to the sceptic."""
        self.sceptic.update(evidence.readings)
        leads = find_leads(self.sceptic, evidence, self.factors)
        return next((found.guess.probability for found in leads if found.guess.sets == lead.guess.sets), 0.0)

    def _split(self, evidence: Evidence) -> Answer | None:
        """Plain splitting from the least set known to fail."""
        self.inquiry.belief = None
        if self.belief.misfit > MISFIT and not flaked(evidence):
            self.inquiry.rates = STEADY
        members = split(
            self.arena,
            least_failing(evidence.readings),
            self.weights,
            lambda kept, reason: self.inquiry.settle(self.arena, kept, self.purpose, reason),
        )
        return Answer(sets=(members,), probability=None) if members else None

    def _too_rare(self, evidence: Evidence) -> bool:
        """Below a fifth, launches are the wrong means: many requests within one show it sooner."""
        rate = self.belief.rate
        if len(evidence.readings) < FEW or rate >= 0.75 * self.limits.lowest_rate:
            return False
        self.note = f"it fails in about {rate:.0%} of launches: amplify it within one launch first"
        return True


def _sure(target: Signature) -> float:
    if target.phase is Phase.SERVING:
        return SURE_SERVING
    return SURE_CRASH if target.verdict is Verdict.CRASHED and target.fingerprint else SURE_STARTING
