"""A target's hidden states in a folder: a manifest beside memory-mapped shards of many documents each.

It never computes a state and never changes a shard that the manifest names.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from shakedown.drafter.manifest import (
    MANIFEST,
    Backend,
    StatesManifest,
    TargetFacts,
    read_manifest,
    refuse_other,
    write_manifest,
)
from shakedown.drafter.shards import (
    Document,
    Shard,
    cut_document,
    map_shard,
    refuse_misshapen,
    teacher_rows,
    verify_shard,
    write_shard,
)
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError

__all__ = [
    "Backend",
    "Document",
    "Shard",
    "States",
    "StatesManifest",
    "StatesWriter",
    "TargetFacts",
    "open_states",
    "read_manifest",
    "teacher_rows",
]

SHARD_NAME = re.compile(r"states-(\d{5})\.safetensors(\.part)?")
SHARD_BYTES = 256 * 2**20
WRITERS = 4  # shards on their way to the disk at once: one thread copies, hashes and syncs 0.4 GB/s, not 1


def open_states(folder: Path, *, verify: bool = True) -> States:
    """The states in `folder`, memory-mapped.

    With `verify` a shard's checksum is compared when its first document is read; `States.verify`
    compares all at once. Raises DataProblem for a folder that is not complete.
    """
    manifest = read_manifest(folder)
    if not manifest.complete:
        raise DataProblem(
            f"{folder} is not complete: it holds {manifest.samples} samples so far",
            "give the same extract command again: it goes on where it stopped",
        )
    return States(folder, manifest, verify=verify)


class States(Sequence[Document]):
    """Documents by index, shard after shard. A damaged shard is a DataProblem that names it."""

    def __init__(self, folder: Path, manifest: StatesManifest, *, verify: bool) -> None:
        self.folder = folder
        self.manifest = manifest
        self._verify = verify
        self._mapped: dict[int, dict[str, torch.Tensor]] = {}
        self._firsts = torch.tensor([0, *(shard.samples for shard in manifest.shards)]).cumsum(0)

    def __len__(self) -> int:
        return self.manifest.samples

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(index)
        shard = int(torch.searchsorted(self._firsts, position, right=True)) - 1
        return cut_document(self.tensors(shard), position - int(self._firsts[shard]))

    def __iter__(self) -> Iterator[Document]:
        return (self[i] for i in range(len(self)))

    def documents(self) -> Sequence[Document]:
        return self

    def tensors(self, shard: int) -> dict[str, torch.Tensor]:
        """The tensors of one shard by name, mapped and not read."""
        if shard not in self._mapped:
            entry = self.manifest.shards[shard]
            if self._verify:
                verify_shard(self.folder / entry.file, entry)
            self._mapped[shard] = map_shard(
                self.folder / entry.file,
                entry,
                hidden_size=self.manifest.target.hidden_size,
                aux_width=self.manifest.aux_width,
            )
        return self._mapped[shard]

    def verify(self, threads: int = 4) -> None:
        """Compares every checksum. Raises DataProblem for the first shard that differs."""
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda entry: verify_shard(self.folder / entry.file, entry), self.manifest.shards))


class StatesWriter:
    """Documents into shards, each atomic; a folder begun earlier by the same job is gone on with.

    `manifest` says what is to be written (its shards are ignored). `done` are the samples that need not be
    captured again. Use it in a `with`: what was gathered is written when it ends, also by an error.
    Raises UsageError where the folder holds other states or another process writes it.
    """

    def __init__(self, folder: Path, manifest: StatesManifest, *, shard_bytes: int = SHARD_BYTES) -> None:
        self.folder = folder
        self._shard_bytes = shard_bytes
        self._gathered: list[Document] = []
        self._gathered_bytes = 0
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="shards")
        self._writing: deque[Future[Shard]] = deque()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = take_lock(folder)
        try:
            self.manifest = self._resumed(replace(manifest, shards=(), complete=False))
            self.done = self._samples_written()
            self._next = 1 + max((shard_number(entry.file) for entry in self.manifest.shards), default=-1)
        except BaseException:
            os.close(self._lock)
            raise

    def _resumed(self, wanted: StatesManifest) -> StatesManifest:
        if not (self.folder / MANIFEST).exists():
            return wanted
        found = read_manifest(self.folder)
        refuse_other(self.folder, found, wanted)
        here = tuple(entry for entry in found.shards if (self.folder / entry.file).exists())
        return replace(found, shards=here, complete=False, parity=wanted.parity or found.parity)

    def _samples_written(self) -> frozenset[int]:
        """Also clears what a kill left: files of our own naming that no manifest names."""
        named = {entry.file for entry in self.manifest.shards}
        for path in self.folder.iterdir():
            if SHARD_NAME.fullmatch(path.name) and path.name not in named:
                path.unlink()
        states = States(self.folder, self.manifest, verify=False)
        shards = range(len(self.manifest.shards))
        return frozenset(i for shard in shards for i in states.tensors(shard)["sample"].tolist())

    def __enter__(self) -> StatesWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not isinstance(value, EnvironmentProblem):  # a disk that refused once is not asked again
                self._flush()
            while self._writing:
                with suppress(EnvironmentProblem) if kind else nullcontext():  # the first one is on its way
                    self._settle()
        finally:
            self._pool.shutdown()
            os.close(self._lock)

    def add(self, document: Document) -> None:
        """Raises EnvironmentProblem where a shard gathered before could not be written."""
        refuse_misshapen(
            document, hidden_size=self.manifest.target.hidden_size, aux_width=self.manifest.aux_width
        )
        self._gathered.append(document)
        self._gathered_bytes += document.aux.nbytes + document.last.nbytes
        if self._gathered_bytes >= self._shard_bytes:
            self._flush()

    def note_parity(self, parity: Mapping[str, Any]) -> None:
        """Enters what a scan found; it stands in the manifest from the first shard on."""
        self.manifest = replace(self.manifest, parity=parity)

    def finish(self) -> StatesManifest:
        """Writes what is left and marks the folder complete."""
        self._flush()
        while self._writing:
            self._settle()
        self.manifest = replace(self.manifest, complete=True)
        write_manifest(self.folder, self.manifest)
        return self.manifest

    def _flush(self) -> None:
        if self._gathered:
            path = self.folder / f"states-{self._next:05d}.safetensors"
            self._writing.append(self._pool.submit(write_shard, path, self._gathered))
            self._gathered, self._gathered_bytes, self._next = [], 0, self._next + 1
        while self._writing and (len(self._writing) >= WRITERS or self._writing[0].done()):
            self._settle()

    def _settle(self) -> None:
        """Waits for the oldest shard under way and enters it into the manifest."""
        shard = self._writing.popleft().result()
        self.manifest = replace(self.manifest, shards=(*self.manifest.shards, shard))
        write_manifest(self.folder, self.manifest)


def take_lock(folder: Path) -> int:
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UsageError(f"another process is writing states into {folder}") from None
    return handle


def shard_number(name: str) -> int:
    match = SHARD_NAME.fullmatch(name)
    if match is None:
        raise DataProblem(f"{MANIFEST} names {name!r}, which is no shard")
    return int(match[1])
