"""What an end means: whether a launch has crashed, alone or inside a leader that lives on, and of what.

It never judges a silence, but for one after last words.
"""

from __future__ import annotations

from shakedown.core import Verdict
from shakedown.watch.causes import LoggedError, describe_exit, fingerprint, says_held_port
from shakedown.watch.proc import Vanished
from shakedown.watch.situation import Decision, Limits, Situation, State
from shakedown.watch.survived import LIVED_ON_S


def ended(s: Situation, limits: Limits) -> Decision:
    """The leader has exited without a signal of ours: a crash, whatever its code.

    A moment is left for the last lines, and a longer one for the other processes to follow.
    """
    others = bool(s.living)
    if s.exit_age_s < (limits.settle_s if others else 0.5):
        return Decision(state=State.MOVING, note="the leader has exited")
    return crashed(s, limits, exited=not others)


def died_inside(s: Situation, limits: Limits) -> Decision | None:
    """A required process has said that it dies, and nothing moved since: the others wait for ever."""
    if s.fatal is None:
        return None
    since_s = s.now_s - s.fatal.at_s
    # A process that burns CPU after its last words is tearing down: one took 8 s from usage error to exit.
    patience = 3 if any(p.busy for p in s.living) else 1
    settled = not _outlived(s, s.fatal) and min(s.quiet_s, since_s) >= patience * limits.settle_s
    # Other ranks may go on loading for half an hour beside the dead one.
    dead = since_s >= 3 * limits.settle_s and is_gone(s, s.fatal)
    return crashed(s, limits, exited=False) if settled or dead else None


def _outlived(s: Situation, fatal: LoggedError) -> bool:
    return s.now_s - s.quiet_s > fatal.at_s + LIVED_ON_S


def has_died(s: Situation) -> bool:
    """Whether a "fatal" line is why the others wait: none that was outlived, unless somebody went with it."""
    if s.fatal is None:
        return False
    at_s = s.fatal.at_s
    went = any(v.lived_s >= 2.0 and -5.0 <= v.at_s - at_s <= LIVED_ON_S for v in s.vanished)
    return went or is_gone(s, s.fatal) or not _outlived(s, s.fatal)


def is_gone(s: Situation, error: LoggedError) -> bool:
    """Whether the process that printed this has ended; a container's log tells pids of another namespace."""
    return any(v.pid == error.pid for v in s.vanished)


def crashed(s: Situation, limits: Limits, *, exited: bool) -> Decision:
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
    if s.error is not None and s.error.strength == 0 and s.earlier is not None:
        return s.earlier.text  # "see the root cause above"
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
    lived = [p.name for p in s.living if p.state == "T" and p.state_s >= limits.stopped_s]
    gone = [v.name for v in s.vanished if v.stopped_s >= limits.stopped_s]
    return next(iter([*lived, *gone]), "")
