"""The folder of a synthesis: samples and what was left out, appended by one process, whole after any kill.

It never rewrites a line, and never takes up a folder that was begun with other settings.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from shakedown.drafter.conversation import Conversation, LeftOut
from shakedown.drafter.samples import Sample, encode_sample, read_object, sample_of
from shakedown.errors import HostProblem, UsageError

SAMPLES, LEFT_OUT, SETTINGS = "samples.jsonl", "left-out.jsonl", "synth.json"
SYNC_EVERY_S = 1.0  # what a power cut may cost; a kill costs nothing
NAME = re.compile(r"(\d+)(?:-(\d+)of(\d+))?")


class Journal:
    """Open for one process at a time; with `look` it only reads, and neither makes nor cuts anything.

    `done` are the numbers of the conversations that are over; `kept` counts those with a sample or more.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, look: bool = False) -> None:
        """Raises UsageError for a folder in use or begun otherwise, HostProblem for one not to be used."""
        self.folder, self._settings = folder, settings
        self.done: set[int] = set()
        self.kept = self.samples = self.generated = self.left_out = 0
        self.first_turns: set[str] = set()
        self._synced_s = time.monotonic()
        self._look = look
        try:
            with ExitStack() as opened:
                if not look:
                    self._claim(opened)
                self._agree()
                self._take_up()
                self._opened = opened.pop_all()
        except OSError as problem:
            raise HostProblem(f"{folder} cannot be used: {problem.strerror or problem}") from None

    def _claim(self, opened: ExitStack) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = opened.enter_context(open_to_append(self.folder / SAMPLES))
        self._left_file = opened.enter_context(open_to_append(self.folder / LEFT_OUT))
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another process writes to {self.folder} now") from None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        with self._opened:
            if not self._look:
                self.sync()

    def write(self, number: int, conversation: Conversation, about: Mapping[str, Any]) -> list[Sample]:
        """Its samples, kept before this returns. `about` holds model, template and sampling."""
        total = len(conversation.documents)
        samples = [
            Sample(
                id=f"{number:07d}" if total == 1 else f"{number:07d}-{part}of{total}",
                messages=document.messages,
                token_ids=document.tokens.ids,
                mask=document.tokens.mask,
                finish=document.finish,
                **about,
            )
            for part, document in enumerate(conversation.documents, 1)
        ]
        self._append(self._file, b"".join(map(encode_sample, samples)))
        if conversation.left_out is not None:
            self._append(self._left_file, line_of(number, conversation.left_out))
            self.left_out += 1
        self._count(number, samples)
        if time.monotonic() - self._synced_s > SYNC_EVERY_S:
            self.sync()
        return samples

    def sync(self) -> None:
        for file in (self._file, self._left_file):
            os.fsync(file.fileno())
        self._synced_s = time.monotonic()

    def _append(self, file: BinaryIO, data: bytes) -> None:
        """All of it or nothing: a disk that is full must not leave half a line."""
        end = os.fstat(file.fileno()).st_size
        try:
            while data:
                data = data[os.write(file.fileno(), data) :]
        except OSError as problem:
            os.ftruncate(file.fileno(), end)
            raise HostProblem(
                f"{self.folder / SAMPLES} cannot be written: {problem.strerror}",
                f"its {self.samples} samples are whole; the same command goes on from there",
            ) from None

    def _agree(self) -> None:
        """Writes the settings of a new folder, or compares them with those of one to go on with."""
        path = self.folder / SETTINGS
        mine = json.loads(json.dumps(self._settings))
        if path.is_file():
            try:
                found = json.loads(path.read_bytes())
            except ValueError:
                raise UsageError(f"{path} is not JSON: this folder is none of a synthesis") from None
            other = [key for key in sorted({*mine, *found}) if mine.get(key) != found.get(key)]
            if other:
                said = "; ".join(f"{key} was {found.get(key)!r}, now {mine.get(key)!r}" for key in other)
                raise UsageError(
                    f"{self.folder} was begun with other settings: {said}",
                    "give the same settings to go on with it, or another --out",
                )
            return
        samples = self.folder / SAMPLES
        if samples.exists() and samples.stat().st_size:
            raise UsageError(f"{samples} is there but {SETTINGS} is not: it is not ours to go on with")
        if self._look:
            return
        write_whole(path, json.dumps(mine, indent=2, ensure_ascii=False).encode() + b"\n")

    def _take_up(self) -> None:
        """Counts what is there, and cuts what a kill left half written."""
        group_start, group = 0, list[Sample]()
        for start, line, place in whole_lines(self.folder / SAMPLES, cut=not self._look):
            sample = sample_of(line, place)
            if not group:
                group_start = start
            group.append(sample)
            number, part, total = parse_name(sample.id)
            if part == total:
                self._count(number, group)
                group = []
        if group and not self._look:  # its other parts were not written any more
            os.ftruncate(self._file.fileno(), group_start)
        for _, line, place in whole_lines(self.folder / LEFT_OUT, cut=not self._look):
            self.done.add(parse_name(str(read_object(line, place).get("id")))[0])
            self.left_out += 1

    def _count(self, number: int, samples: list[Sample]) -> None:
        self.done.add(number)
        self.samples += len(samples)
        self.generated += sum(sample.generated for sample in samples)
        if samples:
            self.kept += 1
            turns = (message["content"] for message in samples[0].messages if message["role"] == "user")
            self.first_turns.add(next(turns, ""))


def open_to_append(path: Path) -> BinaryIO:
    return open(path, "a+b", buffering=0)


def whole_lines(path: Path, *, cut: bool) -> Iterator[tuple[int, bytes, str]]:
    """(start, line, its place in words) of every line that ends; `cut` takes off one that does not."""
    if not path.exists():
        return
    at = 0
    with open(path, "rb") as reader:
        for number, line in enumerate(reader, 1):
            if not line.endswith(b"\n"):
                if cut:
                    os.truncate(path, at)
                return
            yield at, line, f"{path}:{number}"
            at += len(line)


def line_of(number: int, left_out: LeftOut) -> bytes:
    found = {"id": f"{number:07d}", "reason": left_out.reason.value, "detail": left_out.detail[:500]}
    found["shown"] = left_out.shown[:4000]
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def parse_name(name: str) -> tuple[int, int, int]:
    """(number of the conversation, part, parts) of a sample's ID."""
    found = NAME.fullmatch(name)
    if found is None:
        raise UsageError(f"{name!r} is no ID of a sample of ours")
    return int(found[1]), int(found[2] or 1), int(found[3] or 1)


def write_whole(path: Path, data: bytes) -> None:
    """The whole file, or none of it."""
    beside = path.with_name(path.name + ".new")
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
