"""The sentences that every rendering shares: verdicts, times, factors, checks, what is not known.

It never escapes: what it returns may hold untrusted text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shakedown.core import (
    Cause,
    CauseKind,
    Check,
    Ended,
    Factor,
    Judgement,
    Phase,
    PhaseSpan,
    RecordState,
    SearchRecord,
    Step,
    Suspect,
    TrialRecord,
    Verdict,
)

ENDED = {
    Ended.PROVEN: "cause proven",
    Ended.NOT_PROVEN: "cause not proven",
    Ended.SERVES: "nothing to isolate",
    Ended.NOT_REPRODUCED: "not reproduced",
    Ended.UNDECIDED: "undecided",
    Ended.BUDGET: "stopped at its limit of launches or time",
}
CHECKS = {
    "alone_fails": "the cause alone fails the same way",
    "one_less_passes": "with one part of it less it does not",
    "workaround_serves": "your command with the change serves",
    "safe_mode_fails": "it fails with everything optional stripped",
    "rung_fails": "the rung fails by itself",
    "next_simpler_passes": "the next simpler rung passes",
}
MOST_MOVED = 4  # suspects that are told after a trial
LEAST_MOVE = 0.01
ANSWERS = {True: "yes", False: "no", None: "not known"}


def seconds_words(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


NOWHERE = ("canary: no API", "unreached")  # fingerprints of servers that could not be asked where we did


def verdict_words(judgement: Judgement) -> str:
    """`hung (waiting) in dist_init`, `crashed (did not exit) in weight_load`, `serves`."""
    if judgement.serves:
        return "serves"
    if judgement.passed:
        return f"reached {judgement.passed.value}, past where the failure shows, and was ended"
    said = judgement.verdict.value
    if judgement.wait:
        said += f" ({judgement.wait.value})"
    if judgement.verdict is Verdict.CRASHED and not judgement.exited:
        said += " (did not exit)"
    if judgement.verdict is not Verdict.WRONG:
        said += f" in {judgement.phase.value}"
    return said + (", the surroundings' fault" if judgement.environment else "")


def state_words(trial: TrialRecord) -> str:
    if trial.judgement:
        return verdict_words(trial.judgement)
    return "interrupted" if trial.state is RecordState.INTERRUPTED else "running"


def mark_words(judgement: Judgement) -> tuple[str, ...]:
    """Each stated mark as it was measured: `tokens_per_s 212 (205 to 220, 4 requests): misses >= 400`."""
    said = {True: "meets", False: "misses", None: "does not decide"}
    return tuple(
        f"{it}: {said[it.met]} {str(it.expectation).partition(' ')[2]}" if it.value is not None else str(it)
        for it in judgement.measured
    )


def suspect_words(suspect: Suspect) -> str:
    waits = f", wait channel {suspect.wchan}" if suspect.wchan not in ("", "0") else ""
    return f"{suspect.name} (pid {suspect.pid}) at {suspect.frame or 'an unread stack'}{waits}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTime:
    """How long a launch as a whole was in a phase; `straggler` says which peer took clearly longer."""

    phase: Phase
    seconds: float
    unfinished: bool
    straggler: str

    @property
    def words(self) -> str:
        return seconds_words(self.seconds) + self.straggler + (", not finished" if self.unfinished else "")


def phase_times(judgement: Judgement, seconds: float | None) -> tuple[PhaseTime, ...]:
    """The launch's own phases, without serving: from the first rank that enters one to the next one's first.

    What each rank did in between is in the spans themselves.
    """
    front: list[tuple[Phase, float]] = []
    for span in sorted(judgement.phases, key=lambda span: (span.started_s, span.phase.order)):
        if not front or span.phase.order > front[-1][0].order:
            front.append((span.phase, span.started_s))
    times = []
    for at, (phase, started_s) in enumerate(front):
        if phase is Phase.SERVING:
            break
        last = at + 1 == len(front)
        ended_s = max(seconds or 0.0, started_s) if last else front[at + 1][1]
        straggler = _straggler(span for span in judgement.phases if span.phase is phase)
        times.append(
            PhaseTime(phase=phase, seconds=ended_s - started_s, unfinished=last, straggler=straggler)
        )
    return tuple(times)


def _straggler(spans: Iterable[PhaseSpan]) -> str:
    """Peers are ranks that differ only by number; they should pass a phase together."""
    peers: dict[str, list[tuple[float, str]]] = {}
    for span in spans:
        if span.ended_s is not None and any(char.isdigit() for char in span.rank):
            kind = "".join("#" if char.isdigit() else char for char in span.rank)
            peers.setdefault(kind, []).append((span.ended_s - span.started_s, span.rank))
    for times in peers.values():
        (fastest_s, _), (slowest_s, rank) = min(times), max(times)
        if slowest_s - fastest_s > max(1.0, 0.2 * slowest_s):
            return f" (rank {rank} {seconds_words(slowest_s)}, the fastest {seconds_words(fastest_s)})"
    return ""


def factor_words(name: str, factors: Iterable[Factor]) -> str:
    """What the user wrote; with the factor's name before it where that says more."""
    was = next((factor.was for factor in factors if factor.name == name), "")
    if not was or was == name:
        return name
    return was if was.startswith(name) else f"{name} ({was})"


def cause_words(cause: Cause | None, factors: Iterable[Factor]) -> str:
    if cause is None or cause.kind is CauseKind.NONE:
        return "none found"
    if cause.kind is CauseKind.BASE:
        rung = f", at the rung {cause.rung!r}" if cause.rung else ""
        return f"the base: it fails with everything optional stripped{rung}"
    factors = tuple(factors)
    return " together with ".join(factor_words(name, factors) for name in cause.factors)


def proof_words(cause: Cause) -> str:
    """`proven, 3 of 3 checks`."""
    held = sum(check.value is True for _, check in cause.certificate)
    return f"{'proven' if cause.proven else 'not proven'}, {held} of {len(cause.certificate)} checks"


def check_words(name: str, check: Check) -> str:
    """`alone fails: yes (t1, t2), note`."""
    trials = f" ({', '.join(check.trial_ids)})" if check.trial_ids else ""
    return f"{CHECKS.get(name, name)}: {ANSWERS[check.value]}{trials}" + (
        f", {check.note}" if check.note else ""
    )


def ranking_words(steps: Sequence[Step], trial_id: str) -> str:
    """What a trial changed in the ranking of suspects: `--alpha 31 % to 92 %, --beta 28 % to 4 %`."""
    at = next((at for at, step in enumerate(steps) if step.outcome.trial_id == trial_id), None)
    if at is None or not steps[at].ranking:
        return ""
    after = dict(steps[at].ranking)
    before = next((dict(step.ranking) for step in reversed(steps[:at]) if step.ranking), {})
    if not before:
        return ", ".join(f"{name} {share:.0%}" for name, share in list(after.items())[:MOST_MOVED])
    moves = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in after.keys() | before.keys()}
    told = sorted(moves, key=lambda name: (-after.get(name, 0.0), name))
    told = [name for name in told if abs(moves[name]) >= LEAST_MOVE]
    chosen = sorted(told, key=lambda name: -abs(moves[name]))[:MOST_MOVED]
    return ", ".join(
        f"{name} {before.get(name, 0.0):.0%} to {after.get(name, 0.0):.0%}" for name in told if name in chosen
    )


def not_known(search: SearchRecord) -> tuple[str, ...]:
    """What this search does not say, one sentence each."""
    found = search.conclusion
    if found is None:
        return ("everything: the search has not come to an end",)
    said = [
        f"whether {CHECKS.get(name, name)}{': ' + check.note if check.note else ''}"
        for cause in found.causes
        for name, check in cause.certificate
        if check.value is None
    ]
    if found.note and found.ended is not Ended.SERVES:  # that it serves was said
        said.append(found.note)
    if found.ended in (Ended.PROVEN, Ended.NOT_PROVEN):
        facts = dict(search.facts)
        version = facts.get("engine_version", "")
        place = " on ".join(filter(None, (f"{search.engine} {version}".strip(), facts.get("host", ""))))
        said.append(f"whether other versions or machines do the same: only {place} was tried")
    return tuple(said)


def kept_words(trial: TrialRecord, factors: Sequence[Factor]) -> str:
    """What the experiment left as the user had it."""
    if trial.experiment is None:
        return "your command"
    kept = trial.experiment.kept
    if factors and len(kept) == len(factors):
        return "all kept"
    if not kept:
        return "nothing kept"
    return f"{len(kept)} of {len(factors)} kept" if len(kept) > 3 else "kept: " + ", ".join(sorted(kept))
