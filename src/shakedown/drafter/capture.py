"""What a backend is asked for and gives back: tokens in, one document of states out.

It never computes a state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import torch

from shakedown.drafter.manifest import Backend
from shakedown.drafter.samples import Sample, read_lines, sample_of
from shakedown.drafter.shards import Document, teacher_rows
from shakedown.errors import DataProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sample to capture: `tokens` int32 [T] and `mask` uint8 [T], up to the last token that the target
    wrote (no later row is ever used); `rows` int64 [R], where its last state is wanted."""

    sample: int
    place: str
    tokens: torch.Tensor
    mask: torch.Tensor
    rows: torch.Tensor

    @property
    def length(self) -> int:
        return len(self.tokens)


class Capture(Protocol):
    """A backend at work. Between `__enter__` and `__exit__` it holds the target in memory."""

    @property
    def backend(self) -> Backend: ...

    @property
    def window_tokens(self) -> int:
        """How many tokens it likes to be given at once."""
        ...

    @property
    def first_tokens(self) -> int:
        """How many are enough to learn its rate."""
        ...

    def __enter__(self) -> Capture: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def capture(self, requests: Sequence[Request]) -> Iterator[Document]:
        """A document for each request, in any order. Raises DataProblem or EnvironmentProblem."""
        ...


def read_requests(path: Path) -> Iterator[Request]:
    """The samples of a file, in its order. Raises UsageError naming file and line."""
    for ordinal, (number, line) in enumerate(read_lines(path)):
        place = f"{path}:{number}"
        yield request_of(sample_of(line, place), ordinal, place)


def request_of(sample: Sample, ordinal: int, place: str) -> Request:
    length = sample.mask[-1][1]
    mask = torch.zeros(length, dtype=torch.uint8)
    for start, stop in sample.mask:
        mask[start:stop] = 1
    return Request(
        sample=ordinal,
        place=f"{place} ({sample.id})",
        tokens=torch.tensor(sample.token_ids[:length], dtype=torch.int32),
        mask=mask,
        rows=teacher_rows(mask),
    )


def batches(requests: Sequence[Request], batch_tokens: int) -> Iterator[list[Request]]:
    """Requests of like length together, the longest first: the largest batch is met at once, and little of
    a batch is padding. A batch holds at most `batch_tokens` tokens with its padding, or one request."""
    batch: list[Request] = []
    for request in sorted(requests, key=lambda request: -request.length):
        if batch and (len(batch) + 1) * batch[0].length > batch_tokens:
            yield batch
            batch = []
        batch.append(request)
    if batch:
        yield batch


# A number whose exponent is all ones is infinite or none at all.
EXPONENTS = {
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float16: (torch.int16, 0x7C00),
    torch.float32: (torch.int32, 0x7F800000),
}


def all_finite(states: torch.Tensor) -> bool:
    """Of states on the host, by their bits and in one thread.

    torch's own check shares so small an array among all cores: on a host where others work, capture waited
    for it three quarters of its time.
    """
    kind, exponent = EXPONENTS[states.dtype]
    bits = states.contiguous().view(kind).numpy()
    return not bool(((bits & exponent) == exponent).any())


def refuse_not_finite(document: Document, request: Request) -> None:
    """Raises DataProblem naming the sample and its first token whose state is no number."""
    for name, states in (("an aux", document.aux), ("the last", document.last)):
        if all_finite(states):
            continue
        bad = (~torch.isfinite(states)).any(-1).nonzero().flatten()
        if len(bad):
            row = int(bad[0]) if name == "an aux" else int(document.last_rows[bad[0]])
            raise DataProblem(
                f"{request.place}: {name} state of token {row} is not finite,"
                f" and {len(bad) - 1} more of {len(states)}",
                "see whether the target itself does so: --backend transformers --dtype float32",
            )
