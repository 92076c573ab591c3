"""Who asks a supervisor to end its run, and whether anybody who could is left: orders, signals, visits.

It never ends anything itself, and waits for nobody longer than it is told.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from pathlib import Path

from shakedown.host.state import RunState, last_visit

_GRACE_S = 15.0  # where nobody said another: a healthy SGLang needs 5-8 s
_ORPHANED_GRACE_S = 0.3  # nobody waits for a gentle end any more; granted twice, to the leader and to all


class Orders:
    """Standard input is our tool: it says one order a line, and its end is the tool's."""

    def __init__(self, folder: Path, state: RunState) -> None:
        self._folder, self._state = folder, state
        self.why: str | None = None  # the run is to be ended
        self.grace_s = _GRACE_S
        self._asked = 0  # SIGTERMs received
        self._abandoned = False  # our tool died while it waited for the end
        self._unread = b""
        self._alone_s: float | None = None  # since when nobody looked after an armed run
        self._visit = 0
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)

    def is_hurried(self) -> bool:
        return self._asked > 1 or self._abandoned

    def listen_to_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll.register(woken, select.POLLIN)

    def wait(self, most_s: float) -> bool:
        """Until one comes, or a child ends. Says whether the state of the run has changed."""
        changed = False
        for descriptor, _ in self._poll.poll(most_s * 1000):
            if descriptor == 0:
                changed |= self._take()
            else:
                _swallow(descriptor)
        return changed

    def miss_visitors(self) -> bool:
        """Our tool is gone and may come back, over a new connection: for so long the run goes on alone.

        Says whether the state of the run has changed.
        """
        if self._alone_s is None or not self._state.armed:
            return False
        seen, now = last_visit(self._folder), time.monotonic()
        if seen < 0:
            self._state.armed = False
            return True
        if seen != self._visit:
            self._visit, self._alone_s = seen, now
        elif now - self._alone_s > self._state.patience_s:
            self.why = self.why or f"nobody came back for {self._state.patience_s:.0f} s"
            self.grace_s = _ORPHANED_GRACE_S
        return False

    def _take(self) -> bool:
        received = os.read(0, 65536)
        if not received:
            self._poll.unregister(0)
            self._lose_tool()
            return False
        disarmed = False
        *lines, self._unread = (self._unread + received).split(b"\n")
        for order in map(json.loads, lines):
            self.grace_s = float(order.get("grace_s", self.grace_s))
            disarmed |= bool(order.get("disarm"))
        self._state.armed &= not disarmed
        return disarmed

    def _lose_tool(self) -> None:
        if self._state.armed and self._state.patience_s and not self.why:
            self._alone_s = time.monotonic()
        elif self._state.armed:
            self._abandoned = self.why is not None
            self.why, self.grace_s = self.why or "our tool died", _ORPHANED_GRACE_S

    def _ask(self, number: int, _frame: object) -> None:
        """The handler of SIGTERM: the second one ends all patience."""
        self._asked += 1
        self.why = self.why or "asked to"


def _swallow(descriptor: int) -> None:
    try:
        os.read(descriptor, 4096)
    except BlockingIOError:
        return
