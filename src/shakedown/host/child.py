"""The fork that becomes the server: own session, own group, the user's limits, umask, uid and folder.

It never returns in the child.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path
from typing import Any, NoReturn

from shakedown.host import cgroup


def fork_server(spec: dict[str, Any], output: int, group: Path | None) -> tuple[int, int]:
    """(pid, 0) once the program runs, or (0, error number) where the kernel refuses it."""
    report, reporter = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(spec, output, group, reporter)
    os.close(reporter)
    refused = os.read(report, 64)  # the end of the file: exec has closed the other end
    os.close(report)
    if not refused:
        return pid, 0
    os.waitpid(pid, 0)
    return 0, int(refused)


def _become(spec: dict[str, Any], output: int, group: Path | None, reporter: int) -> NoReturn:
    try:
        os.setsid()
        if group:
            cgroup.join(group)
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(spec["open_files"]))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(spec["cwd"])
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as refused:
        os.write(reporter, str(refused.errno or errno.EIO).encode())
    finally:
        os._exit(127)
