"""The way to one agent, kept up: opened again where it broke, with the clock of the machine it leads to.

It never takes a lost connection for news: the clock stands still while nothing can be seen.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shakedown.core import Gap
from shakedown.errors import EnvironmentProblem, HostProblem
from shakedown.host.remote.link import Link, Lost, TooLate

QUICK_S = 45.0  # a reading; a GPU driver may take 13 s until it is given up there
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 15.0  # between attempts to connect anew
LAST_WORDS_S = 20.0  # to come back for a clean-up after we gave up once


class Line:
    """`words` give a shell over there; `title` is how the user calls the machine.

    `patience_s`: for how long a lost connection is tried again, and a run goes on without one.
    """

    def __init__(
        self, words: Sequence[str], title: str, *, say: Callable[[str], None], patience_s: float
    ) -> None:
        self._words, self._title, self._say = tuple(words), title, say
        self._patience_s = patience_s
        self._link: Link | None = None
        self._linking = threading.RLock()
        self._ahead_s = 0.0  # its clock minus ours
        self._unseen_s = 0.0
        self._gaps: list[Gap] = []
        self._gave_up = self._closed = False
        self._hurry = threading.Event()
        self.base: Path | None = None  # for run folders over there; each new agent is told
        self.told: dict[str, Any] = {}  # what the agent said of its machine

    @property
    def unseen_s(self) -> float:
        """How long it could not be seen, all gaps together."""
        return self._unseen_s

    def call(self, name: str, *arguments: Any, deadline_s: float = QUICK_S) -> Any:
        """Asked again after a lost connection: everything may be asked twice, and is then done once.

        Raises TooLate, and HostProblem where there is no connection within the patience.
        """
        while True:
            try:
                return self.linked().call(name, *arguments, deadline_s=deadline_s)
            except Lost:
                continue
            except KeyboardInterrupt:  # what follows is a clean-up, for which nobody waits ten minutes
                self._hurry.set()
                raise

    def clock_s(self) -> float:
        """The clock over there, less the time in which nobody could see it."""
        link = self._link
        now = time.monotonic() if link is None or link.lost_s is None else link.lost_s
        return now + self._ahead_s - self._unseen_s

    def gaps(self) -> tuple[Gap, ...]:
        """Also the one that has begun just now."""
        link = self._link
        if link is None or link.lost_s is None:
            return tuple(self._gaps)
        begun = Gap(at_s=self.clock_s(), seconds=time.monotonic() - link.lost_s)
        return (*self._gaps, begun)

    def hurry(self) -> None:
        """From now on nobody waits long for a line: all that is left is to tidy up."""
        self._gave_up = True

    def close(self) -> None:
        with self._linking:
            self._closed = True
            if self._link is not None:
                self._link.close()

    def linked(self) -> Link:
        """The connection of the moment; a lost one is made anew, and waited for."""
        with self._linking:
            if self._closed:
                raise HostProblem(f"the connection to {self._title} was closed")
            if self._link is None:
                self._link = self._open()
            elif self._link.lost_s is not None:
                self._link = self._regain(self._link, self._link.lost_s)
            return self._link

    def _open(self) -> Link:
        link = Link.open(self._words, os.environ.get("SHAKEDOWN_FAR_PYTHON") or "python3")
        try:
            asked = time.monotonic()
            told = link.call("hello", self.base, self._patience_s, deadline_s=QUICK_S)
        except (Lost, TooLate):
            link.close()
            raise HostProblem(f"the connection to {self._title} broke while it was made") from None
        except BaseException:
            link.close()
            raise
        if self.told.get("boot_id") != told["boot_id"]:  # else its clock has gone on as ours has
            self._ahead_s = told["now_s"] - (asked + time.monotonic()) / 2
        self.told = told
        return link

    def _regain(self, link: Link, lost_s: float) -> Link:
        """Connects again and again, at longer and longer intervals, for as long as the run goes on alone."""
        link.close()
        self._say(f"the connection to {self._title} is lost; what runs there goes on, trying again")
        wait_s = FIRST_WAIT_S
        until = time.monotonic() + (LAST_WORDS_S if self._gave_up else self._patience_s)
        while True:
            if self._hurry.is_set():
                until = min(until, time.monotonic() + LAST_WORDS_S)
                self._hurry.clear()
            try:
                again = self._open()
                break
            except EnvironmentProblem as problem:
                if time.monotonic() + wait_s > until:
                    self._gave_up = True
                    raise HostProblem(
                        f"the connection to {self._title} was lost and not regained: {problem.message}",
                        f"its supervisor ends what runs there {self._patience_s:.0f} s after the loss, "
                        "unless it was detached or kept",
                        *problem.hints,
                    ) from problem
            self._hurry.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        self._gave_up = False
        seconds = time.monotonic() - lost_s
        self._gaps.append(Gap(at_s=lost_s + self._ahead_s - self._unseen_s, seconds=seconds))
        self._unseen_s += seconds
        self._say(f"connected to {self._title} again after {seconds:.1f} s, which count for nothing")
        return again
