"""Where the ledger lies, and that nobody else can write there.

It never opens the ledger itself.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from shakedown.core import is_network
from shakedown.errors import LedgerProblem

FOLDER_MODE = 0o700
FILE_MODE = 0o600
MOUNTS = Path("/proc/self/mountinfo")
ELSEWHERE = "use another with --ledger PATH, in a folder that only you can write to"


def default_path() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError as error:  # a container's user without a name and without HOME
        raise LedgerProblem(f"there is no place for the ledger: {error}", ELSEWHERE) from error
    return base / "shakedown" / "ledger.db"


def prepare(path: Path) -> Path:
    """Make the ledger's folder and empty file where they are missing; refuse what others could change.

    A folder stands for `ledger.db` in it. Raises `LedgerProblem`.
    """
    try:
        path = path.expanduser().absolute()
        if path.is_dir():
            path = path / "ledger.db"
        make_folder(path.parent)
        _refuse_shared(path.parent)
        _make_file(path)
        _refuse_shared(path)
    except (OSError, RuntimeError) as error:  # the second for the home of a user there is not
        why = error.strerror if isinstance(error, OSError) else error
        raise LedgerProblem(f"the ledger {path} cannot be opened: {why}", ELSEWHERE) from error
    return path


def make_folder(folder: Path) -> None:
    """`folder` and its missing parents, each for the user alone whatever the umask."""
    for missing in reversed([p for p in (folder, *folder.parents) if not p.exists()]):
        missing.mkdir(mode=FOLDER_MODE, exist_ok=True)


def _make_file(path: Path) -> None:
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE))


def _refuse_shared(path: Path) -> None:
    status, user = path.stat(), os.geteuid()
    # A link may be root's (an administrator moved the folder), what it leads to may not.
    owner = status.st_uid if path.lstat().st_uid in (user, 0) else path.lstat().st_uid
    if owner != user:
        raise LedgerProblem(
            f"the ledger is not opened: {path} belongs to user {owner}, not to {user}",
            "run as that user",
            ELSEWHERE,
        )
    if status.st_mode & stat.S_IWOTH:
        raise LedgerProblem(
            f"the ledger is not opened: anyone can write to {path} (mode {stat.S_IMODE(status.st_mode):o})",
            f"chmod o-w {path}",
            ELSEWHERE,
        )
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise LedgerProblem(f"the ledger is not opened: {path} is not a regular file", ELSEWHERE)


def on_network(path: Path, mounts: Path = MOUNTS) -> bool:
    """Whether several hosts may share the file system: WAL keeps its index in memory that they do not."""
    return is_network(file_system(path, mounts))


def file_system(path: Path, mounts: Path = MOUNTS) -> str:
    """The kind of file system that `path` lies on ("ext4", "nfs4"); "" where nobody tells."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    best, found = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].replace("\\040", " "))
        if len(point.parts) >= best and path.resolve().is_relative_to(point):
            best, found = len(point.parts), after.split()[0]
    return found
