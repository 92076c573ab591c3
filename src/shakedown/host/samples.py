"""One look at one process, as the rest of the program wants it.

It never shows a command line unredacted, nor more than a line of it.
"""

from __future__ import annotations

from shakedown.core import ProcessSample
from shakedown.host import procfs
from shakedown.host.procfs import Stat
from shakedown.redact import Redactor, strip_controls

_NAME_CHARACTERS = 60


class Sampler:
    """Remembers names: they change once or twice in the life of a process."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int, str], str] = {}

    def sample(self, pid: int, ticks: int, redactor: Redactor) -> ProcessSample | None:
        """None where this very process is gone."""
        stat = procfs.read_stat(pid)
        if stat is None or stat.started_ticks != ticks:
            return None
        read_bytes, written_bytes, disk_bytes = procfs.read_io(pid)
        return ProcessSample(
            pid=pid,
            started_ticks=ticks,
            ppid=stat.ppid,
            name=self._name(stat, redactor),
            state=stat.state,
            wchan=procfs.read_wchan(pid),
            cpu_s=stat.cpu_s,
            children_cpu_s=stat.children_cpu_s,
            rss_bytes=stat.rss_bytes,
            minor_faults=stat.minor_faults,
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            threads=stat.threads,
            disk_bytes=disk_bytes,
        )

    def _name(self, stat: Stat, redactor: Redactor) -> str:
        key = (stat.pid, stat.started_ticks, stat.comm)
        if key not in self._names:
            if len(self._names) > 4096:  # compilers come and go by the hundred
                self._names.clear()
            self._names[key] = name_of(stat.comm, procfs.read_cmdline(stat.pid), redactor)
        return self._names[key]


def name_of(comm: str, cmdline: list[str], redactor: Redactor) -> str:
    """The title a process gave itself, what a Python runs, else the kernel's name for it."""
    if not cmdline:
        return redactor.redact_name(strip_controls(comm))
    titled = len(cmdline) == 1 and cmdline[0].startswith(comm)  # setproctitle leaves one word
    if not titled and not comm.startswith(("python", "pt_main_thread")):
        return redactor.redact_name(strip_controls(comm))
    words = redactor.redact_argv(cmdline)
    text = " ".join(words if titled else [comm, *words[1:]])
    name = redactor.redact_name(strip_controls(" ".join(text.split())))
    return name if len(name) <= _NAME_CHARACTERS else name[: _NAME_CHARACTERS - 1] + "…"
