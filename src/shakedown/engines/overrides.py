"""Values of a model's config.json overridden by an engine's own flag.

It opens nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def with_overrides(argv: tuple[str, ...], flag: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """`argv` with one `flag JSON` at its end; what it overrides already stays, unless overridden again."""
    before: dict[str, Any] = {}
    kept: list[str] = []
    at = 0
    while at < len(argv):
        token, _, inline = argv[at].partition("=")
        if token.replace("_", "-") == flag and (found := _object(inline or "".join(argv[at + 1 : at + 2]))):
            before |= found
            at += 1 if inline else 2
            continue
        kept.append(argv[at])
        at += 1
    return (*kept, flag, json.dumps({**before, **values}))


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
