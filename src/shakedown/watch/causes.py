"""Finds the first exception of a log and says it in one line.

It never takes the last error for the cause: what dies later only repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shakedown.core import Engine, Exit
from shakedown.watch.log import WatchedLine, template
from shakedown.watch.patterns import Phrases

CAUSE_CHARS = 300
OPEN_TRACEBACKS = 64
KEPT_ERRORS = 200
KEPT_PLACES = 100
TRACEBACK = "Traceback (most recent call last)"
HANDLED = "During handling of the above exception, another exception occurred"

# "(EngineCore pid=9109) ERROR 11-29 14:14:45 [core.py:1510] ", "[2026-11-29 14:44:13 TP0] ", "[rank0]: "
_PREFIX = re.compile(
    r"^(?:\([^()]{1,60} pid=\d+\) ?)?"
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]{5,10} [\d:.,]{8,15} \[[^\]]{1,80}\] ?)?"
    r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,40}\] ?)?"
    r"(?:\[rank\d+\]: ?)?"
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]{1,120}(?=: |:$|$)")
_BARE_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]{0,80}(?:Error|Exception): \S")
_SOURCE = re.compile(r'^ *File "([^"]{1,400})", line \d+, in (.{1,120})$')
_ARGPARSE = re.compile(r"^[^\s:/()]{1,80}: error: (.+)$")
# Both argparse and click show the usage first: "ninja: error: …" without it is a tool's, and may be survived.
_REFUSED = re.compile(r"^(?:[^\s:/()]{1,80}: error|Error): ")
_USAGE = re.compile(r"^[Uu]sage: \S")
USAGE_S = 5.0  # from the usage to the refusal
_LOUD = re.compile(
    r"Fatal Python error: |terminate called after|Segmentation fault|Bus error|\(core dumped\)"
    r"|CUDA error|Cuda error|\[Errno 98\]|[Aa]ddress already in use|Out of memory: Killed|oom-kill"
)
# An exception that only says that another program failed: that one's own words follow, after its warnings.
_TOOL_FAILED = re.compile(
    r"\bcompile error$|\b[Bb]uild failed\b|[Ee]rror (?:building|compiling objects for) extension"
)
_TOOL_SAYS = re.compile(
    r"(?:^|[\s:])(?:fatal )?error: |final link failed: |No space left on device|: cannot find -l"
)
# What a program that raises no exception says before it leaves: counted where nothing better was said.
_COMPLAINT = re.compile(
    r"(?i)\b(?:error|fatal|failed|failure|cannot|can't|could not|couldn't|unable to|denied|no such|not found"
    r"|invalid|unrecognized|unknown|missing|refused|aborted|panic|not permitted|unsupported)\b"
)
_CALM = re.compile(
    r"\b(?:INFO|DEBUG|TRACE)\b|(?i:\b(?:0|no|without) (?:errors?|failures?)\b|\b(?:errors?|failed)[:=] ?0\b)"
)
TOOL_LINES = 10_000  # g++ had 1,672 lines to say before the linker's one about a full disk
# A lookup that failed and was handled says less than what was raised for it.
_LOOKUPS = ("StopIteration", "KeyError", "IndexError", "AttributeError", "StopAsyncIteration")
_PLUMBING = ("contextlib.py", "threading.py", "_contextlib.py", "otel.py", "queue.py", "selectors.py")
_ALWAYS_LATER = ("KeyboardInterrupt", "SystemExit", "CancelledError", "GeneratorExit")
_HELD_PORT = re.compile(r"[Aa]ddress already in use|Errno 98|EADDRINUSE")

SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedError:
    """An error as one line. `strength`: 2 a traceback's exception, 1 a loud line, 0 only repeats another."""

    text: str
    at_s: float
    pid: int | None
    rank: str
    strength: int
    number: int  # of the line it began on
    places: tuple[str, ...] = ()  # "function (file" of its traceback, innermost first


@dataclass(slots=True)
class _OpenTraceback:
    at_s: float
    number: int
    source: str = ""
    code: str = ""
    exception: LoggedError | None = None
    more: int = 0
    in_plumbing: bool = False
    places: list[str] = field(default_factory=list)


class ErrorFinder:
    """Reads lines one by one and keeps the errors among them."""

    def __init__(self, engine: Engine) -> None:
        self._fatal = Phrases(engine.fatal)
        self._repeats = Phrases(engine.not_a_cause)
        self._open: dict[tuple[str, int | None], _OpenTraceback] = {}
        self._record: tuple[str, int | None] = ("", None)  # whose prefix was the last
        self._usage_s = float("-inf")
        self.errors: list[LoggedError] = []
        self.fatal: LoggedError | None = None  # the first line that says a required process has died
        self.last_words = ""  # the latest line that complains, of programs without exceptions

    def read(self, line: WatchedLine) -> None:
        text = _PREFIX.sub("", line.text, count=1)
        if _USAGE.match(text):
            self._usage_s = line.line.at_s
        if self.fatal is None and self._fatal(line.text) and not self._is_tools(line, text):
            self.fatal = self._error(line, text, strength=1)
        key = self._key_of(line)
        if TRACEBACK in text:
            if len(self._open) < OPEN_TRACEBACKS:
                self._open[key] = _OpenTraceback(at_s=line.line.at_s, number=line.number)
        elif HANDLED in text:
            self._demote(key)
        elif key in self._open:
            self._follow(key, self._open[key], line, text)
        else:
            self._read_loose(line, text)

    def _is_tools(self, line: WatchedLine, text: str) -> bool:
        """Whether what looks like a refused command line is not the launch's."""
        return bool(_REFUSED.match(text)) and line.line.at_s - self._usage_s > USAGE_S

    def _key_of(self, line: WatchedLine) -> tuple[str, int | None]:
        """Whose traceback a line belongs to.

        A logger prefixes the first line of a record and not the rest of it: "[… TP0] Scheduler hit an
        exception: Traceback", then its frames bare. A record is written at once, so they follow directly.
        """
        key = (line.rank, line.pid)
        if key != ("", None) or TRACEBACK in line.text:
            self._record = key
        return self._record if self._record in self._open else key

    def _follow(self, key: tuple[str, int | None], it: _OpenTraceback, line: WatchedLine, text: str) -> None:
        """One more line of an open traceback: a frame, its exception, or what explains the exception."""
        if it.exception is not None:
            self._explain(key, it, line, text)
        elif source := _SOURCE.match(text):
            file = source[1].rsplit("/", 1)[-1]
            if len(it.places) < KEPT_PLACES:
                it.places.append(f"{source[2]} ({source[1]}")
            it.in_plumbing = file in _PLUMBING
            if not it.in_plumbing:
                it.source, it.code = f"{source[2]} ({file})", ""
        elif text.startswith(" ") or not text:
            if it.source and not it.code and not it.in_plumbing and text.strip(" ^~"):
                it.code = text.strip()
        elif _EXCEPTION.match(text):
            said = _without_module(text)
            if ":" not in said.rstrip(":"):  # a bare AssertionError: only its place tells it from others
                said = f"{said.rstrip(':')} in {it.source}" + (f": {it.code}" if it.code else "")
            it.exception = replace(
                self._error(line, said, strength=2),
                rank=key[0],
                pid=key[1],
                at_s=it.at_s,
                number=it.number,
                places=tuple(reversed(it.places)),
            )
            self._keep(it.exception)
        else:
            del self._open[key]

    def _explain(self, key: tuple[str, int | None], it: _OpenTraceback, line: WatchedLine, text: str) -> None:
        """`1 validation error for VllmConfig` says nothing; the line below it does."""
        assert it.exception is not None
        if _TOOL_FAILED.search(it.exception.text):
            self._quote_tool(key, it, text)
            return
        short = it.exception.text.endswith(("from one of:", ":")) or "validation error" in it.exception.text
        wanted = short and it.more == 0 and text.strip() and text[0] in " (-*"
        if wanted:
            it.more += 1
            told = f"{it.exception.text.rstrip(':')}: {text.strip().split(' [type=', 1)[0]}"
            self._tell_more(it, told)
        else:
            del self._open[key]
            self._read_loose(line, text)

    def _quote_tool(self, key: tuple[str, int | None], it: _OpenTraceback, text: str) -> None:
        """Looks for the line in which a compiler or linker says what it lacks."""
        assert it.exception is not None
        it.more += 1
        if _TOOL_SAYS.search(text, 0, 1000):
            self._tell_more(it, f"{it.exception.text}: {text.strip()}")
        elif it.more < TOOL_LINES:
            return
        del self._open[key]

    def _tell_more(self, it: _OpenTraceback, told: str) -> None:
        assert it.exception is not None
        fuller = replace(it.exception, text=told[:CAUSE_CHARS])
        self.errors = [fuller if error is it.exception else error for error in self.errors]
        it.exception = fuller

    def _demote(self, key: tuple[str, int | None]) -> None:
        """The exception before this one was handled: a bare lookup is not worth naming."""
        for index in range(len(self.errors) - 1, -1, -1):
            error = self.errors[index]
            if (error.rank, error.pid) == key:
                if error.text.startswith(_LOOKUPS):
                    self.errors[index] = replace(error, strength=0)
                return

    def _read_loose(self, line: WatchedLine, text: str) -> None:
        if usage := _ARGPARSE.match(text):
            strength = 1 if self._is_tools(line, text) else 2
            self._keep(self._error(line, f"error: {usage[1]}", strength=strength))
        elif not line.noise and (_LOUD.search(text, 0, 1000) or _BARE_EXCEPTION.match(text)):
            self._keep(self._error(line, _without_module(text), strength=1))
        elif not line.noise and _COMPLAINT.search(text, 0, 1000) and not _CALM.search(line.text, 0, 1000):
            self.last_words = " ".join(text.split())[:CAUSE_CHARS]

    def _error(self, line: WatchedLine, text: str, *, strength: int) -> LoggedError:
        said = " ".join(text.split())[:CAUSE_CHARS]
        repeats = self._repeats(said) or self._repeats(line.text) or said.startswith(_ALWAYS_LATER)
        return LoggedError(
            text=said,
            at_s=line.line.at_s,
            pid=line.pid,
            rank=line.rank,
            strength=0 if repeats else strength,
            number=line.number,
        )

    def _keep(self, error: LoggedError) -> None:
        if len(self.errors) < KEPT_ERRORS:
            self.errors.append(error)

    @property
    def first(self) -> LoggedError | None:
        """Of all errors; which of them were survived is not known here (see `survived.told`)."""
        return first_of(self.errors, self.fatal)

    @property
    def last_s(self) -> float | None:
        """When the latest error that names a cause was printed."""
        return max((e.at_s for e in self.errors if e.strength == 2), default=None)


def first_of(errors: Sequence[LoggedError], fatal: LoggedError | None) -> LoggedError | None:
    """The error that names the cause, or the first that repeats it if nothing does.

    A traceback that was caught and printed long before the death does not count where a line
    announces the death: the announcement and its traceback come together.
    """
    candidates = errors
    if fatal is not None:
        candidates = [e for e in errors if e.at_s >= fatal.at_s - 5.0] or errors
    return min(candidates, key=lambda e: (-e.strength, e.number), default=fatal)


def fingerprint(cause: str) -> str:
    """The cause with numbers, paths, hex and quoted strings masked: equal for equal failures."""
    return template(cause)


def says_held_port(cause: str) -> bool:
    return _HELD_PORT.search(cause) is not None


def describe_exit(exit_: Exit, last_words: str = "") -> str:
    """An exit as a cause, for want of a better one than the last line that complained."""
    if exit_.signal is not None:
        name = SIGNALS.get(exit_.signal, f"signal {exit_.signal}")
        guess = ": out of memory, or somebody killed it" if exit_.signal == 9 else ""
        return f"killed by signal {exit_.signal} ({name}){guess}"
    if exit_.code is None:
        return "ended, and nobody was left to see how"
    if exit_.code == 0:
        return "exited with code 0 although it should serve"
    if last_words:
        return f"exited with code {exit_.code}; the last error it printed: {last_words}"
    return f"exited with code {exit_.code} and named no cause"


def _without_module(text: str) -> str:
    """`huggingface_hub.errors.HFValidationError: …` without its module."""
    name, colon, message = text.partition(":")
    return name.rsplit(".", 1)[-1] + colon + message if " " not in name else text
