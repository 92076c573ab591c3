"""What a supervisor can do without for a while: a failure there is told once, and ends no server.

It never hides a failure of what the run's end depends on.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator


class Duties:
    """Each is tried again when its turn comes."""

    def __init__(self) -> None:
        self._told: set[tuple[str, type[Exception]]] = set()

    @contextlib.contextmanager
    def optional(self, what: str) -> Iterator[None]:
        """The first failure of its kind is told where our own errors go."""
        try:
            yield
        except Exception as failure:  # noqa: BLE001  whatever it is, the server goes on, and it is told below
            if (kind := (what, type(failure))) not in self._told:
                self._told.add(kind)
                with contextlib.suppress(OSError):  # a full disk
                    traceback.print_exc()
