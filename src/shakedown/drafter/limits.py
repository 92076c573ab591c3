"""Which values a key of a recipe may have: the ranges and choices of the options of the same names.

It reads no file of samples or weights; it looks only whether what is named is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shakedown.drafter.prompts import BUILT_IN


class Limit(Protocol):
    def wrong(self, value: Any) -> str:
        """What is wrong with a value of the right type, to follow "is VALUE: "; "" where nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class Within:
    """A finite number; `above` shuts the lower end out."""

    least: float
    most: float = math.inf
    above: bool = False

    def wrong(self, value: Any) -> str:
        fits = self.least < value if self.above else self.least <= value
        if fits and value <= self.most and math.isfinite(value):  # nan is neither more nor less
            return ""
        low = f"{'more than' if self.above else 'at least'} {self.least:g}"
        return f"it must be {low}" + (f" and at most {self.most:g}" if self.most < math.inf else "")


@dataclass(frozen=True, slots=True)
class OneOf:
    words: tuple[str, ...]

    def wrong(self, value: Any) -> str:
        return "" if value in self.words else f"it must be one of {', '.join(self.words)}"


@dataclass(frozen=True, slots=True)
class Place:
    """A path as this working directory sees it, of a file or a folder; `instead`: a word that is no path."""

    folder: bool = False
    instead: str = ""

    def wrong(self, value: Any) -> str:
        path = Path(value)
        if value == self.instead or (path.is_dir() if self.folder else path.is_file()):
            return ""
        return f"there is no such {'folder' if self.folder else 'file'}, seen from {Path.cwd()}"


@dataclass(frozen=True, slots=True)
class EachAbove:
    """A finite number above `least` for every key."""

    least: float

    def wrong(self, value: Any) -> str:
        for key, number in value.items():
            if type(number) not in (int, float) or Within(self.least, above=True).wrong(number):
                return f"{key} must be a number more than {self.least:g}"
        return ""


ONE_OR_MORE = Within(1)
ABOVE_NOUGHT = Within(0, above=True)
SHARE = Within(0, 1, above=True)
PROMPTS = Place(instead=BUILT_IN)

LIMITS: Mapping[str, Mapping[str, Limit]] = {
    "synth": {
        "prompts": PROMPTS,
        "samples": ONE_OR_MORE,
        "turns": Within(1, 100),
        "concurrency": Within(1, 4096),
        "temperature": Within(0, 10),
        "top_p": SHARE,
        "max_tokens": ONE_OR_MORE,
        "reasoning": OneOf(("keep", "drop")),
    },
    "questions": {"prompts": PROMPTS, "samples": ONE_OR_MORE, "max_tokens": ONE_OR_MORE},
    "extract": {
        "backend": OneOf(("transformers", "vllm", "sglang")),
        "engine_python": Place(),
        "parity_sequences": ONE_OR_MORE,
    },
    "train": {
        "processes": ONE_OR_MORE,
        "start": Place(folder=True),
        "epochs": ONE_OR_MORE,
        "steps": Within(1, 16),
        "draft_vocab": ONE_OR_MORE,
        "intermediate": ONE_OR_MORE,
        "learning_rate": ABOVE_NOUGHT,
        "decay": SHARE,
        "teacher_temperature": ABOVE_NOUGHT,
        "pack_rows": Within(2),
        "batch_packs": ONE_OR_MORE,
    },
    "evaluate": {"drafts": Within(1, 15)},
    "engines": {"break_even": EachAbove(0)},
}


def what_is_wrong(section: str, key: str, value: Any) -> str:
    """ "" where the key may have this value, of the type that it should have."""
    limit = LIMITS.get(section, {}).get(key)
    return limit.wrong(value) if limit else ""
