"""The live view of a terminal: where the launch stands, and its last telling lines.

It never decides anything; without a terminal the plain lines of `output` stand in.
"""

from __future__ import annotations

import atexit
from collections import deque

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from shakedown.jobs.result import Progress

LINES_SHOWN = 5
STYLES = {"moving": "green", "quiet": "yellow", "suspect": "red"}


class LiveTalk:
    """Redraws one small block; what is said scrolls above it."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._lines: deque[str] = deque(maxlen=LINES_SHOWN)
        self._folded = 0
        self._title = ""
        atexit.register(self.close)

    def say(self, text: str) -> None:
        self.close()
        self._console.print(Text(text), soft_wrap=True)  # a command must stay one line to be copied

    def progress(self, progress: Progress) -> None:
        if progress.title != self._title:
            self.close()
            self._title, self._folded = progress.title, 0
            self._lines.clear()
        for line, noise in progress.lines:
            if noise:
                self._folded += 1
            elif line.text.strip():
                self._lines.append(f"{line.at_s:6.1f}  {line.text}")
        if self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False
            )
            self._live.start()
        self._live.update(self._draw(progress), refresh=True)

    def _draw(self, progress: Progress) -> RenderableType:
        head = Text.assemble(
            (f"{progress.at_s:6.1f} s  ", "bold"),
            (progress.title + "  ", "bold"),
            (progress.phase.value + "  ", "cyan"),
            (progress.state, STYLES.get(progress.state, "")),
            f"  quiet {progress.quiet_s:.0f} s" if progress.quiet_s >= 3 else "",
            (f"  {self._folded} lines of noise folded" if self._folded else "", "dim"),
            overflow="ellipsis",
            no_wrap=True,
        )
        body = [Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in self._lines]
        if progress.note:
            body.append(Text(progress.note, style="yellow", overflow="ellipsis", no_wrap=True))
        return Group(head, *body)

    def close(self) -> None:
        """What is printed from now on stays where it is, in lines as long as they are."""
        if self._live is not None:
            self._live.stop()
            self._live = None
