"""One configuration put to the oracle: once, or as often as it takes to be sure what it shows.

It never chooses the configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shakedown.core import Outcome, Purpose
from shakedown.isolate.arena import Arena, Rates, read
from shakedown.isolate.certify import Evidence, by_wald
from shakedown.isolate.closure import Names
from shakedown.isolate.judge import SURE, Showing, classify, decide
from shakedown.isolate.notebook import Notebook, Substitutes, shows_nothing
from shakedown.isolate.tell import conclude

if TYPE_CHECKING:
    from shakedown.isolate.beliefs import Belief

MOST_LOOKS = (
    12  # at one configuration; at the lowest rate that is searched, 0.2, fourteen bound a miss at 5 %
)


class Inquiry:
    """Looks and settled answers. `rates` are what is believed of how often the failure shows."""

    def __init__(self, book: Notebook) -> None:
        self.book = book
        self.belief: Belief | None = None  # None: each configuration is judged by itself
        self.rates: Rates = ((1.0, 1.0),)

    @property
    def rate(self) -> float:
        return sum(rate * share for rate, share in self.rates)

    def evidence(self, arena: Arena) -> Evidence:
        """All looks so far as they bear on an arena, and what they settle."""
        readings = read(self.book.steps, arena)
        if self.belief is None:
            return Evidence(readings, by_wald(self.rates))
        self.belief.update(readings)
        self.rates = self.belief.rates
        return Evidence(readings, self.belief.decide)

    def look(
        self,
        arena: Arena,
        kept: Names,
        purpose: Purpose,
        reason: str,
        *,
        again: bool = False,
        substitutes: Substitutes = (),
    ) -> Showing:
        def tell(outcome: Outcome) -> str:
            return conclude(purpose, kept, outcome.judgement, arena, reason, sure=self.rate > SURE)

        outcome = self.book.look(kept, purpose, reason, tell, again=again, substitutes=substitutes)
        return classify(outcome.judgement, arena.target)

    def settle(
        self, arena: Arena, kept: Names, purpose: Purpose, reason: str, substitutes: Substitutes = ()
    ) -> Showing:
        """What a configuration shows, by Wald's test: as many looks as the flake rate asks for; `UNKNOWN`
        where a look, repeated, shows nothing."""
        for _ in range(MOST_LOOKS):
            showing = self._settled(arena, kept, substitutes, whole=purpose is Purpose.WORKAROUND)
            own = self.book.looks(kept, substitutes)
            if showing is not Showing.UNKNOWN or (own and shows_nothing(own[-1])):
                return showing
            self.look(arena, kept, purpose, reason, again=True, substitutes=substitutes)
        failed = Showing.FAILS in self._showings(arena, kept, substitutes)
        return Showing.FAILS if failed else Showing.SERVES

    def _settled(self, arena: Arena, kept: Names, substitutes: Substitutes, *, whole: bool) -> Showing:
        if not substitutes:
            return self.evidence(arena).shows(kept, whole=whole)
        own = self._showings(arena, kept, substitutes)
        fails, serves = own.count(Showing.FAILS), own.count(Showing.SERVES)
        if not fails and not serves:
            return Showing.OTHER if Showing.OTHER in own else Showing.UNKNOWN
        return decide(fails, serves, self.rates)

    def _showings(self, arena: Arena, kept: Names, substitutes: Substitutes) -> list[Showing]:
        return [classify(it.judgement, arena.target) for it in self.book.looks(kept, substitutes)]
