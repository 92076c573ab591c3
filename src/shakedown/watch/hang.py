"""What a silence means, by who is busy and who waits; and which process the others wait for.

It never looks at a clock, and calls nothing dead that has not said so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shakedown.core import Suspect, Verdict, Wait
from shakedown.watch.causes import fingerprint
from shakedown.watch.crash import crashed, has_died, is_gone
from shakedown.watch.situation import (
    JIT_LIMIT_S,
    LOAD_LIMIT_S,
    Decision,
    Limits,
    LockWait,
    ProcessView,
    Situation,
    State,
    patience,
)
from shakedown.watch.stacks import fingerprint as stack_fingerprint
from shakedown.watch.stacks import meaningful, show

UNSEEN_HOLDER = 5  # budgets; a first compile under a lock takes 60 to 150 s, maybe in another container


def stuck_at_once(s: Situation, limits: Limits) -> Decision | None:
    """Stopped and uninterruptible processes need no stacks: said at once, judged once nothing ends them."""
    for p in s.living:
        if p.state == "T" and p.state_s >= limits.stopped_s:
            text, kind, mend = f"{p.name} is stopped (state T for {p.state_s:.0f} s)", Wait.STOPPED, "SIGCONT"
        elif p.state == "D" and _is_blocked(s, limits, p):
            text = f"{p.name} is in uninterruptible sleep for {p.state_s:.0f} s{_in(p)}"
            kind, mend = Wait.BLOCKED_IO, "an answer of the disk, driver or file system"
        else:
            continue
        if p.state_s >= patience(limits, s.phase):
            return _hung(p, kind, text, mend)
        note = f"{text}; left to the engine's own timer of {limits.own_s[s.phase]:.0f} s"
        return Decision(state=State.SUSPECT, suspect=_as_suspect(p), note=note)
    return None


def _is_blocked(s: Situation, limits: Limits, p: ProcessView) -> bool:
    """Whether uninterruptible sleep has lasted longer than this phase is known to be silent.

    Seen again and again: where everything stood still for a while, two looks may be a minute apart.
    """
    known = s.phase in limits.learnt or s.budget_s > limits.suspect_s  # from earlier launches, or this one
    least_s = max(limits.blocked_s, s.budget_s if known else 0.0)
    return min(p.state_s, s.quiet_s) >= least_s and p.state_looks >= limits.blocked_looks


def silent(s: Situation, limits: Limits) -> Decision:
    """What a silence means, by who is busy and who waits."""
    living = s.living
    suspect = elect(living)
    if suspect is None:
        return _unseen(s, limits)
    busy = [p for p in living if p.busy]
    if busy:
        return _busy(s, limits, busy)
    if s.quiet_s < JIT_LIMIT_S and any(p.computes and p.gpu_busy for p in living):
        return _slow(s, suspect, "the GPU works in a known long computation")
    if not suspect.frames and not suspect.blocked and s.quiet_s < 2 * s.budget_s:
        return Decision(state=State.SUSPECT, suspect=_as_suspect(suspect), note="its stack cannot be read")
    if has_died(s) or (s.error is not None and is_gone(s, s.error) and _last_words(s)):
        return crashed(s, limits, exited=False)
    if suspect.lock is not None:
        return _locked(s, limits, suspect, suspect.lock)
    if suspect.blocked:
        text = f"{suspect.name} waits for I/O that does not come{_in(suspect)}"
        return _hung(suspect, Wait.BLOCKED_IO, text, "a byte read, or memory growing")
    text = f"{suspect.name} waits{_in(suspect)}"
    return _hung(suspect, Wait.WAITING, text, "any new log line, memory, page faults, I/O or a new stack")


def _unseen(s: Situation, limits: Limits) -> Decision:
    """Nothing is known of any process; the phase is what the log alone says, so no limit is short."""
    what = "no process could be read"
    if s.quiet_s < max(limits.hard_s.get(s.phase, LOAD_LIMIT_S), LOAD_LIMIT_S):
        return Decision(state=State.SUSPECT, note=what)
    return Decision(
        state=State.FINAL,
        verdict=Verdict.UNDECIDED,
        cause=f"{what}, and nothing else moved for {s.quiet_s / 60:.0f} min",
        fingerprint=what,
        exited=False,
        would_change="processes that can be read, or any new log line",
    )


def _locked(s: Situation, limits: Limits, suspect: ProcessView, lock: LockWait) -> Decision:
    """A wait for a file lock, whose holder is alive: the kernel frees the locks of the dead."""
    if lock.pid is None:
        if s.quiet_s < UNSEEN_HOLDER * s.budget_s:
            note = f"{suspect.name} waits for a file lock whose holder is not seen"
            return Decision(state=State.SUSPECT, suspect=_as_suspect(suspect), note=note)
        return _hung(suspect, Wait.WAITING, f"{suspect.name} waits{_in(suspect)}", "the lock's release")
    if lock.idle_s < limits.suspect_s:
        doing = "works" if not lock.idle_s else f"has not worked for {lock.idle_s:.0f} s"
        text = f"{suspect.name} waits for {lock.path}, which {lock.holder} holds and {doing}"
        if s.quiet_s < JIT_LIMIT_S:
            return Decision(state=State.QUIET, suspect=_as_suspect(suspect), note=text)
        slow = _hung(suspect, Wait.WAITING, text, "the lock's release")
        return replace(slow, verdict=Verdict.SLOW, wait=None)
    text = f"{suspect.name} waits for {lock.path}, held by {lock.holder}, which does nothing"
    return _hung(suspect, Wait.WAITING, text, f"work or the end of {lock.holder}")


def _last_words(s: Situation) -> bool:
    """Whether an exception is the last thing that happened: then the others wait for the dead."""
    return s.last_error_s is not None and s.now_s - s.quiet_s - s.last_error_s <= 2.0


def _busy(s: Situation, limits: Limits, busy: list[ProcessView]) -> Decision:
    """Somebody burns CPU. That proves nothing, but it rules out `waiting`."""
    busiest = max(busy, key=lambda p: (p.cpu_share or 0.0, -p.pid))
    working = [p for p in busy if not p.spins]
    limit_s = limits.hard_s.get(s.phase, LOAD_LIMIT_S)
    if any(p.computes for p in busy):
        limit_s = max(limit_s, JIT_LIMIT_S)
    elif not working and s.rounds_over >= 2 * limits.rounds and s.rounds_span_s >= s.budget_s:
        suspect = elect(s.living) or busiest
        text = f"{suspect.name} spins in a wait{_in(suspect)}"
        if not suspect.busy:
            text = f"{suspect.name} waits{_in(suspect)}, and {busiest.name} spins for it{_in(busiest)}"
        return _hung(suspect, Wait.SPINNING, text, "any hard progress in the second window")
    if s.quiet_s >= limit_s:
        # One frame for minutes may be one long kernel; past the longest ever seen it is a loop.
        text = f"{busiest.name} is busy without any progress for {s.quiet_s / 60:.0f} min{_in(busiest)}"
        return _hung(busiest, Wait.SPINNING, text, f"progress within {limit_s / 60:.0f} min")
    return _slow(s, busiest, "busy in a known long computation" if busiest.computes else "busy")


def _slow(s: Situation, p: ProcessView, why: str) -> Decision:
    note = f"slow, no progress seen for {s.quiet_s:.0f} s: {p.name} is {why}{_in(p)}"
    return Decision(state=State.SUSPECT, suspect=_as_suspect(p), note=note)


def elect(processes: Iterable[ProcessView]) -> ProcessView | None:
    """The process that waits for no other of the launch; of several the odd one out, then the deepest."""
    pool = list(processes)
    free = [p for p in pool if not p.waits] or pool
    parents = {p.ppid for p in free}
    places = [stack_fingerprint(p.frames) for p in free]

    def rank(p: ProcessView) -> tuple[bool, bool, bool, bool, bool, int, bool, int]:
        crowd = places.count(stack_fingerprint(p.frames)) if len(free) > 2 else 0
        return (p.state != "D", not p.blocked, not p.frames, p.spins, p.meets, crowd, p.pid in parents, p.pid)

    return min(free, key=rank, default=None)


def _hung(p: ProcessView, wait: Wait, text: str, would_change: str) -> Decision:
    place = stack_fingerprint(p.frames) if p.frames else f"{fingerprint(p.name)} {p.wchan or p.state}"
    return Decision(
        state=State.FINAL,
        verdict=Verdict.HUNG,
        wait=wait,
        cause=text,
        fingerprint=fingerprint(p.name) if wait is Wait.STOPPED else place,
        suspect=_as_suspect(p),
        exited=False,
        would_change=would_change,
    )


def _as_suspect(p: ProcessView) -> Suspect:
    return Suspect(pid=p.pid, name=p.name, frame=_frame(p), wchan=p.wchan)


def _frame(p: ProcessView) -> str:
    return show(meaningful(p.frames)[0]) if p.frames else ""


def _in(p: ProcessView) -> str:
    parts = [part for part in (_frame(p), p.wchan and f"wait channel {p.wchan}") if part]
    return f" in {', '.join(parts)}" if parts else ""
