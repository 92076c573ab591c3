"""The tensors in a folder of weights, by name, with the standard library: headers first, rows on demand.

It never loads a file whole and never runs what a pickle asks for.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from shakedown.jobs.pickled import PickleRefused, read_pickled_tensors

HEADER_BYTES = 100_000_000  # the format's own limit
ITEM_BYTES = {
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "C64": 8,
}


class Unreadable(Exception):
    """Why a weight file cannot be read; a value for the lint, not an error of the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies: `member` of a zip file (torch.save) or None (safetensors), `begin` in bytes."""

    file: Path
    member: str | None
    dtype: str
    shape: tuple[int, ...]
    begin: int

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset` on, both counted within the tensor."""
        if self.member is None:
            with self.file.open("rb") as file:
                file.seek(self.begin + offset)
                return file.read(size)
        with zipfile.ZipFile(self.file) as archive, archive.open(self.member) as stored:
            stored.seek(self.begin + offset)
            return stored.read(size)

    def whole(self) -> bytes:
        return self.read(0, math.prod(self.shape) * ITEM_BYTES[self.dtype])

    def row(self, index: int) -> array[float]:
        """One row of a matrix as 32-bit floats. Raises Unreadable for a type that is no float."""
        width = self.shape[1] * ITEM_BYTES[self.dtype]
        return decode_floats(self.read(index * width, width), self.dtype)

    def integers(self) -> array[int]:
        if self.dtype not in ("I64", "I32"):
            raise Unreadable(f"{self.file.name}: integers are wanted, not {self.dtype}")
        return array("q" if self.dtype == "I64" else "i", self.whole())


def find_weights(folder: Path) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    """All tensors of a checkpoint, and why those files that cannot be read cannot."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    tensors: dict[str, StoredTensor] = {}
    broken = []
    for file in files:
        try:
            tensors.update(read_tensors(file))
        except (Unreadable, PickleRefused, OSError) as problem:
            broken.append(f"{file.name}: {problem}")
    return tensors, tuple(broken)


def read_tensors(file: Path) -> Mapping[str, StoredTensor]:
    if file.suffix == ".safetensors":
        return dict(_read_header(file))
    return {
        name: StoredTensor(
            file=file, member=found.member, dtype=found.dtype, shape=found.shape, begin=found.begin
        )
        for name, found in read_pickled_tensors(file).items()
    }


def _read_header(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Refuses what the engines' own reader (safetensors) refuses."""
    size = file.stat().st_size
    with file.open("rb") as stored:
        first = stored.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else -1
        if not 0 < length <= min(HEADER_BYTES, size - 8):
            raise Unreadable(f"no safetensors file: its header would be {length} bytes of {size}")
        try:
            header = json.loads(stored.read(length))
        except (ValueError, RecursionError) as problem:
            raise Unreadable(f"its header is not JSON: {problem}") from None
    if not isinstance(header, dict):
        raise Unreadable(f"its header is no JSON object but a {type(header).__name__}")
    entries = [_entry(name, entry) for name, entry in header.items() if name != "__metadata__"]
    _refuse_misplaced(entries, size - 8 - length)
    for entry in entries:
        begin = 8 + length + entry.begin
        tensor = StoredTensor(file=file, member=None, dtype=entry.dtype, shape=entry.shape, begin=begin)
        yield entry.name, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A tensor as a header has it; `begin` and `end` count from the header's end."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _entry(name: str, found: object) -> _Entry:
    if not isinstance(found, dict):
        raise Unreadable(f"its header has no place and shape of {name}")
    dtype, shape, place = (found.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _are_counts(shape) or not _are_counts(place) or len(place) != 2:
        raise Unreadable(f"{name} has dtype {dtype!r}, shape {shape!r}, data_offsets {place!r}")
    begin, end = place
    if dtype in ITEM_BYTES and end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise Unreadable(f"{name} has {end - begin} bytes, unlike its shape {shape} of {dtype}")
    return _Entry(name=name, dtype=dtype, shape=tuple(shape), begin=begin, end=end)


def _are_counts(found: object) -> TypeGuard[list[int]]:
    return isinstance(found, list) and all(type(each) is int and each >= 0 for each in found)


def _refuse_misplaced(entries: Sequence[_Entry], size: int) -> None:
    """The tensors fill what follows the header, one after the other."""
    at = 0
    for entry in sorted(entries, key=lambda each: (each.begin, each.end)):
        if entry.end > size:
            raise Unreadable(f"ends {entry.end - size} bytes before {entry.name} does")
        if entry.begin != at or entry.end < entry.begin:
            raise Unreadable(f"{entry.name} lies at {entry.begin} to {entry.end}, where {at} comes next")
        at = entry.end
    if at != size:
        raise Unreadable(f"holds {size - at} bytes more than its header says")


def decode_floats(raw: bytes, dtype: str) -> array[float]:
    if dtype == "F32":
        return array("f", raw)
    if dtype == "F16":
        return array("f", struct.unpack(f"<{len(raw) // 2}e", raw))
    if dtype == "BF16":  # the upper half of a 32-bit float
        return array("f", array("I", (word << 16 for word in array("H", raw))).tobytes())
    raise Unreadable(f"floats are wanted, not {dtype}")


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    dot = math.sumprod(left, right) if hasattr(math, "sumprod") else sum(map(float.__mul__, left, right))
    norms = math.sqrt(sum(x * x for x in left)) * math.sqrt(sum(x * x for x in right))
    return float(dot / norms) if norms else 0.0
