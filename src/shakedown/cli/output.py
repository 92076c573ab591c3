"""All printing of the program: answers on standard output, talk on standard error.

It never decides anything.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from shakedown.errors import ShakedownError

if TYPE_CHECKING:
    from shakedown.jobs.result import JobResult, Progress, Talk

PLAIN_EVERY_S = 10.0


class PlainTalk:
    """One line per change of phase or state and one every ten seconds: for pipes, CI and agents."""

    def __init__(self) -> None:
        self._last: tuple[str, str, str] = ("", "", "")
        self._said_at_s = 0.0

    def say(self, text: str) -> None:
        write_error(text)

    def progress(self, progress: Progress) -> None:
        now = (progress.title, progress.phase.value, progress.state)
        if now == self._last and 0 <= progress.at_s - self._said_at_s < PLAIN_EVERY_S:
            return
        self._last, self._said_at_s = now, progress.at_s
        quiet = f", quiet for {progress.quiet_s:.0f} s" if progress.quiet_s >= 5 else ""
        write_error(f"{progress.at_s:6.1f} s  {progress.phase.value:<13} {progress.state}{quiet}")


def choose_talk(*, quiet: bool = False) -> Talk:
    """A live view on a terminal, plain lines everywhere else."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not quiet:
        from shakedown.cli.live import LiveTalk

        return LiveTalk()
    return PlainTalk()


def print_result(result: JobResult, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.document, indent=2, ensure_ascii=False))
        return
    for line in result.lines:
        print(line)


def print_error(error: ShakedownError, *, as_json: bool, command: str) -> None:
    if as_json:
        document = {
            "schema": "shakedown/1",
            "command": command,
            "verdict": None,
            "error": error.message,
            "hints": list(error.hints),
        }
        print(json.dumps(document, indent=2, ensure_ascii=False))
    write_error(f"shakedown: {error.message}")
    for hint in error.hints:
        write_error(f"  hint: {hint}")


def write_error(text: str) -> None:
    """A reader that went away must not stop the clean-up."""
    try:
        print(text, file=sys.stderr, flush=True)
    except BrokenPipeError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (lives until the process ends)
