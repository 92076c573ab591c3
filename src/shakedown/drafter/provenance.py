"""What trained a drafter: versions, device and, where the program runs from its checkout, the commit.

It never fails: what cannot be told is null.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch
import transformers

from shakedown import __version__

GIT_S = 10.0


def provenance() -> dict[str, Any]:
    return {
        "shakedown": __version__,
        "commit": commit(Path(__file__)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else platform.processor() or "cpu",
    }


def commit(file: Path) -> str | None:
    """The checkout's commit, with + where files differ from it; None where `file` is not tracked."""
    try:
        _git(file, "ls-files", "--error-unmatch", file.name)
        changed = _git(file, "status", "--porcelain", "--untracked-files=no")
        return _git(file, "rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(file: Path, *words: str) -> str:
    command = ["git", "-C", str(file.parent), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=True).stdout.strip()
