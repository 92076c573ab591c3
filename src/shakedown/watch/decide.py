"""Decides what has become of a launch from what was read of it: situation and limits in, decision out.

It never reads, waits or looks at a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from shakedown.core import Suspect, Verdict, Wait
from shakedown.watch.causes import LoggedError, describe_exit, fingerprint, says_held_port
from shakedown.watch.proc import Vanished
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
LIVED_ON_S = 30.0  # progress this long after a "fatal" line: others go on, or it was not fatal


def decide(s: Situation, limits: Limits) -> Decision:
    """The one question: moving, quiet, suspect, or over?"""
    if s.exit is not None:
        return _ended(s, limits)
    if (decision := _died_inside(s, limits)) or (decision := _stuck_at_once(s, limits)):
        return decision
    if s.quiet_s < limits.quiet_s:
        return Decision(state=State.MOVING)
    hang = _silent(s, limits)
    if hang.state is State.QUIET:
        return hang
    if _met_again(s, limits, hang):
        return hang
    if s.quiet_s < s.budget_s:
        return Decision(state=State.QUIET)
    if s.rounds_over < limits.rounds:
        return Decision(state=State.SUSPECT, suspect=hang.suspect, note="looking at all stacks")
    return hang


def foresee(s: Situation, limits: Limits) -> Decision:
    """What a silence would be called if it lasted; to compare with an expected failure."""
    return _silent(s, limits)


# --- crashed ---------------------------------------------------------------------------------------------


def _ended(s: Situation, limits: Limits) -> Decision:
    """The leader has exited without a signal of ours: a crash, whatever its code.

    A moment is left for the last lines, and a longer one for the other processes to follow.
    """
    others = bool(_living(s))
    if s.exit_age_s < (limits.settle_s if others else 0.5):
        return Decision(state=State.MOVING, note="the leader has exited")
    return _crashed(s, limits, exited=not others)


def _died_inside(s: Situation, limits: Limits) -> Decision | None:
    """A required process has said that it dies, and nothing moved since: the others wait for ever."""
    if s.fatal is None:
        return None
    since_s = s.now_s - s.fatal.at_s
    # A process that burns CPU after its last words is tearing down: one took 8 s from usage error to exit.
    patience = 3 if any(p.busy for p in _living(s)) else 1
    settled = not _outlived(s, s.fatal) and min(s.quiet_s, since_s) >= patience * limits.settle_s
    # Other ranks may go on loading for half an hour beside the dead one.
    dead = since_s >= 3 * limits.settle_s and _is_gone(s, s.fatal)
    return _crashed(s, limits, exited=False) if settled or dead else None


def _outlived(s: Situation, fatal: LoggedError) -> bool:
    return s.now_s - s.quiet_s > fatal.at_s + LIVED_ON_S


def _has_died(s: Situation) -> bool:
    """Whether a "fatal" line is why the others wait: none that was outlived, unless somebody went with it."""
    if s.fatal is None:
        return False
    at_s = s.fatal.at_s
    went = any(v.lived_s >= 2.0 and -5.0 <= v.at_s - at_s <= LIVED_ON_S for v in s.vanished)
    return went or _is_gone(s, s.fatal) or not _outlived(s, s.fatal)


def _is_gone(s: Situation, error: LoggedError) -> bool:
    """Whether the process that printed this has ended; a container's log tells pids of another namespace."""
    return any(v.pid == error.pid for v in s.vanished)


def _crashed(s: Situation, limits: Limits, *, exited: bool) -> Decision:
    cause, stopped = _cause(s), _stopped(s, limits)
    held = s.port_is_foreign and says_held_port(cause)
    return Decision(
        state=State.FINAL,
        verdict=Verdict.UNDECIDED if held else Verdict.CRASHED,
        cause=f"{cause}; {stopped} was stopped (state T)" if stopped else cause,
        fingerprint=fingerprint(cause),
        exited=exited,
        environment=held,
        would_change="a free port" if held else "",
    )


def _cause(s: Situation) -> str:
    """The first exception; else the first process that went without a word; else how the leader ended."""
    if s.error is not None and s.error.strength == 2:
        return s.error.text
    if lost := _lost_process(s):
        return f"{lost.name} died without an exception (killed by a signal, or out of memory?)"
    if s.error is not None:
        return s.error.text
    return describe_exit(s.exit, s.last_words) if s.exit is not None else "a required process has died"


def _lost_process(s: Situation) -> Vanished | None:
    """The first process that went clearly before the leader, around the first complaint if there is one.

    Helpers live shorter or went earlier; what went later went because of it. Where the log only repeats
    that something died, the leader may follow within the second.
    """
    ended_s = s.now_s - s.exit_age_s if s.exit is not None else s.now_s
    around_s = s.error.at_s if s.error is not None else ended_s
    before_s = ended_s if s.error is not None and s.error.strength == 0 else ended_s - 1.0
    lost = [
        v
        for v in s.vanished
        if v.lived_s >= 2.0 and v.at_s < before_s and around_s - 5.0 <= v.at_s <= around_s + 1.5
    ]
    return min(lost, key=lambda v: (v.at_s, v.pid), default=None)


def _stopped(s: Situation, limits: Limits) -> str:
    """Who stood still when the others gave up: no exception of theirs names it."""
    lived = [p.name for p in _living(s) if p.state == "T" and p.state_s >= limits.stopped_s]
    gone = [v.name for v in s.vanished if v.stopped_s >= limits.stopped_s]
    return next(iter([*lived, *gone]), "")


# --- hung ------------------------------------------------------------------------------------------------


def _living(s: Situation) -> list[ProcessView]:
    return [p for p in s.processes if not p.tracker]


def _stuck_at_once(s: Situation, limits: Limits) -> Decision | None:
    """Stopped and uninterruptible processes need no stacks: said at once, judged once nothing ends them."""
    for p in _living(s):
        if p.state == "T" and p.state_s >= limits.stopped_s:
            text, kind, mend = f"{p.name} is stopped (state T for {p.state_s:.0f} s)", Wait.STOPPED, "SIGCONT"
        elif p.state == "D" and min(p.state_s, s.quiet_s) >= limits.blocked_s:
            text = f"{p.name} is in uninterruptible sleep for {p.state_s:.0f} s{_in(p)}"
            kind, mend = Wait.BLOCKED_IO, "an answer of the disk, driver or file system"
        else:
            continue
        if p.state_s >= patience(limits, s.phase):
            return _hung(p, kind, text, mend)
        note = f"{text}; left to the engine's own timer of {limits.own_s[s.phase]:.0f} s"
        return Decision(state=State.SUSPECT, suspect=_as_suspect(p), note=note)
    return None


def _silent(s: Situation, limits: Limits) -> Decision:
    """What a silence means, by who is busy and who waits."""
    living = _living(s)
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
    if _has_died(s) or (s.error is not None and _is_gone(s, s.error) and _last_words(s)):
        return _crashed(s, limits, exited=False)
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
        suspect = elect(_living(s)) or busiest
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


def _met_again(s: Situation, limits: Limits, hang: Decision) -> bool:
    known = limits.expected if s.met_expected_s >= 10.0 else None
    return known is not None and hang.verdict is not None and hang.matches(known, s.phase)


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
