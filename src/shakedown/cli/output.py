"""All printing of the program: answers on standard output, talk on standard error.

It never decides anything.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import click

from shakedown.errors import HostProblem, ShakedownError, UsageError

if TYPE_CHECKING:
    from shakedown.jobs.result import JobResult, Progress, Talk

PLAIN_EVERY_S = 10.0
_views = ExitStack()  # the live view, if one is open: it would redraw itself between the lines of an answer


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
        note = f": {progress.note}" if progress.note else ""
        write_error(f"{progress.at_s:6.1f} s  {progress.phase.value:<13} {progress.state}{quiet}{note}")


def choose_talk(*, quiet: bool = False) -> Talk:
    """A live view on a terminal, plain lines everywhere else."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not quiet:
        from shakedown.cli.live import LiveTalk

        view = LiveTalk()
        _views.callback(view.close)
        return view
    return PlainTalk()


def print_result(result: JobResult, *, as_json: bool) -> None:
    _views.close()
    write_answer(json_text(result.document) if as_json else "\n".join(result.lines))


def json_text(document: Mapping[str, object]) -> str:
    """What a stream that is not UTF-8 would have to escape is escaped as JSON does it."""
    try:
        whole = codecs.lookup(sys.stdout.encoding or "").name == "utf-8"
    except LookupError:
        whole = False
    return json.dumps(document, indent=2, ensure_ascii=not whole)


def print_error(error: ShakedownError, *, as_json: bool, command: str) -> None:
    _views.close()
    if as_json:
        with suppress(HostProblem):  # a full disk; standard error has it all
            write_answer(json_text(error_document(error, command)))
    write_error(f"shakedown: {error.message}")
    for hint in error.hints:
        write_error(f"  hint: {hint}")


def error_document(error: ShakedownError, command: str) -> dict[str, object]:
    return {
        "schema": "shakedown/1",
        "command": command,
        "verdict": None,
        "error": error.message,
        "hints": list(error.hints),
    }


def print_usage(error: click.ClickException, words: Sequence[str]) -> None:
    """What click finds wrong with the `words` of a command line, also for those who asked for JSON."""
    with suppress(OSError):  # nobody reads it: the exit code says it
        error.show()
    ours = words[: words.index("--")] if "--" in words else words
    if "--json" in ours:
        context = error.ctx if isinstance(error, click.UsageError) else None
        command = context.command_path.partition(" ")[2] if context else ""
        with suppress(HostProblem):  # a full disk changes no exit code
            write_answer(json_text(error_document(UsageError(error.format_message()), command)))


def write_answer(text: str) -> None:
    """A reader of the first lines only, as `head`, changes nothing. Raises HostProblem for a full disk."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (lives until the process ends)
    except OSError as problem:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        raise HostProblem(f"the answer could not be written to standard output: {problem.strerror}") from None


@contextmanager
def unread_help() -> Iterator[None]:
    """What click prints itself: an end of its reader ends the program as if all had been read."""
    try:
        yield
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        raise click.exceptions.Exit(0) from None


def write_error(text: str) -> None:
    """Neither a reader that went away nor a full disk may stop the clean-up."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (lives until the process ends)


def settle_streams() -> None:
    """Make the standard streams such that writing never fails for what is written, or for their absence."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # started with it closed: the next file opened would take its place
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a C locale, or a name that is no text
