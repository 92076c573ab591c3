"""The tensors that a file of torch.save names, without torch and without running anything it asks for.

It allows only what a state dict needs; anything else in the pickle is refused by name.
"""

from __future__ import annotations

import collections
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STORAGES = {
    "BFloat16Storage": ("BF16", 2),
    "HalfStorage": ("F16", 2),
    "FloatStorage": ("F32", 4),
    "DoubleStorage": ("F64", 8),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}
PICKLE_BYTES = 64 << 20


class PickleRefused(Exception):
    """The file is no plain state dict, or asks for more than one may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickledTensor:
    member: str  # of the zip file
    dtype: str
    shape: tuple[int, ...]
    begin: int  # bytes into the member


@dataclass(frozen=True, slots=True)
class _Storage:
    member: str
    dtype: str
    item_bytes: int


def read_pickled_tensors(file: Path) -> Mapping[str, PickledTensor]:
    try:
        with zipfile.ZipFile(file) as archive:
            index = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            if archive.getinfo(index).file_size > PICKLE_BYTES:
                raise PickleRefused(f"its index is over {PICKLE_BYTES >> 20} MiB")
            with archive.open(index) as stored:
                found = _StateDict(stored, index.removesuffix("data.pkl")).load()
    except (zipfile.BadZipFile, StopIteration):
        raise PickleRefused("it is not the zip format that torch.save writes since 1.6") from None
    except (
        pickle.UnpicklingError,
        EOFError,
        AttributeError,
        TypeError,
        ValueError,
        IndexError,
        KeyError,
    ) as why:
        raise PickleRefused(f"its pickle cannot be read safely: {why}") from None
    if not isinstance(found, dict) or not all(isinstance(value, PickledTensor) for value in found.values()):
        raise PickleRefused("it holds other things than tensors by name")
    return {str(name): tensor for name, tensor in found.items()}


class _StateDict(pickle.Unpickler):
    def __init__(self, stored: Any, prefix: str) -> None:
        super().__init__(stored)
        self._prefix = prefix

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _first
        if module == "torch" and name in STORAGES:
            return name
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        kind, storage, key, *_ = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"it asks for a {kind}")
        dtype, item_bytes = STORAGES[storage]
        return _Storage(f"{self._prefix}data/{key}", dtype, item_bytes)


def _first(tensor: PickledTensor, *_: Any) -> PickledTensor:
    return tensor


def _rebuild(
    storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> PickledTensor:
    expected, step = [], 1
    for size in reversed(shape):
        expected.append(step)
        step *= size
    if tuple(reversed(expected)) != tuple(stride) and step > 1:
        raise pickle.UnpicklingError("a tensor is not contiguous")
    return PickledTensor(
        member=storage.member, dtype=storage.dtype, shape=tuple(shape), begin=offset * storage.item_bytes
    )
