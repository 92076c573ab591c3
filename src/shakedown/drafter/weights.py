"""A checkpoint's tensors by name, each read alone from its safetensors files.

It never loads a model, and never reads a tensor that was not asked for.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from shakedown.drafter.dequantise import dequantise
from shakedown.errors import UsageError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SAMPLED_BYTES = 1 << 16
SAMPLES_A_FILE = 64


class Weights:
    """The safetensors files of a checkpoint as one mapping. Raises UsageError naming file and tensor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, Any] = {}

    @cached_property
    def files(self) -> dict[str, str]:
        """Which file holds which tensor."""
        index = self.folder / INDEX
        if index.is_file():
            try:
                return dict(json.loads(index.read_text())["weight_map"])
            except (OSError, ValueError, KeyError, TypeError) as problem:
                raise UsageError(f"{index} cannot be read: {problem!r}") from None
        if not (self.folder / SINGLE).is_file():
            raise UsageError(
                f"{self.folder} holds neither {SINGLE} nor {INDEX}",
                "a target needs its weights as safetensors beside its config.json",
            )
        return dict.fromkeys(self._file(SINGLE).keys(), SINGLE)

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def tensor(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        """As stored."""
        self._slice(name)  # the error of a tensor that is not there
        found: torch.Tensor = self._file(self.files[name]).get_tensor(name)
        return found.to(device)

    def weight(self, module: str, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
        """The weight of a module in plain numbers, [out, in], dequantised where it must be."""
        names = [name for name in self._parts.get(module, ()) if name.startswith("weight")]
        parts = {name: self.tensor(f"{module}.{name}", device) for name in names}
        return dequantise(parts, f"{self.folder}: {module}", dtype)

    @cached_property
    def _parts(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.files:
            module, _, part = name.rpartition(".")
            found.setdefault(module, []).append(part)
        return found

    def plain_shape(self, module: str) -> tuple[int, ...]:
        """Of the weight of a module in plain numbers."""
        if f"{module}.weight_shape" in self:
            return tuple(self.tensor(f"{module}.weight_shape").tolist())
        return self.shape(f"{module}.weight")

    def numbers(self, stem: str = "") -> int:
        """How many numbers all weights whose names begin so are, unpacked."""
        return sum(self._count(name) for name in self.files if name.startswith(stem))

    def _count(self, name: str) -> int:
        module, _, part = name.rpartition(".")
        if part in ("weight_shape", "weight_scale", "weight_scale_inv"):
            return 0
        return math.prod(self.plain_shape(module) if part == "weight_packed" else self.shape(name))

    def fingerprint(self) -> str:
        """SHA-256 of the config and of each file's size and 64 samples of 64 KiB: quick for a terabyte."""
        digest = hashlib.sha256((self.folder / "config.json").read_bytes())
        for file in sorted(set(self.files.values())):
            digest.update(file.encode())
            for block in sampled(self.folder / file):
                digest.update(block)
        return digest.hexdigest()

    def _slice(self, name: str) -> Any:
        if name not in self:
            raise UsageError(f"{self.folder} holds no tensor {name}")
        try:
            return self._file(self.files[name]).get_slice(name)
        except SafetensorError as problem:
            raise UsageError(f"{self.folder / self.files[name]}: {name} cannot be read: {problem}") from None

    def _file(self, file: str) -> Any:
        if file not in self._open:
            try:
                self._open[file] = safe_open(self.folder / file, framework="pt")
            except (OSError, SafetensorError) as problem:
                raise UsageError(f"{self.folder / file} cannot be read: {problem}") from None
        return self._open[file]


def sampled(path: Path) -> Iterator[bytes]:
    """The file's size, then blocks spread evenly over it, its first and last among them."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            yield str(size).encode()
            last = max(size - SAMPLED_BYTES, 0)
            for number in range(SAMPLES_A_FILE):
                file.seek(last * number // (SAMPLES_A_FILE - 1))
                yield file.read(SAMPLED_BYTES)
    except OSError as problem:
        raise UsageError(f"{path} cannot be read: {problem.strerror}") from None
