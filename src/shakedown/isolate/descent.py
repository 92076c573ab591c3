"""Below the flags: evidence, the base ladder, and another choice of what the engine offers.

It judges no rung itself: `base` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shakedown.core import Check, Factor, Judgement, Outcome, Purpose, Rung, Signature, Verdict, Workaround
from shakedown.isolate.base import Ladder, RungFinding, climb
from shakedown.isolate.factors import describe_changes
from shakedown.isolate.judge import Showing, classify
from shakedown.isolate.notebook import Notebook
from shakedown.isolate.tell import shown


def says_itself(failing: Judgement) -> bool:
    """Whether a failure tells what a debug log would: an exception does, unless its own words ask for one
    ("run with NCCL_DEBUG=INFO for details")."""
    crashed = failing.verdict is Verdict.CRASHED and bool(failing.fingerprint)
    return crashed and "debug" not in failing.cause.lower()


class Descent:
    """What is asked once the flags are innocent."""

    def __init__(self, book: Notebook, factors: Mapping[str, Factor], ladder: Ladder) -> None:
        self.book, self.factors, self.ladder = book, factors, ladder

    def take_evidence(self) -> None:
        """One run of safe mode with debug logging: it may change timing, so it proves nothing."""
        self.book.look(
            frozenset(),
            Purpose.EVIDENCE,
            "safe mode once more with debug logging, for evidence",
            lambda outcome: f"with debug logging: {shown(outcome.judgement)}",
            debug=True,
        )

    def climb(self, target: Signature) -> RungFinding:
        """The lowest rung that fails and, where one is proven, a command that may not need it.

        Safe mode is taken as it last showed `target`: an earlier look at it may have shown nothing."""
        safe_mode = [
            step.outcome
            for step in self.book.steps
            if step.experiment.of_the_launch
            and not step.experiment.kept
            and classify(step.outcome.judgement, target) is Showing.FAILS
        ]
        found = climb(self.ladder, self._stand_on, safe_mode[-1])
        return self._cure(found) if found.proven else found

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
        everything = frozenset(self.factors)
        tried = []
        for name, tokens in self.ladder.cures:
            change = ((name, tokens),)
            outcome = self.book.look(
                everything,
                Purpose.WORKAROUND,
                f"your own command with {' '.join(tokens)}",
                lambda outcome: f"your own command then: {shown(outcome.judgement)}",
                substitutes=change,
            )
            tried.append(outcome.trial_id)
            if outcome.judgement.serves:
                changes = describe_changes(self.factors.values(), everything, change)
                return replace(
                    base,
                    workaround_serves=Check(value=True, trial_ids=(outcome.trial_id,)),
                    workaround=Workaround(kept=everything, changes=changes, substitutes=change),
                )
        return replace(base, workaround_serves=Check(value=False, trial_ids=tuple(tried))) if tried else base
