"""Names of trials and searches: `t251129-161402-8k3f`, short enough to type, sorted by time.

It never asks whether a name is taken.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from enum import StrEnum

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # in sort order; no i, l, o, u to misread


class Kind(StrEnum):
    TRIAL = "trial"
    SEARCH = "search"


def make_id(kind: Kind, now: datetime) -> str:
    """The kind's letter, date and time of `now` (UTC), its millisecond in base 32 and two random signs."""
    millisecond = now.microsecond // 1000
    tail = ALPHABET[millisecond // 32] + ALPHABET[millisecond % 32]
    tail += secrets.choice(ALPHABET) + secrets.choice(ALPHABET)
    return f"{kind.value[0]}{now:%y%m%d-%H%M%S}-{tail}"
