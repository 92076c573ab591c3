"""Answers a search's questions by launches, or from the ledger where one was answered before.

It never chooses an experiment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from shakedown.core import (
    Experiment,
    Factor,
    Host,
    Launch,
    Outcome,
    Phase,
    Purpose,
    Signature,
    TrialRecord,
    Verdict,
    missed_marks,
)
from shakedown.engines import passing_on
from shakedown.errors import BudgetSpent
from shakedown.isolate.factors import apply, with_debug_logging
from shakedown.isolate.judge import safely_past
from shakedown.isolate.outside import config_changes
from shakedown.jobs.outside import override_config
from shakedown.jobs.reading import Reading
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import Talk
from shakedown.jobs.rungs import base_of
from shakedown.jobs.trials import looking_on, noted_variables, occasion_of, standing_of, subject_of
from shakedown.ledger import Ledger
from shakedown.ledger.events import experiment_key
from shakedown.trial import Occasion, Stated, Subject, run_recorded

BETWEEN = frozenset({Purpose.SPLIT, Purpose.ALONE, Purpose.ONE_LESS, Purpose.PEEL})
ENDS = frozenset({Purpose.REPRODUCE, Purpose.WORKAROUND, Purpose.VALUE})
SPREAD = 0.1  # equal launches differ by as much in pace and in time to ready: no cause is told from it
CUT = "cut"  # the fingerprint of a launch that ran out of time


class TrialOracle:
    """One search's oracle. `deadline_s` bounds this sitting, `max_launches` the whole search."""

    def __init__(
        self,
        ledger: Ledger,
        host: Host,
        reading: Reading,
        request: LaunchRequest,
        factors: tuple[Factor, ...],
        search_id: str,
        talk: Talk,
        *,
        max_launches: int,
    ) -> None:
        self._ledger, self._host, self._talk = ledger, host, talk
        self._reading, self._request, self._factors = reading, request, factors
        self._search_id = search_id
        self._max_launches = max_launches
        self._standing = standing_of(reading)
        self._began_s = time.monotonic()
        self._expected: Signature | None = None
        self._failures: set[Signature] = set()
        self._asked = 0
        self._ahead: dict[str, Outcome] = {}
        self.recalled_s = 0.0
        self._work = reading.machine.place(ledger.run_folder(search_id))
        self.base = base_of(reading, self._work / "rungs")
        self.noted_env = noted_variables(reading) | {name for f in factors for name, _ in f.add_env}

    def look_ahead(self, experiment: Experiment) -> Outcome:
        """Asks what the search will ask first; it is answered from here then, as one launch."""
        outcome = self(experiment)
        self._ahead[experiment_key(experiment)] = outcome
        return outcome

    def start(self, experiments: Sequence[Experiment]) -> None:
        """Launches here run one after the other: each begins when it is asked for."""

    def close(self) -> None:
        """Nothing is under way here once an answer was given."""

    def __call__(self, experiment: Experiment) -> Outcome:
        if (known := self._ahead.pop(experiment_key(experiment), None)) is not None:
            return known
        self._asked += 1
        outcome = self._recall(experiment)
        if outcome is None:
            outcome = self._launch(experiment)
        else:
            self.recalled_s += outcome.seconds
            self._talk.say(f"launch {self._asked}: known from {outcome.trial_id}")
        return self._learn(outcome)

    def _recall(self, experiment: Experiment) -> Outcome | None:
        """What the ledger knows; not what was cut short in an earlier sitting, or seen before a change."""
        known = self._ledger.recall(self._search_id, experiment, facts=self._standing)
        return known if known is not None and known.judgement.fingerprint != CUT else None

    def _learn(self, outcome: Outcome) -> Outcome:
        self._expected = self._expected or outcome.judgement.signature
        if outcome.judgement.verdict not in {Verdict.SERVES, Verdict.UNDECIDED}:
            self._failures.add(outcome.judgement.signature)
        return outcome

    @property
    def seconds(self) -> float:
        """Of all sittings."""
        return time.monotonic() - self._began_s + self.recalled_s

    def _launch_of(self, experiment: Experiment) -> Launch:
        """As the user gave it where nothing is changed: a config file's flags are written out for changes."""
        everything = {factor.name for factor in self._factors}
        changed = experiment.substitutes or experiment.rung or experiment.stand_in
        if experiment.kept >= everything and not changed:
            return self._request.launch
        command = self._reading.command

        def others(launch: Launch) -> Launch:
            return apply(launch, self._factors, experiment)

        if changes := config_changes(self._factors, experiment):
            launch = override_config(command, changes, self._work, others, self._reading.machine)
        else:
            launch = others(command.launch)
        if experiment.stand_in:
            return self.base.stand_in(launch)
        return self.base.launch(experiment.rung, launch) if experiment.rung else launch

    def _stated(self, purpose: Purpose) -> Stated:
        if not marks_count(purpose, self._expected):
            return Stated()
        return Stated(expectations=self._request.expect, spread=SPREAD, cut=True)

    def _past(self, purpose: Purpose) -> Phase | None:
        """Where a launch between the ends of the search can be ended: past all failures seen so far."""
        if purpose not in BETWEEN or not self._token_decides(purpose):
            return None
        phases = [phase for it in self._failures if (phase := safely_past(it)) is not None]
        return max(phases, key=lambda phase: phase.order) if len(phases) == len(self._failures) else None

    def _token_decides(self, purpose: Purpose) -> bool:
        """For every failure seen: without the first cause, another may show that is told by its answers."""
        return all(token_decides(purpose, failing) for failing in self._failures or (None,))

    def _left_s(self) -> float | None:
        if self._request.deadline_s is None:
            return None
        return self._request.deadline_s - (time.monotonic() - self._began_s)

    def _record(
        self, experiment: Experiment, subject: Subject, occasion: Occasion, title: str
    ) -> TrialRecord:
        return run_recorded(self._ledger, self._host, subject, occasion, looking_on(self._talk, title))

    def _launch(self, experiment: Experiment) -> Outcome:
        title = self._title(experiment, self._asked)
        self._talk.say(f"{title}: {experiment.reason}")
        subject, occasion = self._prepare(experiment, title, self._left_s())
        return self._outcome(self._record(experiment, subject, occasion, title), title)

    def _title(self, experiment: Experiment, number: int) -> str:
        left_s = self._left_s()
        if number > self._max_launches or (left_s is not None and left_s <= 0):
            raise BudgetSpent(f"{number - 1} launches and {self.seconds:.0f} s are spent")
        purpose = experiment.purpose.value.replace("_", " ")
        return f"launch {number}: {purpose}{', on a stand-in' if experiment.stand_in else ''}"

    def _prepare(self, experiment: Experiment, title: str, left_s: float | None) -> tuple[Subject, Occasion]:
        launch = self._launch_of(experiment)
        if experiment.debug:
            launch = with_debug_logging(launch, self._reading.command.engine)
        launch = passing_on(launch, self._reading.command.launch)
        subject = subject_of(
            self._reading,
            self._request,
            self._ledger,
            title=title,
            deadline_s=left_s,
            launch=launch,
            expected=self._expected,
            token_only=experiment.stand_in or self._token_decides(experiment.purpose),
            stated=Stated() if experiment.stand_in else self._stated(experiment.purpose),
            past=self._past(experiment.purpose),
        )
        if self.base.write_script(experiment.rung):
            subject = self.base.watched(subject)
        request = replace(self._request, deadline_s=None)  # that of all launches together
        occasion = occasion_of(self._reading, request, self.noted_env)
        occasion = replace(occasion, search_id=self._search_id, experiment=experiment)
        return subject, occasion

    def _outcome(self, record: TrialRecord, title: str) -> Outcome:
        assert record.judgement is not None
        if record.judgement.fingerprint == CUT:
            raise BudgetSpent(f"{title} was cut by the deadline")
        return Outcome(trial_id=record.id, judgement=record.judgement, seconds=record.seconds or 0.0)


def marks_count(purpose: Purpose, failing: Signature | None) -> bool:
    """In a search for a missed mark always; for any other failure only where the user's own command is tried,
    for safe mode has no pace to speak of."""
    return failing is None or bool(missed_marks(failing.fingerprint)) or purpose in ENDS


def token_decides(purpose: Purpose, failing: Signature | None) -> bool:
    """Between the ends of a search for a failure before ready, one token shows that a launch passes.

    The ends themselves (the launch as given, safe mode, what is handed back) must also be right. A rung's
    weights are made up: a token is all that can be asked of it.
    """
    if purpose is Purpose.RUNG:
        return True
    if purpose not in BETWEEN or failing is None:
        return False
    return failing.verdict in {Verdict.CRASHED, Verdict.HUNG} and failing.phase.order < Phase.READY.order
