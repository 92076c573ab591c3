"""config.json of a model's folder, read as what it must be: an object.

It interprets none of its values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shakedown.errors import UsageError


def read_config(folder: Path, hint: str) -> dict[str, Any]:
    """Raises UsageError where there is none, with `hint` for what the folder should have been."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text())
    except OSError as problem:
        raise UsageError(f"{file} cannot be read: {problem.strerror}", hint) from None
    except ValueError as problem:
        raise UsageError(f"{file} is not JSON: {problem}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{file} is not a JSON object")
    return config
