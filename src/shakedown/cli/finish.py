"""A job run to its exit code: what it hands back printed, its errors told, its interrupts taken as such.

It never decides anything.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from shakedown.cli.output import print_error, print_result, write_error
from shakedown.errors import Defect, Interrupted, ShakedownError

if TYPE_CHECKING:
    from shakedown.jobs.result import JobResult


def finish(command: str, as_json: bool, job: Callable[[], JobResult]) -> NoReturn:
    """Runs a job, prints what it hands back and exits with its code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup a hang-up is none
            signal.signal(number, interrupt)
    try:
        result = job()
        if result.exit_code == Interrupted.exit_code:  # it told as much as there was
            ignore_interrupts()
        print_result(result, as_json=as_json)
        code = int(result.exit_code)
    except ShakedownError as error:
        ignore_interrupts()
        print_error(without_secrets(error), as_json=as_json, command=command)
        code = error.exit_code
    except Exception as unforeseen:  # noqa: BLE001  (told as what it is, with its trace)
        code = tell_defect(unforeseen, as_json=as_json, command=command)
    except KeyboardInterrupt:
        ignore_interrupts()
        interrupted = Interrupted("interrupted; what was started has been ended")
        print_error(interrupted, as_json=as_json, command=command)
        code = interrupted.exit_code
    ignore_interrupts()
    sys.exit(code)


def tell_defect(unforeseen: Exception, *, as_json: bool, command: str) -> int:
    """The exit code of what nobody foresaw: Python's own, 1, would say that the launch was judged bad."""
    from shakedown.redact import Redactor, strip_controls

    ignore_interrupts()
    defect = without_secrets(Defect.of(unforeseen))
    print_error(defect, as_json=as_json, command=command)
    trace = "".join(traceback.format_exception(unforeseen))
    write_error(strip_controls(Redactor.of(os.environ, sys.argv[1:]).redact_text(trace)))
    return defect.exit_code


def without_secrets(error: ShakedownError) -> ShakedownError:
    """An error quotes what was given to us: names and commands, which may hold a secret of this shell."""
    from shakedown.redact import Redactor

    redactor = Redactor.of(os.environ, sys.argv[1:])
    return type(error)(redactor.redact_text(error.message), *map(redactor.redact_text, error.hints))


def ignore_interrupts() -> None:
    """All is ended and a few words are left to say: one more Ctrl-C must not change the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def interrupt(signum: int, frame: FrameType | None) -> None:
    """TERM and HUP clean up exactly as Ctrl-C does."""
    raise KeyboardInterrupt
