"""What a Ray worker does: one trial on its node, to a cleaned end, and what there is to send home.

It writes no ledger, and chooses nothing but a free port.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shakedown.core import Command
from shakedown.errors import ShakedownError
from shakedown.host.local import LocalHost
from shakedown.host.procfs import boot_id
from shakedown.host.reach import free_port
from shakedown.jobs.afterwards import looking_after
from shakedown.jobs.apart import Apart, set_apart
from shakedown.trial import Result, Subject, run_trial
from shakedown.watch import Assessment

MOST_BYTES = 64 << 20  # of files sent home: a run's log is cut at this


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One trial as it travels. `folder` is used on the machine of `boot_id`, and filled there from elsewhere.

    `apart` is None for a launch that runs alone; `beside` counts the others. `scratch` is where its temporary
    folder is made; None: where the node has such.
    """

    subject: Subject
    command: Command
    folder: Path
    boot_id: str
    gpus: int
    scratch: Path | None = None
    apart: Apart | None = None
    beside: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What comes home: a result or the refusal to start, and from another machine the run's files, packed."""

    node: str
    result: Result | None = None
    refused: ShakedownError | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def work(assignment: Assignment) -> Returned:
    """Runs the trial. A cancelled task is a Ctrl-C here: what was started is ended first."""
    host = LocalHost(orphaned=True)  # Ray kills a worker's children with it, and would leave the server
    away = assignment.boot_id != boot_id()
    work_folder = Path(
        tempfile.mkdtemp(prefix="sd-", dir=assignment.scratch)
    )  # short: engines put sockets into TMPDIR
    folder = work_folder / "run" if away else assignment.folder
    try:
        subject = settled(assignment, work_folder)
        try:
            result = run_trial(host, subject, folder, look_on)
        except ShakedownError as problem:
            return Returned(node=platform.node(), refused=problem)
        files = packed(folder) if away else {}
        return Returned(node=platform.node(), result=result, files=files)
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)


def look_on(assessment: Assessment) -> None:
    """Nobody looks on here; the verdict goes home."""


def settled(assignment: Assignment, folder: Path) -> Subject:
    """The subject as it runs here: on the GPUs that Ray gave, apart from what runs beside it."""
    subject = assignment.subject
    if assignment.apart is not None:
        subject = set_apart(
            subject, assignment.apart, port=free_port(), folder=folder, beside=assignment.beside
        )
    if assignment.gpus:
        given = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
        subject = replace(subject, launch=replace(subject.launch, env={**subject.launch.env, **given}))
    return replace(subject, look_after=looking_after(assignment.command, subject.launch))


def travelling(subject: Subject) -> Subject:
    """Without what is bound to the machine that it comes from."""
    return replace(subject, gaps=tuple, elsewhere=None, look_after=None)


def packed(folder: Path) -> dict[str, bytes]:
    """The files of a run, smallest first, as far as they may travel."""
    left, found = MOST_BYTES, {}
    for path in sorted(filter(Path.is_file, folder.iterdir()), key=lambda path: path.stat().st_size):
        left -= path.stat().st_size
        if left >= 0:
            found[path.name] = zlib.compress(path.read_bytes())
    return found


def unpack(files: Mapping[str, bytes], folder: Path) -> None:
    for name, data in files.items():
        (folder / Path(name).name).write_bytes(zlib.decompress(data))
