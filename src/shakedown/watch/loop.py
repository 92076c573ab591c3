"""Takes the due readings of a launch, about once a second, and keeps the current assessment.

It never signals a process, never sends a request, and never judges on its own: `decide` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from shakedown.core import (
    Engine,
    Evidence,
    Exit,
    Host,
    Judgement,
    Loading,
    Missing,
    Phase,
    Run,
)
from shakedown.watch.assessment import Assessment
from shakedown.watch.causes import ErrorFinder, says_held_port
from shakedown.watch.decide import cut_short, decide, foresee
from shakedown.watch.evidence import first_evidence, spoken
from shakedown.watch.loading import LoadMeter
from shakedown.watch.log import LogReader, WatchedLine
from shakedown.watch.phases import Timeline
from shakedown.watch.proc import Progress
from shakedown.watch.quiet import Quiet
from shakedown.watch.readings import Readings
from shakedown.watch.situation import Decision, Limits, Situation, State
from shakedown.watch.stacks import phase_of
from shakedown.watch.survived import Movements, Told, told

KEPT_LINES = 5000
FEEDS_PER_STEP = 4
ECHO_S = 5.0  # in which a server takes notice of a request that we have cut
LAST_FEEDS = 500  # once the leader has exited, its last words are wanted at once


class Watcher:
    """Watches one run. `step` about once a second; the rest tells it what only the caller knows."""

    def __init__(
        self, host: Host, run: Run, engine: Engine, limits: Limits | None = None, port: int | None = None
    ) -> None:
        self._host, self._run, self._engine = host, run, engine
        self._limits = limits or Limits()
        self._reader = LogReader(engine)
        self._errors = ErrorFinder(engine)
        self._timeline = Timeline(engine)
        self._load = LoadMeter()
        self._movements = Movements()
        self._told = Told(error=None)
        self._readings = Readings(host, run, engine, port, self._limits)
        self._offset = 0
        self._lines: deque[WatchedLine] = deque(maxlen=KEPT_LINES)
        self._quiet = Quiet(self._limits)
        self._exit_since_s: float | None = None
        self._blind_since_s: float | None = None
        self._echo_until_s = 0.0
        self._expected_since_s: float | None = None
        self._signalled = False
        self._now_s = 0.0
        self._phase = Phase.IMPORT
        self._last: Assessment | None = None

    # --- what only the caller knows ----------------------------------------------------------------------

    def mark_signal(self) -> None:
        """We are about to signal the run: nothing after this counts, and the assessment stays as it is."""
        self._signalled = True

    def enter(self, phase: Phase) -> None:
        """The caller saw the launch reach a phase (an answered health check: READY, a token: SERVING)."""
        self._timeline.enter("", phase, self._clock_s())

    def probe_pending(self, pending: bool) -> None:
        """A request is in flight, or no longer. After READY only such a request makes silence suspect.

        The first request puts the launch into SERVING: what goes wrong from here goes wrong serving.
        """
        if not pending:
            self._quiet.pending_since_s = None
        elif self._quiet.pending_since_s is None:
            self._quiet.pending_since_s = self._clock_s()
            self.enter(Phase.SERVING)

    def request_cut(self) -> None:
        """We have given up a request. What the server says of that, and where its threads go then, is no
        progress: a hung one logs "Aborted request" too."""
        self._echo_until_s = self._clock_s() + ECHO_S
        self._readings.expect_echo(self._echo_until_s)

    def take_back(self) -> None:
        """Another part of the launch still moves, and this one may wait for it: its verdict was early."""
        if self._last is not None and self._last.judgement is not None:
            self._last = replace(self._last, judgement=None, state=State.SUSPECT)

    # --- what it gives ----------------------------------------------------------------------------------

    @property
    def silences(self) -> Mapping[Phase, float]:
        """The longest silence of hard progress in each phase, for `learn`."""
        return dict(self._quiet.longest)

    @property
    def loading(self) -> Loading | None:
        return self._load.loading

    @property
    def pids(self) -> tuple[int, ...]:
        """Every process of the launch that was seen, the living first."""
        return self._readings.pids

    def log_lines(self, since: int = 0) -> tuple[WatchedLine, ...]:
        """Lines with a number above `since`, as far as they are still kept."""
        return tuple(line for line in self._lines if line.number > since)

    def step(self) -> Assessment:
        """Takes every reading that is due and returns what is known now."""
        self._now_s = self._clock_s()
        self._phase = self._timeline.common  # the line that ends a silence often begins the next phase
        new_lines = self._read_log()
        if self._signalled or (self._last is not None and self._last.judgement is not None):
            return self._freeze(new_lines)
        moved = [*self._readings.cheap(self._now_s)]
        self._load.feed(self._timeline.common, self._readings.samples, self._now_s)
        if self._now_s >= self._echo_until_s:
            moved += [self._line_progress(line) for line in new_lines if line.moved]
        self._advance(moved)
        moved = [*self._readings.sparse(self._now_s, self._quiet_s, self._budget_s)]
        for rank, phase in self._readings.stack_phases():
            self._timeline.enter(rank, phase, self._now_s)
        self._advance(moved)
        self._last = self._assess(new_lines)
        return self._last

    def cut(self, why: str, now_s: float | None = None) -> Judgement:
        """The judgement of a launch that is cut short: slow if it was moving, else undecided."""
        unmoved_s = self._quiet.unmoved_s(self._now_s if now_s is None else now_s)
        waiting = self._last.note if self._last is not None and self._last.state is State.QUIET else ""
        moving = unmoved_s <= self._budget_s or bool(waiting)  # the one it waits for moves
        seen = f"last hard progress {unmoved_s:.0f} s before the end"
        if self._quiet.progress is not None:
            seen += f": {spoken(self._quiet.progress)}"
        if waiting:
            seen += f"; {waiting}"
        return self._judgement(cut_short(f"{why}; {seen}", moving=moving))

    # --- inside -----------------------------------------------------------------------------------------

    def _clock_s(self) -> float:
        return self._host.clock_s() - self._run.started_s

    @property
    def _budget_s(self) -> float:
        return self._quiet.budget_s(self._timeline.common)

    @property
    def _quiet_s(self) -> float:
        return self._quiet.silence_s(self._timeline.common, self._now_s)

    def _read_log(self) -> tuple[WatchedLine, ...]:
        lines: list[WatchedLine] = []
        for _ in range(FEEDS_PER_STEP if self._exit_since_s is None else LAST_FEEDS):
            data = b""
            if self._reader.hungry:
                data, self._offset = self._host.read_log(self._run, self._offset)
            lines += self._reader.feed(data, self._now_s, last=not data and self._exit_since_s is not None)
            if not data and not self._reader.behind:
                break
        self._lines.extend(lines)
        if not self._signalled:
            for line in lines:
                self._errors.read(line)
                self._timeline.read(line.rank, line.text, self._now_s)
                self._readings.note_rank(line.pid, line.rank)
        return tuple(lines)

    def _line_progress(self, line: WatchedLine) -> Progress:
        return Progress(signal="log", pid=line.pid, name=line.rank, at_s=line.line.at_s)

    def _advance(self, moved: list[Progress]) -> None:
        if not moved:
            return
        self._quiet.end(moved[-1], self._phase, self._now_s)
        self._movements.add(moved, self._now_s)
        self._expected_since_s = None
        self._readings.forget_rounds(self._now_s, keep=moved[-1].signal == "stack")

    def _read_exit(self) -> tuple[Exit | None, str]:
        """How the leader ended, or why nobody would see that; both are dated."""
        found = self._host.exit_of(self._run)
        if isinstance(found, Missing):
            self._blind_since_s = self._now_s if self._blind_since_s is None else self._blind_since_s
            return None, found.why
        if found is not None and self._exit_since_s is None:
            self._exit_since_s = self._now_s
        return found, ""

    def _tell(self, exit_: Exit | None) -> Told:
        """What the log says of an end that is now, or was when the leader exited."""
        end_s = self._now_s if self._exit_since_s is None else self._exit_since_s
        return told(self._errors, self._movements, self._readings.vanished, exit_, end_s)

    def _situation(self) -> Situation:
        now_s, readings = self._now_s, self._readings
        exit_, blind = self._read_exit()
        found = self._told = self._tell(exit_)
        error = found.error
        dying = exit_ is not None or self._errors.fatal is not None
        if error is not None and dying and (phase := phase_of(error.places, self._engine)) is not None:
            self._timeline.enter(error.rank, phase, error.at_s)
        foreign = exit_ is not None and error is not None and says_held_port(error.text)
        return Situation(
            now_s=now_s,
            phase=self._timeline.common,
            quiet_s=self._quiet_s,
            budget_s=self._budget_s,
            processes=readings.views(now_s),
            rounds=readings.rounds.count,
            rounds_over=readings.rounds.over,
            rounds_span_s=readings.rounds.span_s,
            met_expected_s=0.0 if self._expected_since_s is None else now_s - self._expected_since_s,
            error=error,
            earlier=found.earlier,
            last_error_s=self._errors.last_s,
            fatal=self._errors.fatal,
            last_words=self._errors.last_words,
            exit=exit_,
            exit_age_s=0.0 if self._exit_since_s is None else now_s - self._exit_since_s,
            blind=blind,
            blind_s=0.0 if self._blind_since_s is None else now_s - self._blind_since_s,
            vanished=readings.vanished,
            port_is_foreign=foreign and readings.port_is_foreign(),
        )

    def _assess(self, new_lines: tuple[WatchedLine, ...]) -> Assessment:
        situation = self._situation()
        self._look_for_expected(situation)
        decision = decide(situation, self._limits)
        judgement = self._judgement(decision) if decision.verdict is not None else None
        return Assessment(
            now_s=self._now_s,
            state=decision.state,
            judgement=judgement,
            phase=situation.phase,
            phases=self._timeline.all_spans(),
            listening=self._readings.listening,
            quiet_s=situation.quiet_s,
            last_progress=self._quiet.progress,
            suspect=decision.suspect,
            evidence=self._evidence(),
            first_error=situation.error.text if situation.error else None,
            exit=situation.exit,
            new_lines=new_lines,
            note=decision.note,
        )

    def _look_for_expected(self, situation: Situation) -> None:
        """Dates since when the failure that this search already knows has been in sight."""
        expected = self._limits.expected
        if expected is None or not situation.rounds:
            return
        in_sight = foresee(situation, self._limits).matches(expected, situation.phase)
        if not in_sight:
            self._expected_since_s = None
        elif self._expected_since_s is None:
            self._expected_since_s = self._now_s

    def _judgement(self, decision: Decision) -> Judgement:
        assert decision.verdict is not None
        return Judgement(
            verdict=decision.verdict,
            phase=self._timeline.common,
            cause=decision.cause,
            fingerprint=decision.fingerprint,
            wait=decision.wait,
            suspect=decision.suspect,
            phases=self._timeline.all_spans(),
            evidence=self._evidence(),
            would_change=decision.would_change,
            exited=decision.exited,
            environment=decision.environment,
        )

    def _evidence(self) -> tuple[Evidence, ...]:
        """The most telling first: the first error, the last movement, every process, what was not read."""
        found = first_evidence(self._told, self._quiet.progress, self._quiet.progress_s)
        return (*found, *self._readings.evidence(self._now_s))

    def _freeze(self, new_lines: tuple[WatchedLine, ...]) -> Assessment:
        if self._last is None:
            self._last = self._assess(())
        return replace(self._last, now_s=self._now_s, new_lines=new_lines)
